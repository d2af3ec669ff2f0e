"""All that changes during a decode, in tensors allocated once, with the input token counted on the device.

The tensors are those of the running `Decode`: caches, codes and decisions are shared, not copied, so
what a static step writes is what the engine's report reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastcar_cli.decoding.kv_cache import Layout

if TYPE_CHECKING:
    from fastcar_cli.decoding.engine import Decode


class StaticState:
    """State of a static step.

    Attributes:
        t: index of the input token, int64 [1].
        cache: tensors of the KV cache.
        cos, sin: rotations by input token, [T*N, rows, head_dim].
        codes: [P, T*N, depth], the engine's; position t + 1 is written.
        hidden: final-normed hidden states of the last step, [rows, width].
        taus: threshold a layer, float32 [layers, 1], NaN where a layer never replays; None without replay.
        outputs: MLP outputs of the last frame, [layers, rows, N, width].
        flags: uint8 [layers, rows, T*N - 1], the engine's record of decisions.
        forced: uint8 like flags, decisions to take; None to decide.
        ages: int16 [layers, rows, N].
        tas: float32 like flags, or None.
        top_p: top-p in force where it is the same in every frame, else None and `top_ps` by position
            float32 [T*N].

    """

    def __init__(self, decode: Decode, first: int = 0) -> None:
        """State before input token `first` of a decode whose prompts have been run."""
        model, settings = decode.model, decode.settings
        device = decode.codes.device
        self.rows, self.videos, self.guided = decode.rows, decode.videos, decode.guided
        self.frame, self.tokens = decode.frame, decode.tokens
        self.first = first
        self.t = torch.full((1,), first, dtype=torch.int64, device=device)
        self.cache: Layout = decode.cache.layout()
        positions = decode.lengths[None] + torch.arange(self.tokens, device=device)[:, None]
        self.cos, self.sin = (a.contiguous() for a in model.llm.rotary(positions, model.dtype))
        self.codes, self.uniforms = decode.codes, decode.uniforms
        self.hidden = torch.zeros(self.rows, model.spec.decoder.width, dtype=model.dtype, device=device)
        self.sampling = settings.sampling
        self.top_p: float | None = self.sampling.top_p_of(1)
        self.top_ps: Tensor | None = None
        if self.sampling.top_p_of(0) != self.top_p:
            self.top_ps = torch.full((self.tokens,), self.sampling.top_p_of(1), device=device)
            self.top_ps[: self.frame] = self.sampling.top_p_of(0)
            self.top_p = None
        self.released = settings.tas == "released"
        self.replay = decode.replay
        self.taus: Tensor | None = None
        if self.replay is not None:
            taus = [float("nan") if t is None else t for t in self.replay.taus]
            self.taus = torch.tensor(taus, dtype=torch.float32, device=device)[:, None]
            self.outputs = self.replay.outputs
            self.flags = self.replay.replayed.view(torch.uint8)
            self.forced = None if self.replay.forced is None else self.replay.forced.view(torch.uint8)
            self.ages, self.tas = self.replay.ages, self.replay.tas
            self.pairs, self.max_age = self.replay.pairs, self.replay.max_age

    def place(self) -> Tensor:
        """Where the input token goes in the KV cache, int64 [1]."""
        slot = self.t + self.cache.padded
        return slot if not self.cache.window else slot % self.cache.window + self.cache.sinks

    def seen(self) -> Tensor:
        """Which places each row may attend to, bool [rows, 1, 1, places]."""
        cache = self.cache
        slot = self.t + cache.padded
        place = torch.arange(cache.k.shape[3], device=slot.device)[None]
        pad = cache.pad[:, None]
        if not cache.window:
            allowed = (place <= slot) & (place >= pad)
        else:
            # The last slot so far that lies in a place of the ring; sinks are not counted again.
            held = slot - (slot - (place - cache.sinks)) % cache.window
            allowed = (place < cache.sinks) | (held >= pad + cache.sinks)
        return allowed[:, None, None]

    def rewind(self) -> None:
        """Back to the first token. A step run again from there writes what it wrote before, except ages."""
        self.t.fill_(self.first)
