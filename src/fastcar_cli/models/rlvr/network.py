"""RLVR-World's video models of RT-1 (arXiv 2505.13934): a LLaMA over ids of codes and actions.

Single-step: four frames with their actions, then `bos` and the codes of the next frame. Multi-step: the codes of a
context frame, those of a first frame relative to it, then for each further frame the action that leads to it and its
codes. Actions are given ids. Codes are drawn from the whole vocabulary and fed back as drawn.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from fastcar_cli.inputs.prompt import ActionPart, OnProgress
from fastcar_cli.models.ivideogpt.tokenizer import CrossKV
from fastcar_cli.models.network import FramesNetwork, FrameSpec, Layout, Play, Spec
from fastcar_cli.models.rlvr.actions import BINS, KEYS, PARTS, REST, WORDS, bins_of
from fastcar_cli.models.rlvr.tokenizer import CompressiveSpec, CompressiveTokenizer, FrameTokenizer, FrameTokenizerSpec
from fastcar_cli.system.plain_data import WHOLE, Size

CONTEXT = 4
"""Frames that a single-step model continues from."""


@dataclass(frozen=True, config=WHOLE)
class RLVRSpec(Spec):
    """Everything that fixes the shapes of a model. A compressive tokenizer makes it a multi-step model."""

    tokenizer: FrameTokenizerSpec | CompressiveSpec
    bins: Size = BINS

    @property
    def multi(self) -> bool:
        """Whether it predicts several frames from one context frame."""
        return isinstance(self.tokenizer, CompressiveSpec)

    @property
    def drawn_codes(self) -> int:
        """Codes of a decoded frame, the first ids of the vocabulary."""
        t = self.tokenizer
        return t.dynamics if isinstance(t, CompressiveSpec) else t.codes

    @property
    def first_action(self) -> int:
        """The id of an action's bin 0."""
        return self.drawn_codes + (self.tokenizer.codes if self.multi else 0)

    @property
    def vocabulary(self) -> int:
        """Ids: of codes, actions, bos and eos."""
        return self.first_action + self.bins + 2

    @property
    def layout(self) -> Layout:
        """See `Spec`: a frame begins with the action that leads to it, in a single-step model also with bos."""
        codes, given = math.prod(self.grid), self.conditions + (not self.multi)
        prefix, context, held = 0, CONTEXT, CONTEXT * codes + (CONTEXT - 1) * self.conditions
        if isinstance(self.tokenizer, CompressiveSpec):
            prefix, context, held = math.prod(self.tokenizer.context_grid), 2, codes
        return Layout(
            stride=given + codes,
            delimiters=tuple(range(given)),
            prefix=prefix,
            context=context,
            prompt_frames=1 if self.multi else CONTEXT,
            held=held,
            opening=given,
            guided=False,
        )

    @property
    def conditions(self) -> int:
        """See `Spec`."""
        return len(REST)

    @property
    def parts(self) -> tuple[ActionPart, ...]:
        """See `Spec`."""
        return PARTS

    @property
    def play(self) -> Play:
        """See `Spec`."""
        return Play(REST, KEYS, WORDS)

    @property
    def repeats(self) -> bool:
        """See `Spec`: a single image is context frame and first frame."""
        return self.multi

    @property
    def rolls(self) -> bool:
        """See `Spec`."""
        return True

    @property
    def longest(self) -> int:
        """See `Spec`: what was trained."""
        return self.frames

    @property
    def grid(self) -> tuple[int, int]:
        """See `FrameSpec`."""
        return self.tokenizer.grid

    @property
    def frame_spec(self) -> FrameSpec:
        """See `Spec`."""
        t = self.tokenizer
        return FrameSpec(1, self.vocabulary, self.decoder.width, t.grid, t.size, channels=t.channels[0])

    def network(self) -> RLVR:
        """See `Spec`."""
        return RLVR(self)


class RLVRFrames:
    """Decodes frames; ids that are no codes become the last code, or with `modulo` what is left of a division."""

    def __init__(self, network: RLVR, prompts: Tensor, *, modulo: bool = False) -> None:
        self._tokenizer, self._layout = network.tokenizer, network.spec.layout
        self._prompts, self._last = prompts, None if modulo else network.spec.drawn_codes - 1
        self._first_context = network.spec.drawn_codes
        self._context: tuple[Tensor, CrossKV] | None = None

    def _codes(self, ids: Tensor) -> Tensor:
        return ids if self._last is None else ids.clamp(max=self._last)

    def _of_context(self, tokenizer: CompressiveTokenizer) -> tuple[Tensor, CrossKV]:
        if self._context is None:
            ids = self._prompts[:, : self._layout.prefix] - self._first_context
            self._context = tokenizer.decode_context(ids)
        return self._context

    def context(self) -> Tensor:
        """See `FrameDecoder`: of a multi-step model the context frame and the first one."""
        if isinstance(self._tokenizer, CompressiveTokenizer):
            frame, _ = self._of_context(self._tokenizer)
            first = self._later(self._tokenizer, self._prompts[:, self._layout.prefix :])
            return _pixels(torch.stack([frame, first], 1))
        size = self._layout.stride - 1
        rows = F.pad(self._prompts, (0, CONTEXT * size - self._prompts.shape[1])).unflatten(1, (CONTEXT, size))
        frames = [self._alone(self._tokenizer, ids) for ids in rows[:, :, : size - len(REST)].unbind(1)]
        return _pixels(torch.stack(frames, 1))

    def _alone(self, tokenizer: FrameTokenizer, ids: Tensor) -> Tensor:
        return tokenizer.decode(self._codes(ids))

    def _later(self, tokenizer: CompressiveTokenizer, ids: Tensor) -> Tensor:
        return tokenizer.decode_later(self._codes(ids)[:, None], self._of_context(tokenizer)[1])[:, 0]

    def frame(self, codes: Tensor) -> Tensor:
        """See `FrameDecoder`."""
        ids = codes[:, self._layout.opening :, 0]
        if isinstance(self._tokenizer, CompressiveTokenizer):
            return _pixels(self._later(self._tokenizer, ids)[:, None])[:, 0]
        return _pixels(self._alone(self._tokenizer, ids)[:, None])[:, 0]


