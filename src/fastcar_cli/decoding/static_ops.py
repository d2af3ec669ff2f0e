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


class TorchOps:
    """Plain torch operations on the whole of each cache."""

    def __init__(self, model: VideoModel, state: StaticState) -> None:
        self._spec, self._state = model.spec.decoder, state

    def norm(self, norm: RMSNorm, x: Tensor) -> Tensor:
        """See `Ops.norm`."""
        return norm(x)

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


class TritonOps:
    """Triton kernels; the MLP of a block in which every row replays reads no weight."""

    def __init__(self, model: VideoModel, state: StaticState) -> None:
        from fastcar_cli.kernels import attention, linear

        self._attention, self._linear, self._state = attention, linear, state
        spec, rows = model.spec.decoder, state.rows
        self._spec = spec
        like = state.hidden

        def empty(*shape: int, dtype: torch.dtype = like.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=like.device)

        heads, d = spec.heads, spec.head_dim
        self._normed = empty(rows, spec.width)
        self._qkv = empty(rows, (heads + 2 * spec.kv_heads) * d)
        self._query = empty(rows, heads, d)
        self._attended = empty(rows, heads * d)
        self._middle = empty(rows, spec.mlp_width)
        chunks = attention.chunks_of(state.cache.k.shape[3])
        self._scratch = (
            empty(rows, heads, chunks, d, dtype=torch.float32),
            empty(rows, heads, chunks, dtype=torch.float32),
            empty(rows, heads, chunks, dtype=torch.float32),
        )
        cache = state.cache
        self._places = attention.Places(cache.padded, cache.frame, cache.window, cache.sinks)

    def norm(self, norm: RMSNorm, x: Tensor) -> Tensor:
        """See `Ops.norm`. The result is overwritten by the next norm."""
        return self._linear.rms_norm(x, norm.weight, norm.eps, self._normed)

    def block(self, layer: int, block: Block, x: Tensor) -> Tensor:
        """See `Ops.block`."""
        s, cache, attn = self._state, self._state.cache, block.self_attn
        score = gate = None
        if s.taus is not None:
            score = self._attention.Score(
                tau=s.taus[layer],
                flags=s.flags[layer],
                forced=None if s.forced is None else s.forced[layer],
                ages=s.ages[layer],
                tas=None if s.tas is None else s.tas[layer],
                max_age=s.max_age or 0,
                released=s.released,
                pairs=s.pairs,
            )
            gate = self._linear.Gate(s.flags[layer], s.t, s.outputs[layer])
        h = self.norm(block.input_layernorm, x)
        projections = (attn.q_proj, attn.k_proj, attn.v_proj)
        self._linear.linear(h, [p.weight for p in projections], [p.bias for p in projections], self._qkv)
        keys, values = cache.k[layer], cache.v[layer]
        ring = None if cache.ring is None else cache.ring[layer]
        self._attention.append(
            self._qkv, self._query, keys, values, ring, s.cos, s.sin, s.t, self._places, s.videos, score
        )
        self._attention.attend(self._query, keys, values, cache.pad, s.t, self._places, self._scratch, self._attended)
        self._linear.linear(self._attended, [attn.o_proj.weight], [attn.o_proj.bias], x, add=True)
        h = self.norm(block.post_attention_layernorm, x)
        m = block.mlp
        return self._linear.mlp(h, m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight, x, self._middle, gate)
