"""Finite scalar quantisation (arXiv 2309.15505): each number of a latent is rounded to one of a few levels.

An id enumerates the levels of all dimensions, the first one fastest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def bounded(z: Tensor, levels: Sequence[int]) -> Tensor:
    """Map latents [..., D] to numbers that round to -(L // 2) .. (L - 1) // 2."""
    sizes = z.new_tensor(levels)
    half = (sizes - 1) * (1 + 1e-3) / 2
    offset = (sizes % 2 == 0) / z.new_tensor(2.0)
    return torch.tanh(z + torch.atanh(offset / half)) * half - offset


def ids_of(z: Tensor, levels: Sequence[int]) -> Tensor:
    """Ids int64 [...] of latents float [..., D]."""
    ids = torch.zeros(z.shape[:-1], dtype=torch.int64, device=z.device)
    digits = bounded(z, levels).round().long()
    for digit, level in zip(reversed(digits.unbind(-1)), reversed(levels), strict=True):
        ids = ids * level + digit + level // 2
    return ids


def codes_of(ids: Tensor, levels: Sequence[int]) -> Tensor:
    """Codes float32 [..., D] in -1 .. 1 of ids [...]."""
    codes = []
    for level in levels:
        codes.append((ids % level - level // 2) / (level // 2))
        ids = ids // level
    return torch.stack(codes, -1)


class FiniteScalars(nn.Module):
    """Same interface as `Codebook`, without parameters; ids are taken modulo the number of codes."""

    def __init__(self, levels: Sequence[int]) -> None:
        super().__init__()
        self.levels = tuple(levels)

    def nearest(self, x: Tensor) -> Tensor:
        """Codes int64 [...] of latents [..., D]."""
        return ids_of(x.float(), self.levels)

    def forward(self, codes: Tensor) -> Tensor:
        """[...] -> float32 [..., D]."""
        return codes_of(codes, self.levels)
