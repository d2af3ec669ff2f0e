"""Which tokens a pass of the decoder takes, and how a cache takes tokens back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Inputs:
    """The input tokens of one pass: `count` visual tokens of each video, from its own `first` on.

    The first token is final, the others are drafts, which the engine may take back. Token t is an input of the pass
    that predicts token t + 1; -1 is the last token of the prompt. `common` is the first token where it is the same in
    all videos, else None.
    """

    def __init__(self, first: tuple[int, ...], count: int = 1) -> None:
        self.first, self.count = first, count
        self.common = first[0] if first.count(first[0]) == len(first) else None

    def rows(self, draft: int, rows: int, device: torch.device) -> Tensor:
        """Input token `draft` of every row (0: the final one), int64 [rows]; row r belongs to video r % videos."""
        return torch.tensor(self.first * (rows // len(self.first)), device=device) + draft


Restore = Callable[[Tensor], None]
"""Puts back what a token overwrote, in the rows of these numbers, int64."""


def kept(cache: Tensor, slots: Tensor) -> Restore:
    """A copy of what lies in these slots, int64 [rows], of a cache [layers, rows, heads, slots, width]."""
    before = cache[:, torch.arange(len(slots), device=slots.device), :, slots]

    def restore(rows: Tensor) -> None:
        cache[:, rows, :, slots[rows]] = before[rows]

    return restore
