"""Masks of pixels, bool [H, W]: grown, opened, cut into regions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]


def dilated(mask: Mask, times: int = 1) -> Mask:
    """The mask with the four neighbours of its pixels, `times` over."""
    for _ in range(times):
        grown = mask.copy()
        grown[1:] |= mask[:-1]
        grown[:-1] |= mask[1:]
        grown[:, 1:] |= mask[:, :-1]
        grown[:, :-1] |= mask[:, 1:]
        mask = grown
    return mask


def opened(mask: Mask) -> Mask:
    """The pixels that lie in a 2 x 2 square of the mask."""
    squares = np.pad(mask[:-1, :-1] & mask[:-1, 1:] & mask[1:, :-1] & mask[1:, 1:], 1)
    return squares[:-1, :-1] | squares[:-1, 1:] | squares[1:, :-1] | squares[1:, 1:]


def share_around(mask: Mask) -> NDArray[np.float64]:
    """Share of each pixel's 5 x 5 neighbourhood that is in the mask, mirrored at the border."""
    sums = np.pad(np.pad(mask, 2, mode="symmetric").cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    return (sums[5:, 5:] - sums[:-5, 5:] - sums[5:, :-5] + sums[:-5, :-5]) / 25


def regions(mask: Mask, least: int) -> list[Mask]:
    """Regions of `least` pixels or more, largest first; parts within 2 px belong together."""
    parts = [mask & part for part in connected(dilated(mask))]
    return sorted((p for p in parts if p.sum() >= least), key=lambda p: -int(p.sum()))


def connected(mask: Mask) -> list[Mask]:
    """Parts that touch, also at corners, in the order of their first pixels; run by run of each row."""
    edges = np.diff(np.pad(mask, ((0, 0), (1, 1))).astype(np.int8))
    rows, starts = np.nonzero(edges == 1)
    runs = list(zip(rows.tolist(), starts.tolist(), np.nonzero(edges == -1)[1].tolist(), strict=True))
    parent = list(range(len(runs)))

    def root(run: int) -> int:
        while parent[run] != run:
            run = parent[run]
        return run

    above = 0
    for i, (row, start, end) in enumerate(runs):
        while runs[above][0] < row - 1 or (runs[above][0] == row - 1 and runs[above][2] < start):
            above += 1
        j = above
        while runs[j][0] == row - 1 and runs[j][1] <= end:
            a, b = sorted((root(i), root(j)))
            parent[b] = a
            j += 1
    parts: dict[int, Mask] = {}
    for i, (row, start, end) in enumerate(runs):
        parts.setdefault(root(i), np.zeros_like(mask))[row, start:end] = True
    return list(parts.values())
