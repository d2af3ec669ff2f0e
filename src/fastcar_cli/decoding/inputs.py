"""The input tokens of a pass, and snapshots that restore caches after rejected drafts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Index = slice | tuple[Tensor, Tensor | int]


class Inputs:
    """The input tokens of one pass: `count` visual tokens of each video, from its own `first` on.

    The first token is final, the others are drafts. Token t is an input of the pass that predicts token t + 1; -1 is
    the prompt's last token. `common` is the first token if it is the same in all videos, else None; with it tables are
    read by slices, without it by tensors of tokens.
    """

    def __init__(self, first: tuple[int, ...], count: int = 1) -> None:
        self.first, self.count, self.videos = first, count, len(first)
        self.common = first[0] if first.count(first[0]) == len(first) else None

    def tokens(self, rows: int, device: torch.device) -> Tensor:
        """The input tokens of every row, int64 [count, rows]; row r belongs to video r % videos."""
        first = torch.tensor(self.first * (rows // len(self.first)), device=device)
        return first + torch.arange(self.count, device=device)[:, None]

    def index(self, table: Tensor, shift: int = 0, ring: bool = False) -> Index:
        """Index of the inputs, or of the tokens `shift` after them, in a table [tokens, rows, ...]; it selects [count,
        rows, ...]. A table [tokens, 1, ...] serves all rows. A `ring` holds the last tokens, token t at t % its length.
        """
        if self.common is not None:
            begin = (self.common + shift) % len(table) if ring else self.common + shift
            if begin + self.count <= len(table):
                return slice(begin, begin + self.count)
        rows = table.shape[1]
        tokens = self.tokens(self.videos if rows == 1 else rows, table.device)
        tokens = tokens + shift if shift else tokens
        row = 0 if rows == 1 else torch.arange(rows, device=table.device)
        return tokens % len(table) if ring else tokens, row

    def of(self, table: Tensor, shift: int = 0) -> Tensor:
        """Entries of a table for the inputs, see `index`: [count, rows or 1, ...], a view if possible."""
        return table[self.index(table, shift)]

    def __getitem__(self, i: int) -> Inputs:
        """Only input i of every video."""
        return Inputs(tuple(t + i for t in self.first))


class InputsOnDevice(Inputs):
    """`Inputs` whose tokens, int64 [count, P], are on the device."""

    def __init__(self, tokens: Tensor, rows: int) -> None:
        self.count, self.videos, self.common = *tokens.shape, None
        self._tokens = {n: tokens.repeat(1, n // self.videos) for n in {self.videos, rows}}

    def tokens(self, rows: int, device: torch.device) -> Tensor:
        """See `Inputs`."""
        return self._tokens[rows]


Restore = Callable[[Tensor, Tensor], None]
"""Restores what drafts overwrote; takes the index of each draft, from 0, and its row, both int64 [n]."""


def snapshot(cache: Tensor, slots: Tensor) -> Restore:
    """Copy the drafts' slots, int64 [drafts, rows], of a cache [layers, rows, heads, slots, width], to restore them."""
    before = cache[:, torch.arange(slots.shape[1], device=slots.device), :, slots]

    def restore(drafts: Tensor, rows: Tensor) -> None:
        cache[:, rows, :, slots[drafts, rows]] = before[drafts, rows]

    return restore
