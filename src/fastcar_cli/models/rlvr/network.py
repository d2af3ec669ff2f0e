"""RLVR-World's video models of RT-1 (arXiv 2505.13934): a LLaMA over ids of codes and actions.

Single-step: four frames with their actions, then `bos` and the codes of the next frame. Multi-step: the codes of a
context frame, those of a first frame relative to it, then for each further frame the action that leads to it and its
codes. Actions are given ids. Codes are sampled from the whole vocabulary and fed back as sampled.
"""

from __future__ import annotations

import math
from functools import cached_property

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor

from fastcar_cli.inputs.prompt import OnProgress
from fastcar_cli.models.ivideogpt.blocks import network_pixels, shown_pixels
from fastcar_cli.models.ivideogpt.tokenizer import CrossKV
from fastcar_cli.models.network import FramesNetwork, FrameSpec, Layout, Spec, Steering
from fastcar_cli.models.rlvr.actions import BINS, STEERING, bins_of
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
        """Number of ids: of codes, actions, bos and eos."""
        return self.first_action + self.bins + 2

    @property
    def layout(self) -> Layout:
        """See `Spec`: a frame begins with the action that leads to it, in a single-step model also with bos."""
        codes, given = math.prod(self.grid), self.conditions + (not self.multi)
        prefix, context, held = 0, CONTEXT, CONTEXT * codes + (CONTEXT - 1) * self.conditions
        if isinstance(self.tokenizer, CompressiveSpec):
            prefix, context, held = math.prod(self.tokenizer.context_grid), 2, codes
        return Layout(
            given + codes,
            tuple(range(given)),
            prefix=prefix,
            context=context,
            prompt_frames=1 if self.multi else CONTEXT,
            held=held,
            opening=given,
            rolls=True,
            # A single image is context frame and first frame.
            repeats=self.multi,
            guided=False,
        )

    @property
    def conditions(self) -> int:
        """See `Spec`."""
        return len(STEERING.rest)

    @property
    def steering(self) -> Steering:
        """See `Spec`."""
        return STEERING

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
    """Decodes frames; ids that are not codes become the last code, or with `modulo` are taken modulo their number."""

    def __init__(self, network: RLVR, prompts: Tensor, *, modulo: bool = False) -> None:
        self._tokenizer, self._spec, self._layout = network.tokenizer, network.spec, network.spec.layout
        self._prompts, self._modulo = prompts, modulo

    @cached_property
    def _context(self) -> tuple[Tensor, CrossKV]:
        assert isinstance(self._tokenizer, CompressiveTokenizer)
        return self._tokenizer.decode_context(self._prompts[:, : self._layout.prefix] - self._spec.drawn_codes)

    def _drawn(self, ids: Tensor) -> Tensor:
        """Frames [P, n, H, W, 3] of ids [P, n, codes], see `frame`."""
        codes = ids if self._modulo else ids.clamp(max=self._spec.drawn_codes - 1)
        if isinstance(self._tokenizer, CompressiveTokenizer):
            return shown_pixels(self._tokenizer.decode_later(codes, self._context[1]))
        return shown_pixels(torch.stack([self._tokenizer.decode(own) for own in codes.unbind(1)], 1))

    def context(self) -> Tensor:
        """See `FrameDecoder`: for a multi-step model the context frame and the first one."""
        if self._spec.multi:
            first = self._drawn(self._prompts[:, None, self._layout.prefix :])
            return torch.cat([shown_pixels(self._context[0][:, None]), first], 1)
        actions = self._spec.conditions
        rows = F.pad(self._prompts, (0, actions)).unflatten(1, (CONTEXT, -1))
        return self._drawn(rows[:, :, :-actions])

    def frame(self, codes: Tensor) -> Tensor:
        """See `FrameDecoder`."""
        return self._drawn(codes[:, None, self._layout.opening :, 0])[:, 0]


class RLVR(FramesNetwork):
    """Frame prediction network."""

    spec: RLVRSpec
    tokenizer: FrameTokenizer | CompressiveTokenizer

    def __init__(self, spec: RLVRSpec) -> None:
        super().__init__(spec)
        t = spec.tokenizer
        self.tokenizer = CompressiveTokenizer(t) if isinstance(t, CompressiveSpec) else FrameTokenizer(t)

    def decode_pixels_in(self, dtype: torch.dtype) -> None:
        """See `Network`."""
        self.tokenizer.decode_pixels_in(dtype)

    def _before(self, actions: Tensor, *, bos: bool) -> Tensor:
        """Given ids int64 [P, n, tokens] between two frames, for actions [P, n, 13]."""
        ids = bins_of(actions.float()) + self.spec.first_action
        return F.pad(ids, (0, 1), value=self.spec.first_action + self.spec.bins) if bos else ids

    def given(self, tokens: int, conditions: Tensor | None, begin: int = 0) -> Tensor:
        """See `Network`: the ids of actions, from `conditions` float32 [P, S, 13], and bos."""
        layout, width = self.spec.layout, self.spec.conditions
        first, end = begin // layout.stride, -(-(begin + tokens) // layout.stride)
        at = layout.context - 1 + first
        actions = torch.zeros(1, 0, width, device=self.device) if conditions is None else conditions[:, at:]
        actions = F.pad(actions[:, : end - first], (0, 0, 0, max(0, end - first - actions.shape[1])))
        ids = F.pad(self._before(actions, bos=not self.spec.multi), (0, math.prod(self.spec.grid)), value=-1)
        return ids.flatten(1)[:, begin - first * layout.stride :][:, :tokens]

    def rolled(self, seen: Tensor) -> Tensor:
        """See `Network`. Multi-step: the context and the last frame's codes as sampled (eval_runenv.py). Single-step:
        the last four frames with their actions, without bos; ids that are not codes become the last code (our rule).
        """
        if self.spec.multi:
            return super().rolled(seen)
        layout, width = self.spec.layout, self.spec.conditions
        old, frames = seen.split([layout.prompt_tokens, seen.shape[1] - layout.prompt_tokens], 1)
        actions, _, codes = frames.unflatten(1, (-1, layout.stride)).split([width, 1, layout.stride - width - 1], 2)
        new = torch.cat([actions, codes.clamp(max=self.spec.drawn_codes - 1)], 2).flatten(1)
        return torch.cat([old, new], 1)[:, -layout.prompt_tokens :]

    def encode(self, frames: Tensor, on_progress: OnProgress | None = None, actions: Tensor | None = None) -> Tensor:
        """See `FramesNetwork`; ids of `actions` lie between frames; missing actions are zeros."""
        pixels, videos, count = network_pixels(frames), len(frames), frames.shape[1]
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
        """See `Network`: ids that are not codes are clamped (eval_vgpt.py, eval_vgpt_multiturn.py)."""
        return RLVRFrames(self, prompts)

    def play_decoder(self, prompts: Tensor) -> RLVRFrames:
        """See `Network`: in a multi-step model such ids are taken modulo the number of codes (eval_runenv.py)."""
        return RLVRFrames(self, prompts, modulo=self.spec.multi)
