"""One batch of videos being decoded: settings, caches, codes. What the engine and its executors share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from fastcar_cli.backends import MLPBackend, TorchBackend
from fastcar_cli.decoding.controller import Size
from fastcar_cli.decoding.kv_cache import KVCache
from fastcar_cli.decoding.kv_int8 import Int8KVCache
from fastcar_cli.decoding.replay import Replay, ReplayRule
from fastcar_cli.decoding.sampling import CodeSampler, SamplingSettings
from fastcar_cli.decoding.scores import BlockState
from fastcar_cli.models.network import FrameDecoder, Network

EXECUTORS = ("auto", "torch", "native", "graph")
"""Who executes a decode pass; `auto` takes the fastest that can, see `engine.choose`."""


@dataclass(frozen=True)
class DecodeSettings:
    """How to decode.

    `rule` says what replays; `keep_tas` computes and keeps the scores of every layer. A `window` attends to the last
    tokens and each prompt's first `sinks` only. `kv_dtype` is what keys and values are kept in, one of
    KV_DTYPES. `executor` is one of EXECUTORS; `threads` those of the native kernels (None: as many as torch
    has), which change nobody else's.
    """

    frames: int
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    rule: ReplayRule = field(default_factory=ReplayRule)
    window: int | None = None
    sinks: int = 4
    kv_dtype: str = "auto"
    keep_tas: bool = False
    executor: str = "auto"
    threads: int | None = None


@dataclass(frozen=True)
class Step:
    """One decoded position.

    index: of the token in the video; codes [P, depth]; hidden [rows, width] after the final norm;
    logits [depth, P, codes], guided, before top-k; None unless asked for.
    """

    index: int
    codes: Tensor
    hidden: Tensor
    logits: Tensor | None


class Watcher(Protocol):
    """Looks on while a decode runs; see `Batch.watch`."""

    def layer(self, layer: int, t: int, mlp: Tensor, out: Tensor) -> None:
        """A block is done with input token t (-1: the prompt's last token).

        mlp [rows, width] is what the MLP branch added, computed or replayed; out [rows, width] the
        residual stream after it. Both are only valid during the call.
        """


@dataclass
class Clock:
    """Wall seconds of the phases of a decode, the device waited for at their ends.

    `capture` is what building a CUDA graph took, compiling its kernels included. `mlp` is the part of `decode`
    spent in MLP branches and `draw` that spent drawing codes (the depth transformer), 0 where the executor does not
    time them.
    """

    prefill: float = 0.0
    capture: float = 0.0
    decode: float = 0.0
    mlp: float = 0.0
    draw: float = 0.0


def left_pad(prompts: Sequence[Sequence[int]], pad: int = 0) -> tuple[Tensor, Tensor]:
    """Token ids of rows of unequal length as ([rows, longest], lengths [rows]), padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(p)) + list(p) for p in prompts])
    return ids, torch.tensor([len(p) for p in prompts])


