"""The parts of a pass as Triton kernels. Imports triton."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastcar_cli.decoding.batch import Batch
from fastcar_cli.kernels.gpu.append import Extent, Gate, append
from fastcar_cli.kernels.gpu.attend import attend, attend_depths, chunks_of
from fastcar_cli.kernels.gpu.linear import Matrix, linear
from fastcar_cli.kernels.gpu.mlp import Cached, mlp
from fastcar_cli.kernels.gpu.norm import norm, norm_heads
from fastcar_cli.models.decoder import Block, RMSNorm
from fastcar_cli.weights.formats import QuantisedLinear


class TritonOps:
    """Triton kernels for passes of `inputs` tokens per row. Tensors have lines (`kernels.gpu.append`): input 0 of all
    rows, input 1 of all rows, and so on. If every line of a block replays, its MLP reads no weights.

    Besides the batch a pass reads and writes `tokens`, its inputs int64 [inputs, rows], `hidden` [rows, inputs, width]
    and, for the replay rule, `thresholds`, `scores` (float32) and `flags` (uint8), each [layers, inputs, rows].
    """

    def __init__(self, batch: Batch, inputs: int) -> None:
        model, rows, cache = batch.model, batch.rows, batch.cache
        self.inputs, self._batch, lines = inputs, batch, rows * inputs
        spec, device = model.spec.decoder, model.device
        self.tokens = torch.zeros(inputs, rows, dtype=torch.int64, device=device)
        self.hidden = like = torch.zeros(rows, inputs, spec.width, dtype=model.dtype, device=device)
        self.thresholds = torch.full((spec.layers, inputs, rows), torch.inf, device=device)
        self.scores = torch.zeros_like(self.thresholds)
        self.flags = torch.zeros(self.thresholds.shape, dtype=torch.uint8, device=device)

        def empty(*shape: int, dtype: torch.dtype = like.dtype) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=like.device)

        heads, d = spec.heads, spec.head_dim
        self._normed = empty(lines, spec.width)
        self._qkv = empty(lines, (heads + 2 * spec.kv_heads) * d)
        self._query = empty(lines, heads, d)
        self._attended = empty(lines, heads * d)
        self._middle = empty(lines, spec.mlp_width)
        chunks, floats = (lines, heads, chunks_of(cache.k.shape[3])), torch.float32
        self._scratch = empty(*chunks, d, dtype=floats), empty(*chunks, dtype=floats), empty(*chunks, dtype=floats)
        self._depth, self._logits = model.depth, empty(lines, model.spec.codes)
        if model.depth is not None:
            depth = model.depth.spec
            self._wide, self._wide_normed, self._wide_attended = (empty(lines, depth.width) for _ in range(3))
            self._wide_middle = empty(lines, 4 * depth.width)
            self._past = empty(depth.blocks, depth.depth, lines, 3 * depth.width)
        ring = cache.window or 0, cache.first_ring_slot
        self._extent = Extent(cache.padded - cache.begin, cache.frame, *ring, batch.prompts.aligned - cache.begin)
        # In a ring an input token takes the slot of a token that earlier inputs still attend to.
        at_once = lines if cache.window is None else rows
        self._attending = [slice(first, first + at_once) for first in range(0, lines, at_once)]
        # By input token and row, also if all prompts are equally long.
        self._cos, self._sin = (a.expand(-1, rows, -1).contiguous() for a in (batch.places.cos, batch.places.sin))

    def norm(self, layer: RMSNorm, x: Tensor) -> Tensor:
        """RMS norm of [lines, width]. The result is overwritten by the next norm."""
        return norm(x, layer.weight, None, layer.eps, self._normed)

    def block(self, layer: int, block: Block, x: Tensor) -> Tensor:
        """One decoder block on the residual stream x [lines, width], which is overwritten."""
        batch, attn = self._batch, block.self_attn
        cache, replay = batch.cache, batch.replay
        tokens = self.tokens.flatten()
        limits, scores, flags = (x[layer].flatten() for x in (self.thresholds, self.scores, self.flags))
        scored = replay is not None and bool(replay.scored[layer])
        gate = None
        h = self.norm(block.input_layernorm, x)
        projections = (attn.q_proj, attn.k_proj, attn.v_proj)
        linear(h, [Matrix.of(p) for p in projections], self._qkv)
        if attn.q_norm is not None and attn.k_norm is not None:
            norm_heads(self._qkv, attn.q_norm.weight, attn.k_norm.weight, attn.q_norm.eps, attn.heads, attn.kv_heads)
        k, v, ring = cache.k[layer], cache.v[layer], cache.aligned[layer]
        videos, extent = batch.prompts.videos, self._extent
        for of in self._attending:
            if replay is not None and scored:
                released = replay.rule.tas_definition == "released"
                gate = Gate(limits[of], scores[of], flags[of], released, replay.rule.pairs)
            query, t = self._query[of], tokens[of]
            append(self._qkv[of], query, k, v, ring, self._cos, self._sin, t, extent, videos, gate)
            attend(query, k, v, cache.pad, cache.sinks, t, extent, self._scratch, self._attended[of])
        linear(self._attended, [Matrix.of(attn.o_proj)], x, add=True)
        h = self.norm(block.post_attention_layernorm, x)
        m = block.mlp
        cached = Cached(flags, tokens, replay.outputs[layer]) if replay is not None and scored else None
        return mlp(h, [Matrix.of(p) for p in (m.gate_proj, m.up_proj, m.down_proj)], x, self._middle, cached)

    def multiply(self, module: QuantisedLinear, x: Tensor) -> Tensor:
        """Apply a quantised linear map to x [..., in], for `multiplied_by`."""
        out = x.new_empty(*x.shape[:-1], module.out_features)
        linear(x.reshape(-1, x.shape[-1]), [Matrix.of(module)], out.view(-1, module.out_features))
        return out

    def logits(self, x: Tensor, d: int) -> Tensor:
        """See `sampling.Logits`. The result is overwritten by the next call."""
        net, head = self._depth, self._batch.model.lm_head
        if net is None:
            assert head is not None
            return linear(x, [Matrix.of(head)], self._logits)
        h, normed = self._wide, self._wide_normed

        def layer_norm(layer: nn.LayerNorm) -> Tensor:
            return norm(h, layer.weight, layer.bias, layer.eps, normed)

        h.copy_(net.pos_emb_d[0, d].expand_as(h))
        entry = net.in_mlp_1 if d else net.in_mlp_2
        linear(x, [Matrix.of(entry)], h, add=True)
        for past, block in zip(self._past, net.blocks, strict=True):
            attn, first, second = block.attn, block.mlp[0], block.mlp[2]
            parts = (attn.query, attn.key, attn.value)
            linear(layer_norm(block.ln1), [Matrix.of(p) for p in parts], past[d])
            attended = attend_depths(past, attn.heads, d + 1, self._wide_attended)
            linear(attended, [Matrix.of(attn.proj)], h, add=True)
            wide = linear(layer_norm(block.ln2), [Matrix.of(first)], self._wide_middle, gelu=True)
            linear(wide, [Matrix.of(second)], h, add=True)
        last = net.classifier_mlp
        return linear(layer_norm(last.layer_norm), [Matrix.of(last.linear)], self._logits)
