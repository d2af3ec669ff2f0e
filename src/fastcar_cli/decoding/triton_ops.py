"""The parts of a step as Triton kernels. Imports triton."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from fastcar_cli.decoding.batch import Batch
from fastcar_cli.kernels.gpu.append import Gate, Layout, append
from fastcar_cli.kernels.gpu.attend import attend, chunks_of
from fastcar_cli.kernels.gpu.depth import attend_depths
from fastcar_cli.kernels.gpu.linear import linear
from fastcar_cli.kernels.gpu.mlp import Cached, mlp
from fastcar_cli.kernels.gpu.norm import layer_norm, rms_norm
from fastcar_cli.models.decoder import Block, RMSNorm


class DeviceState:
    """What a step reads and writes besides the batch: the input token t, int64 [1], the hidden states [rows, width],
    and of the replay rule thresholds, scores (float32) and flags (uint8), each [layers, rows].
    """

    def __init__(self, batch: Batch) -> None:
        device, spec = batch.model.device, batch.model.spec.decoder
        self.t = torch.zeros(1, dtype=torch.int64, device=device)
        self.hidden = torch.zeros(batch.rows, spec.width, dtype=batch.model.dtype, device=device)
        self.thresholds = torch.full((spec.layers, batch.rows), torch.inf, device=device)
        self.scores = torch.zeros_like(self.thresholds)
        self.flags = torch.zeros(self.thresholds.shape, dtype=torch.uint8, device=device)


class TritonOps:
    """Triton kernels; the MLP of a block in which every row replays reads no weight."""

    def __init__(self, batch: Batch) -> None:
        model, rows, cache = batch.model, batch.rows, batch.cache
        self._batch, self.state = batch, DeviceState(batch)
        spec = model.spec.decoder
        like = self.state.hidden

        def empty(*shape: int, dtype: torch.dtype = like.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=like.device)

        heads, d = spec.heads, spec.head_dim
        self._normed = empty(rows, spec.width)
        self._qkv = empty(rows, (heads + 2 * spec.kv_heads) * d)
        self._query = empty(rows, heads, d)
        self._attended = empty(rows, heads * d)
        self._middle = empty(rows, spec.mlp_width)
        chunks = chunks_of(cache.k.shape[3])
        self._scratch = (
            empty(rows, heads, chunks, d, dtype=torch.float32),
            empty(rows, heads, chunks, dtype=torch.float32),
            empty(rows, heads, chunks, dtype=torch.float32),
        )
        assert model.depth is not None
        self._depth, d_spec = model.depth, model.depth.spec
        self._wide = empty(rows, d_spec.width)
        self._wide_normed, self._wide_attended = empty(rows, d_spec.width), empty(rows, d_spec.width)
        self._wide_middle = empty(rows, 4 * d_spec.width)
        self._past = empty(d_spec.blocks, d_spec.depth, rows, 3 * d_spec.width)
        self._logits = empty(rows, d_spec.codes)
        self._layout = Layout(cache.padded, cache.frame, cache.window or 0, cache.first_ring_slot)
        # By input token and row, also where all prompts are equally long.
        self._cos, self._sin = (a.expand(-1, rows, -1).contiguous() for a in (batch.places.cos, batch.places.sin))

    def norm(self, norm: RMSNorm, x: Tensor) -> Tensor:
        """RMS norm of [rows, width]. The result is overwritten by the next norm."""
        return rms_norm(x, norm.weight, norm.eps, self._normed)

    def block(self, layer: int, block: Block, x: Tensor) -> Tensor:
        """One decoder block on the residual stream x [rows, width], which is overwritten."""
        batch, s, attn = self._batch, self.state, block.self_attn
        cache, replay = batch.cache, batch.replay
        gate = cached = None
        if replay is not None and bool(replay.scored[layer]):
            rule = replay.rule
            gate = Gate(
                s.thresholds[layer], s.scores[layer], s.flags[layer], rule.tas_definition == "released", rule.pairs
            )
            cached = Cached(s.flags[layer], s.t, replay.outputs[layer])
        h = self.norm(block.input_layernorm, x)
        projections = (attn.q_proj, attn.k_proj, attn.v_proj)
        linear(h, [p.weight for p in projections], [p.bias for p in projections], self._qkv)
        k, v, ring = cache.k[layer], cache.v[layer], cache.aligned[layer]
        append(self._qkv, self._query, k, v, ring, self._cos, self._sin, s.t, self._layout, batch.prompts.videos, gate)
        attend(self._query, k, v, cache.pad, cache.sinks, s.t, self._layout, self._scratch, self._attended)
        linear(self._attended, [attn.o_proj.weight], [attn.o_proj.bias], x, add=True)
        h = self.norm(block.post_attention_layernorm, x)
        m = block.mlp
        return mlp(h, m.gate_proj.weight, m.up_proj.weight, m.down_proj.weight, x, self._middle, cached)

    def logits(self, x: Tensor, d: int) -> Tensor:
        """See `sampling.Logits`. The result is overwritten by the next call."""
        net, h, normed = self._depth, self._wide, self._wide_normed

        def norm(layer: nn.LayerNorm) -> Tensor:
            return layer_norm(h, layer.weight, layer.bias, layer.eps, normed)

        h.copy_(net.pos_emb_d[0, d].expand_as(h))
        entry = net.in_mlp_1 if d else net.in_mlp_2
        linear(x, [entry.weight], [entry.bias], h, add=True)
        for past, block in zip(self._past, net.blocks, strict=True):
            attn, first, second = block.attn, cast(nn.Linear, block.mlp[0]), cast(nn.Linear, block.mlp[2])
            parts = (attn.query, attn.key, attn.value)
            linear(norm(block.ln1), [p.weight for p in parts], [p.bias for p in parts], past[d])
            attended = attend_depths(past, attn.heads, d + 1, self._wide_attended)
            linear(attended, [attn.proj.weight], [attn.proj.bias], h, add=True)
            wide = linear(norm(block.ln2), [first.weight], [first.bias], self._wide_middle, gelu=True)
            linear(wide, [second.weight], [second.bias], h, add=True)
        last = net.classifier_mlp
        return linear(norm(last.layer_norm), [last.linear.weight], [last.linear.bias], self._logits)