class Batch:
    """Everything that changes during a decode. Rows: conditional ones first, then unconditional.

    Args:
        model: the network, in evaluation mode.
        prompts: token ids, one list a row; 2 P rows with guidance, P without (cfg 1).
        settings: what to do.
        uniforms: [P, T*N, depth] numbers in [0, 1) that fix the draws.
        backend: executes the MLPs; torch by default.
        conditions: what videos are given beside their prompts, as the model's `Network.added` takes it.

    Attributes:
        watch: where set, sees every block's output.
        on_block: where set, sees every block whose layer is scored between attention and MLP.
        uniforms: as given, on the device.
        sampler: draws codes in torch.
        mark: called with a name at the end of each part of a pass, for profiling.
        given: codes int64 [P, T*N, depth] that are taken instead of drawn ones at the tokens of `is_given`; None where
            all are drawn.
        aligned: tokens at the end of the prompts that lie as those of frames do.
        keep_logits: whether steps carry logits.
        codes: int64 [P, T*N, depth], filled as positions are decoded.
        latent: sum of the code vectors of the last position, [P, code_width].
        cos, sin: rotations of every visual token, [T*N, rows or 1, head_dim] (1 where all prompts are equally long).
        added: [T*N, 1 or P, width] or None, what the model adds to the input at each token.
        prompt_added: the same of the `aligned` tokens of the prompts.
        passes: decode passes run so far.

    """

    def __init__(
        self,
        model: Network,
        prompts: Sequence[Sequence[int]],
        settings: DecodeSettings,
        uniforms: Tensor,
        backend: MLPBackend | None = None,
        conditions: Tensor | None = None,
    ) -> None:
        spec, device, layout = model.spec, model.device, model.spec.layout
        self.model, self.settings = model, settings
        self.blocks = model.llm.blocks
        self.backend = backend or TorchBackend(model.llm)
        self.guided = settings.sampling.cfg != 1.0
        self.rows = len(prompts)
        self.videos = self.rows // 2 if self.guided else self.rows
        self.frame = spec.tokens_per_frame
        self.tokens = settings.frames * self.frame
        ids, lengths = left_pad(prompts)
        self.ids, self.lengths = ids.to(device), lengths.to(device)
        self.padded = ids.shape[1]
        self.aligned = layout.aligned(self.padded)
        self.cache = (Int8KVCache if settings.kv_dtype == "int8" else KVCache)(
            spec.decoder,
            self.lengths,
            self.padded,
            self.tokens - 1,
            self.frame,
            model.dtype,
            settings.window,
            settings.sinks,
        )
        self.replay: Replay | None = None
        if settings.keep_tas or not settings.rule.off:
            self.replay = Replay(
                settings.rule,
                Size(spec.decoder.layers, self.rows, self.videos, self.frame, self.tokens, device),
                width=spec.decoder.width,
                dtype=model.dtype,
                keep_tas=settings.keep_tas,
                delimiters=layout.delimiters,
                aligned=self.aligned,
            )
        self.uniforms = uniforms.to(device).contiguous()
        self.sampler = CodeSampler(model.codebooks, settings.sampling, self.uniforms, self.frame)
        self.codes = torch.zeros(self.videos, self.tokens, spec.code_depth, dtype=torch.int64, device=device)
        self.latent: Tensor | None = None
        self.given: Tensor | None = None
        fixed = layout.fixed(self.tokens)
        self.is_given = [code is not None for code in fixed]
        if any(self.is_given):
            codes = torch.tensor([-1 if code is None else code for code in fixed], device=device)
            self.given = codes[None, :, None].expand_as(self.codes).contiguous()
        self.keep_logits = False
        self.clock = Clock()
        self.passes = 0
        self.watch: Watcher | None = None
        self.on_block: Callable[[BlockState], None] | None = None
        self.mark: Callable[[str], None] | None = None
        # Every later rotation at once.
        lengths = self.lengths if bool((self.lengths != self.lengths[0]).any()) else self.lengths[:1]
        later = lengths[None] + torch.arange(self.tokens, device=device)[:, None]
        self.cos, self.sin = model.llm.rotary(later, model.dtype)
        self.added = self.prompt_added = None
        if conditions is not None:
            conditions = conditions.to(device)
        self.conditions = conditions
        if (added := model.added(self.aligned + self.tokens, self.ids[: self.videos], conditions)) is not None:
            self.prompt_added, self.added = added.split([self.aligned, self.tokens])

    def positions(self) -> Tensor:
        """Rotary positions of the padded prompt, [rows, padded]; padding has 1."""
        i = torch.arange(self.padded, device=self.ids.device)[None] - (self.padded - self.lengths)[:, None]
        return torch.where(i >= 0, i, torch.ones_like(i))

    def doubled(self, x: Tensor) -> Tensor:
        """What both rows of a video share, [P, ...], for every row, [rows, ...]."""
        return torch.cat([x, x]) if self.guided else x

    def give(self, codes: Tensor) -> None:
        """Take these codes [P, T*N, depth] instead of drawn ones."""
        self.given = codes.to(self.codes).contiguous()
        self.is_given = [True] * self.tokens

    def given_at(self, index: int) -> Tensor | None:
        """Codes [P, depth] of a position where they are not drawn."""
        return self.given[:, index] if self.given is not None and self.is_given[index] else None

    def input_latent(self, t: int) -> Tensor:
        """Sum of the code vectors of input token t, [P, code_width]."""
        if self.latent is None:
            return self.model.embed(self.codes[:, t])
        return self.latent

    def fast_forward(self, t: int, seed: int = 0) -> None:
        """Stand where t visual tokens have been decoded, with random codes, keys, values and MLP outputs.

        For measuring a step at a context length without decoding up to it; what is decoded then means
        nothing.
        """
        generator = torch.Generator(self.codes.device).manual_seed(seed)
        self.codes.random_(self.model.spec.codes, generator=generator)
        self.latent = None
        self.cache.fill(t, generator)
        if self.replay is not None:
            self.replay.outputs.normal_(0.0, 0.1, generator=generator)

    def replay_shares(self) -> Tensor:
        """Share of layers and rows that replayed by code of every decoded frame, delimiters left out, [T, codes].

        The last token is never fed back: 0.
        """
        shares = torch.zeros(self.tokens)
        if self.replay is not None:
            shares[:-1] = self.replay.replayed.float().mean((0, 1)).cpu()
        codes = [place for place in range(self.frame) if place not in self.model.spec.layout.delimiters]
        return shares.view(-1, self.frame)[:, codes]

    def rows_of(self, video: int) -> list[int]:
        """The batch rows of a video."""
        return [video, video + self.videos] if self.guided else [video]

    @cached_property
    def frame_decoder(self) -> FrameDecoder:
        """What decodes the frames of the videos."""
        return self.model.frame_decoder(self.ids[: self.videos])

    @torch.inference_mode()
    def context_frames(self) -> Tensor | None:
        """Pixels of the frames that the prompts hold, float32 [P, C, H, W, 3] in 0..255; None where they hold none."""
        return self.frame_decoder.context()

    @torch.inference_mode()
    def decode_frame(self, frame: int) -> Tensor:
        """Pixels of a finished frame of every video, float32 [P, H, W, 3] in 0..255; decoded frames count from 0."""
        return self.frame_decoder.frame(self.codes[:, frame * self.frame : (frame + 1) * self.frame])
