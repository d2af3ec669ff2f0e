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

    def of_rows(self, rows: int, device: torch.device) -> Tensor:
        """The input tokens of every row, int64 [count, rows]; row r belongs to video r % videos."""
        first = torch.tensor(self.first * (rows // len(self.first)), device=device)
        return first + torch.arange(self.count, device=device)[:, None]


Restore = Callable[[Tensor, Tensor], None]
"""Puts back what drafts overwrote: the number of each, the first draft being 0, and its row, both int64 [n]."""


def kept(cache: Tensor, slots: Tensor) -> Restore:
    """A copy of the slots of drafts, int64 [drafts, rows], in a cache [layers, rows, heads, slots, width]."""
    before = cache[:, torch.arange(slots.shape[1], device=slots.device), :, slots]

    def restore(drafts: Tensor, rows: Tensor) -> None:
        cache[:, rows, :, slots[drafts, rows]] = before[drafts, rows]

    return restore
