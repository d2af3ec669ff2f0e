"""Passes that take several input tokens of a video, on the Index Register: a slot for each input token of each row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.bool_]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """Passes in order, from the first visual token on; row r belongs to video r % videos.

    taken [passes]: input tokens of each video. accepted [passes, videos]: how many of them became final. replayed
    [layers, rows, inputs]: decisions of all inputs, pass by pass; inputs is the sum of `taken`. Raises ValueError where
    these contradict each other.
    """

    taken: Counts
    accepted: Counts
    replayed: Bits

    def __post_init__(self) -> None:
        taken, accepted, rows = self.taken, self.accepted, self.replayed.shape[1]
        if accepted.ndim != 2 or taken.shape != accepted.shape[:1] or not accepted.size or rows % accepted.shape[1]:
            raise ValueError(f"passes of shape {taken.shape}, {accepted.shape} for {rows} rows")
        if taken.min() < 1 or accepted.min() < 0 or (accepted > taken[:, None]).any():
            raise ValueError("a pass accepts more tokens than it takes, or takes none")
        if taken.sum() != self.replayed.shape[2]:
            raise ValueError(f"{taken.sum()} input tokens, decisions of {self.replayed.shape[2]}")

    def within(self, tokens: int) -> Windows:
        """The same passes with at most so many input tokens of a video: a longer one is taken in several.

        One of them whose tokens all follow a rejected one is left out, since its drafts are then known to be wrong.
        """
        parts = -(-self.taken // tokens)
        number = np.repeat(np.arange(len(parts)), parts)
        offset = (np.arange(len(number)) - (parts.cumsum() - parts)[number]) * tokens
        taken = np.minimum(self.taken[number] - offset, tokens)
        accepted = np.clip(self.accepted[number] - offset[:, None], 0, taken[:, None])
        kept = (offset == 0) | accepted.any(1)
        inputs = np.repeat(kept, taken)
        return Windows(taken[kept], accepted[kept], self.replayed[:, :, inputs])

    @property
    def first(self) -> Counts:
        """The first input token of each pass and video, [passes, videos]."""
        return self.accepted.cumsum(0) - self.accepted

    @property
    def tokens(self) -> Counts:
        """The input token in each slot (draft x rows + row), [slots, passes]; -1 where a pass leaves it empty."""
        rows, videos = self.replayed.shape[1], self.accepted.shape[1]
        first = np.tile(self.first, rows // videos).T
        drafts = np.arange(self.taken.max())[:, None, None]
        return np.where(drafts < self.taken, first + drafts, -1).reshape(-1, len(self.taken))

    @property
    def slots(self) -> Bits:
        """Which slots replay, [layers, slots, passes]; empty ones do not."""
        layers, _, inputs = self.replayed.shape
        drafts = np.arange(self.taken.max())[:, None]
        there = drafts < self.taken
        column = np.where(there, self.taken.cumsum() - self.taken + drafts, 0).clip(max=inputs - 1)
        by_draft = np.ascontiguousarray((self.replayed[:, :, column] & there).transpose(0, 2, 1, 3))
        return by_draft.reshape(layers, -1, len(self.taken))

    def final(self, tokens: int) -> Bits:
        """Decisions of the first input tokens of each row, those that became final: [layers, rows, tokens].

        Raises ValueError where a video has fewer.
        """
        if self.accepted.sum(0).min() < tokens:
            raise ValueError(f"{self.accepted.sum(0).min()} final tokens, not {tokens}")
        begin = self.taken.cumsum() - self.taken
        rows, videos = self.replayed.shape[1], self.accepted.shape[1]
        columns = []
        for first, accepted in zip(self.first.T, self.accepted.T, strict=True):
            # The pass in which each token became final.
            number = np.repeat(np.arange(len(accepted)), accepted)[:tokens]
            columns.append(begin[number] + np.arange(tokens) - first[number])
        return np.take_along_axis(self.replayed, np.tile(np.stack(columns), (rows // videos, 1))[None], 2)
