"""Rendered material for the tokenizer: a pool of clips, of which the newest replace the oldest as training goes on."""

from __future__ import annotations

import random

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.world.table.render import render
from fastcar_cli.world.table.scene import SIDE
from fastcar_cli.world.table.stories import scene_of
from fastcar_cli.world.table.tokenizer import PATCH

_COUNT = SIDE // PATCH


def cut(clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A clip [T, 128, 128, 3] as patches [T, 64, 768]."""
    blocks = clip.reshape(-1, _COUNT, PATCH, _COUNT, PATCH, 3).swapaxes(2, 3)
    return np.ascontiguousarray(blocks.reshape(len(clip), _COUNT * _COUNT, PATCH * PATCH * 3))


def changed_patches(clip: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Patches [T, 64] of a clip [T, 128, 128, 3] that differ from the frame before; the first frame as the second."""
    patches = cut(clip)
    differs = (patches[1:] != patches[:-1]).any(-1)
    return np.concatenate([differs[:1], differs])


class Pool:
    """The clips with the numbers of the last steps, so what it holds follows from seed and step alone.

    `clips` uint8 [size, 16, 128, 128, 3]; `patches` holds of each clip `share` patches, no two of them
    the same unless it has fewer.
    """

    def __init__(self, size: int, share: int, a_step: int, seed: int, step: int) -> None:
        self.size, self.share, self.a_step, self.seed = size, share, a_step, seed
        self.clips = np.empty((size, 16, SIDE, SIDE, 3), np.uint8)
        self.busy: list[NDArray[np.intp]] = [np.empty(0, np.intp)] * size
        self.patches = np.empty((size, share, PATCH * PATCH * 3), np.uint8)
        first = step * a_step
        for number in range(first, first + size):
            self._render(number)

    def advance(self, step: int) -> None:
        """Bring in the clips of this step."""
        for i in range(self.a_step):
            self._render(self.size + step * self.a_step + i)

    def _render(self, number: int) -> None:
        at = number % self.size
        clip = render(scene_of(self.seed, number))
        self.clips[at] = clip
        self.busy[at] = np.flatnonzero(changed_patches(clip))
        patches = cut(clip).reshape(-1, PATCH * PATCH * 3)
        rows = patches.view(np.dtype((np.void, patches.shape[-1])))[:, 0]
        distinct = np.unique(rows, return_index=True)[1]
        rng = np.random.default_rng(number)
        chosen = rng.choice(distinct, self.share, replace=len(distinct) < self.share)
        self.patches[at] = patches[chosen]

    def draw_patches(self, count: int, rng: random.Random) -> NDArray[np.uint8]:
        """Random patches [count, 768]."""
        flat = self.patches.reshape(-1, PATCH * PATCH * 3)
        return np.asarray(flat[np.random.default_rng(rng.getrandbits(32)).integers(0, len(flat), count)])

    def draw_windows(self, count: int, side: int, rng: random.Random) -> NDArray[np.uint8]:
        """Windows of side x side patches [count, 16 side, 16 side, 3], most of them where something changes."""
        out = np.empty((count, side * PATCH, side * PATCH, 3), np.uint8)
        most = _COUNT - side
        for i in range(count):
            at = rng.randrange(self.size)
            t, row, column = rng.randrange(16), rng.randint(0, most), rng.randint(0, most)
            places = self.busy[at]
            if len(places) and rng.random() < 0.85:
                t, place = divmod(int(places[rng.randrange(len(places))]), _COUNT * _COUNT)
                row, column = (min(max(p - rng.randrange(side), 0), most) for p in divmod(place, _COUNT))
            y, x = row * PATCH, column * PATCH
            out[i] = self.clips[at, t, y : y + side * PATCH, x : x + side * PATCH]
        return out
