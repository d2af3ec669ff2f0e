"""Depth transformer: one hidden vector to the residual codes of one position (VILA-U's RQ-transformer head).

Position 0 of its short sequence is the projected hidden state of the decoder, position d >= 1 the projected running sum
of the code vectors chosen so far; it predicts the code of depth d.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.system.plain_data import WHOLE, Layers, Size


@dataclass(frozen=True, config=WHOLE)
class DepthSpec:
    """Sizes of the depth transformer; `hidden` is the decoder's width, `code_width` a code vector's."""

    width: Size
    blocks: Layers
    heads: Size
    depth: Layers
    codes: Size
    code_width: Size
    hidden: Size


class DepthAttention(nn.Module):
    """Causal multi-head attention with biases; head slices are contiguous."""

    def __init__(self, spec: DepthSpec) -> None:
        super().__init__()
        self.heads = spec.heads
        self.key, self.query, self.value, self.proj = (nn.Linear(spec.width, spec.width) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        """[B, S, width] -> [B, heads, S, width / heads]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[B, S, width] with the keys and values of earlier depths; returns output and all keys, values."""
        b, s, w = x.shape
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=past is None and s > 1)
        return self.proj(out.transpose(1, 2).reshape(b, s, w)), (k, v)


class DepthBlock(nn.Module):
    """x += attn(ln1 x); x += mlp(ln2 x), GELU in its erf form."""

    def __init__(self, spec: DepthSpec) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(spec.width), nn.LayerNorm(spec.width)
        self.attn = DepthAttention(spec)
        self.mlp = nn.Sequential(
            nn.Linear(spec.width, 4 * spec.width), nn.GELU(), nn.Linear(4 * spec.width, spec.width)
        )

    def forward(self, x: Tensor, past: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """[B, S, width] -> the same shape, and this block's keys and values."""
        added, kv = self.attn(self.ln1(x), past)
        x = x + added
        return x + self.mlp(self.ln2(x)), kv


class Classifier(nn.Module):
    """LayerNorm and linear layer to the logits of one depth."""

    def __init__(self, spec: DepthSpec) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(spec.width)
        self.linear = nn.Linear(spec.width, spec.codes)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., codes]."""
        return self.linear(self.layer_norm(x))


class DepthTransformer(nn.Module):
    """From hidden states to logits, one depth at a time or for known codes at once."""

    def __init__(self, spec: DepthSpec) -> None:
        super().__init__()
        self.spec = spec
        self.in_mlp_1 = nn.Linear(spec.code_width, spec.width)
        self.in_mlp_2 = nn.Linear(spec.hidden, spec.width)
        self.pos_emb_d = nn.Parameter(torch.zeros(1, spec.depth, spec.width))
        # Named as in released checkpoints.
        self.head_transformer = nn.ModuleDict({"blocks": nn.ModuleList(DepthBlock(spec) for _ in range(spec.blocks))})
        self.classifier_mlp = Classifier(spec)

    @property
    def blocks(self) -> list[DepthBlock]:
        """The blocks, first to last."""
        return [cast(DepthBlock, b) for b in cast(nn.ModuleList, self.head_transformer["blocks"])]

    def forward(self, hidden: Tensor, partial: Tensor) -> Tensor:
        """Logits [B, depth, codes] of known codes (teacher forcing), from hidden [B, hidden] and running sums of the
        code vectors of depths 0 .. depth - 2, [B, depth - 1, code_width].
        """
        x = torch.cat([self.in_mlp_2(hidden)[:, None], self.in_mlp_1(partial)], dim=1) + self.pos_emb_d
        for block in self.blocks:
            x, _ = block(x)
        return self.classifier_mlp(x)

    def step(
        self, x: Tensor, d: int, past: list[tuple[Tensor, Tensor]] | None
    ) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        """Logits [B, codes] of depth d and the blocks' keys and values, the `past` of the next depth.
        x is the hidden state [B, hidden] at depth 0, and after it the running sum of code vectors [B, code_width].
        """
        h = (self.in_mlp_2(x) if d == 0 else self.in_mlp_1(x))[:, None] + self.pos_emb_d[:, d : d + 1]
        states = []
        for i, block in enumerate(self.blocks):
            h, kv = block(h, None if past is None else past[i])
            states.append(kv)
        return self.classifier_mlp(h[:, 0]), states