def _pixels(x: Tensor) -> Tensor:
    """[P, n, 3, H, W] in 0..1 to [P, n, H, W, 3] in 0..255."""
    return x.clamp(0.0, 1.0).mul(255.0).permute(0, 1, 3, 4, 2)


class RLVR(FramesNetwork):
    """Frame prediction network."""

    spec: RLVRSpec
    tokenizer: FrameTokenizer | CompressiveTokenizer

    def __init__(self, spec: RLVRSpec) -> None:
        super().__init__(spec)
        t = spec.tokenizer
        self.tokenizer = CompressiveTokenizer(t) if isinstance(t, CompressiveSpec) else FrameTokenizer(t)

    def draw_in(self, dtype: torch.dtype) -> None:
        """See `Network`."""
        self.tokenizer.draw_in(dtype)

    def _before(self, actions: Tensor, *, bos: bool) -> Tensor:
        """Ids int64 [P, n, tokens] between two frames, of actions [P, n, 13]."""
        ids = bins_of(actions.float()) + self.spec.first_action
        return F.pad(ids, (0, 1), value=self.spec.first_action + self.spec.bins) if bos else ids

    def given(self, tokens: int, conditions: Tensor | None, begin: int = 0) -> Tensor:
        """See `Network`: the ids of actions, of `conditions` float32 [P, S, 13], and bos."""
        layout, width = self.spec.layout, self.spec.conditions
        first, end = begin // layout.stride, -(-(begin + tokens) // layout.stride)
        at = layout.context - 1 + first
        actions = torch.zeros(1, 0, width, device=self.device) if conditions is None else conditions[:, at:]
        actions = F.pad(actions[:, : end - first], (0, 0, 0, max(0, end - first - actions.shape[1])))
        ids = F.pad(self._before(actions, bos=not self.spec.multi), (0, math.prod(self.spec.grid)), value=-1)
        return ids.flatten(1)[:, begin - first * layout.stride :][:, :tokens]

    def rolled(self, seen: Tensor) -> Tensor:
        """See `Network`. Multi-step: the context and the last frame's codes as drawn (eval_runenv.py). Single-step: the
        last four frames with their actions, without bos, ids that are no codes as the last code (a rule of ours).
        """
        if self.spec.multi:
            return super().rolled(seen)
        layout, width = self.spec.layout, self.spec.conditions
        old, frames = seen.split([layout.prompt_tokens, seen.shape[1] - layout.prompt_tokens], 1)
        actions, _, codes = frames.unflatten(1, (-1, layout.stride)).split([width, 1, layout.stride - width - 1], 2)
        new = torch.cat([actions, codes.clamp(max=self.spec.drawn_codes - 1)], 2).flatten(1)
        return torch.cat([old, new], 1)[:, -layout.prompt_tokens :]

    def encode(self, frames: Tensor, on_progress: OnProgress | None = None, actions: Tensor | None = None) -> Tensor:
        """See `FramesNetwork`; ids of `actions` lie between frames, of missing ones those of zeros."""
        pixels = frames if frames.is_floating_point() else frames.float().div(255.0)
        pixels, videos, count = pixels.permute(0, 1, 4, 2, 3), len(frames), frames.shape[1]
        given = torch.zeros(videos, 0, self.spec.conditions, device=frames.device) if actions is None else actions
        given = F.pad(given, (0, 0, 0, max(0, count - given.shape[1])))
        parts = list[Tensor]()
        if isinstance(self.tokenizer, CompressiveTokenizer):
            context, cross = self.tokenizer.encode_context(pixels[:, 0])
            parts.append(context + self.spec.drawn_codes)
            # A single frame is both context and first frame.
            first = min(1, count - 1)
            codes = [self.tokenizer.encode_later(pixels[:, [t]], cross)[:, 0] for t in range(first, count)]
            given = given[:, first:]
        else:
            codes = [self.tokenizer.encode(pixels[:, t]) for t in range(count)]
        for t, ids in enumerate(codes):
            if t:
                bos = not self.spec.multi and t >= CONTEXT
                parts.append(self._before(given[:, t - 1 : t], bos=bos)[:, 0])
            parts.append(ids)
        return torch.cat(parts, 1)

    def frame_decoder(self, prompts: Tensor) -> RLVRFrames:
        """See `Network`: ids that are no codes are cut off (eval_vgpt.py, eval_vgpt_multiturn.py)."""
        return RLVRFrames(self, prompts)

    def play_decoder(self, prompts: Tensor) -> RLVRFrames:
        """See `Network`: in a multi-step model such ids are taken modulo the number of codes (eval_runenv.py)."""
        return RLVRFrames(self, prompts, modulo=self.spec.multi)
