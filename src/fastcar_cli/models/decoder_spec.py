"""Sizes of a decoder of LLaMA's kind, and how its positions turn: what is known of it without weights."""

from __future__ import annotations

import math

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from fastcar_cli.system.plain_data import WHOLE, Count, Factor, Flag, Layers, Size

MOST_RECENT = 256


def recent(frame: int) -> int:
    """Tokens before the current one that stay floats where older keys and values are int8: a frame, or the most."""
    return min(frame, MOST_RECENT)


@dataclass(frozen=True, config=WHOLE)
class Axes:
    """Places of tokens in frame, row and column: `lead` tokens at the first place, then rasters of `grid`.

    `grown_from` are the extents [frames, rows, columns] that the model first learned, whose frequencies YaRN stretches;
    empty: it does not.
    """

    grid: tuple[Size, Size]
    lead: Count = 0
    grown_from: tuple[Size, ...] = ()

    def of(self, index: Tensor) -> Tensor:
        """Frame, row and column of tokens [...]: [..., 3]."""
        rows, columns = self.grid
        i = (index - self.lead).clamp(min=0)
        return torch.stack([i // (rows * columns), i // columns % rows, i % columns], -1)

    @staticmethod
    def pairs(head_dim: int) -> tuple[int, int, int]:
        """Rotated pairs of a head that belong to frame, row and column."""
        side = head_dim // 6
        return head_dim // 2 - 2 * side, side, side

    def frequencies(self, head_dim: int, theta: float) -> Tensor:
        """Of each pair, float32 [head_dim / 2]: powers of theta by axis, stretched where the model has grown."""
        parts = []
        for axis, pairs in enumerate(self.pairs(head_dim)):
            frequencies = theta ** -(torch.arange(pairs, dtype=torch.float32, device="cpu") / pairs)
            if self.grown_from:
                # YaRN (arXiv 2309.00071): what turns at most once over the old extent is halved, 4 times stays.
                low, high = (2 * math.pi * turns / self.grown_from[axis] for turns in (1, 4))
                share = ((frequencies - low) / (high - low)).clamp(0, 1)
                frequencies = frequencies * ((1 - share) / 2 + share)
            parts.append(frequencies)
        return torch.cat(parts)


@dataclass(frozen=True, config=WHOLE)
class DecoderSpec:
    """Sizes of the decoder. `rope_factor` divides positions (linear rope scaling).

    `rope_periods`, where given, is the period in positions of each rotated pair of a head, instead of
    the powers of `rope_theta`; with `axes` the pairs turn by frame, row and column instead of position. `head_width` 0
    is width / heads; `head_norms`: queries and keys are normed before they are rotated. `source` is the width of what
    cross attention reads, 0 without. Raises ValueError where heads do not divide the width, or keys' heads the others.
    """

    width: Size
    layers: Layers
    heads: Size
    kv_heads: Size
    mlp_width: Size
    vocab: Size
    rms_eps: Factor = 1e-6
    rope_theta: Factor = 10000.0
    rope_factor: Factor = 1.0
    max_positions: Size = 4096
    attention_bias: Flag = False
    rope_periods: tuple[Factor, ...] = ()
    head_width: Count = 0
    head_norms: Flag = False
    axes: Axes | None = None
    source: Count = 0

    def __post_init__(self) -> None:
        uneven = not self.head_width and self.width % self.heads
        if uneven or self.head_dim % 2 or self.heads % self.kv_heads:
            raise ValueError(f"width {self.width}, heads {self.heads} and kv_heads {self.kv_heads} do not fit")
        if self.rope_periods and len(self.rope_periods) != self.head_dim // 2:
            raise ValueError(f"rope_periods has {len(self.rope_periods)} values, a head has {self.head_dim // 2} pairs")

    @property
    def head_dim(self) -> int:
        """d, width of one head."""
        return self.head_width or self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Width of the keys of a token, and of its values."""
        return self.kv_heads * self.head_dim

    @property
    def projection_weights(self) -> int:
        """Weights of the four projections of a layer's attention."""
        return 2 * self.width * (self.heads * self.head_dim + self.kv_width)

    @property
    def mlp_weights(self) -> int:
        """Weights of a layer's MLP."""
        return 3 * self.width * self.mlp_width
