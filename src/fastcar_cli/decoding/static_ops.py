"""The parts of a static step, in plain torch or as Triton kernels.

No part looks at data on the host: what depends on the token, the gate or the codes is indexed or
selected on the device. The torch parts compute every MLP and then select; they are the reference
that runs everywhere. The Triton parts skip.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.decoding.replay import temporal_attention_score
from fastcar_cli.decoding.static_state import StaticState
from fastcar_cli.models.decoder import Block, RMSNorm, rotate
from fastcar_cli.models.video_model import VideoModel


class Ops(Protocol):
    """What a static step is made of."""

    def block(self, layer: int, block: Block, x: Tensor) -> Tensor:
        """One decoder block on the residual stream x [rows, width], which may be overwritten."""
        ...

    def norm(self, norm: RMSNorm, x: Tensor) -> Tensor:
        """RMS norm of [rows, width]."""
        ...

    def depth(self, x: Tensor, d: int) -> Tensor:
        """Logits [rows, codes] of depth d; x and the depths before as in `DepthTransformer.step`."""
        ...


class TorchOps:
    """Plain torch operations on the whole of each cache."""

    def __init__(self, model: VideoModel, state: StaticState) -> None:
        self._spec, self._state, self._depth = model.spec.decoder, state, model.depth
        self._past: list[tuple[Tensor, Tensor]] | None = None

    def norm(self, norm: RMSNorm, x: Tensor) -> Tensor:
        """See `Ops.norm`."""
        return norm(x)

    def depth(self, x: Tensor, d: int) -> Tensor:
        """See `Ops.depth`."""
        logits, self._past = self._depth.step(x, d, self._past if d else None)
        return logits

    def block(self, layer: int, block: Block, x: Tensor) -> Tensor:
        """See `Ops.block`."""
        s, spec = self._state, self._spec
        q, k, v = block.self_attn.project(block.input_layernorm(x)[:, None])
        cos, sin = (a.index_select(0, s.t)[0][:, None, None] for a in (s.cos, s.sin))
        rotated, k = rotate(q, cos, sin), rotate(k, cos, sin)
        place = s.place()
        s.cache.k[layer].index_copy_(2, place, k)
        s.cache.v[layer].index_copy_(2, place, v)
        if s.taus is not None:
            self._decide(layer, (q if s.released else rotated)[:, :, 0], k)
        grouped = rotated.view(s.rows, spec.kv_heads, -1, spec.head_dim)
        out = F.scaled_dot_product_attention(grouped, s.cache.k[layer], s.cache.v[layer], attn_mask=s.seen())
        x = x + block.self_attn.merge(out.view(s.rows, spec.heads, 1, spec.head_dim))[:, 0]
        y = block.mlp(block.post_attention_layernorm(x))
        if s.taus is not None:
            at = s.t % s.frame
            replays = s.flags[layer].index_select(1, s.t) != 0
            y = torch.where(replays, s.outputs[layer].index_select(1, at)[:, 0], y)
            s.outputs[layer].index_copy_(1, at, y[:, None])
        return x + y

    def _decide(self, layer: int, q: Tensor, k: Tensor) -> None:
        s, cache = self._state, self._state.cache
        assert s.taus is not None
        slot = s.t + cache.padded
        if cache.ring is None:
            aligned = cache.k[layer].index_select(2, (slot - s.frame).clamp(min=0))
        else:
            cache.ring[layer].index_copy_(2, slot % (s.frame + 1), k)
            aligned = cache.ring[layer].index_select(2, (slot + 1) % (s.frame + 1))
        own = temporal_attention_score(q, aligned[:, :, 0])
        tau = s.taus[layer]
        wanted = (s.t >= s.frame) & (tau == tau)
        if s.tas is not None:
            kept = torch.where(wanted, own.float(), float("nan"))
            s.tas[layer].index_copy_(1, s.t, kept[:, None])
        scores = own.view(2, -1).mean(0).repeat(2) if s.pairs else own
        hit = scores > tau if s.forced is None else s.forced[layer].index_select(1, s.t)[:, 0] != 0
        hit = hit & wanted
        if s.max_age is not None:
            at = s.t % s.frame
            age = s.ages[layer].index_select(1, at)[:, 0]
            young = age < s.max_age
            hit = hit & (young.view(2, -1).all(0).repeat(2) if s.pairs else young)
            s.ages[layer].index_copy_(1, at, torch.where(hit, age + 1, torch.zeros_like(age))[:, None])
        s.flags[layer].index_copy_(1, s.t, hit.to(torch.uint8)[:, None])
