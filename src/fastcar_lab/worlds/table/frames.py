"""Rendered material for the tokenizer: a pool of clips, of which the newest replace the oldest as training proceeds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcar_lab.training.tokenizer import to_patches
from fastcar_lab.worlds.table.render import render, render_frames
from fastcar_lab.worlds.table.scene import FRAMES, SIDE
from fastcar_lab.worlds.table.stories import any_scene, held_out, scene_of
from fastcar_lab.worlds.table.tokenizer import PATCH

_COUNT = SIDE // PATCH
_PLACES = _COUNT * _COUNT
_PIXELS = PATCH * PATCH * 3
_ANYWHERE = 8  # of so many patches that are drawn one is from anywhere, which is nearly always ground


def cut(clip: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A clip [T, 128, 128, 3] as patches [T, 64, 768]."""
    return np.ascontiguousarray(to_patches(torch.from_numpy(clip), PATCH).numpy())


def changed_patches(clip: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Patches [T, 64] of a clip [T, 128, 128, 3] that differ from the frame before; the first frame as the second."""
    patches = cut(clip)
    differs = (patches[1:] != patches[:-1]).any(-1)
    return np.concatenate([differs[:1], differs])


def _neighbours() -> tuple[Tensor, Tensor]:
    """Places [64, 9] around each place, row by row, and which of them are within the frame."""
    around = torch.arange(3) - 1
    rows = (torch.arange(_COUNT)[:, None] + around)[:, None, :, None].expand(_COUNT, _COUNT, 3, 3)
    columns = rows.permute(1, 0, 3, 2)
    inside = (rows >= 0) & (rows < _COUNT) & (columns >= 0) & (columns < _COUNT)
    places = rows.clamp(0, _COUNT - 1) * _COUNT + columns.clamp(0, _COUNT - 1)
    return places.reshape(_PLACES, 9), inside.reshape(_PLACES, 9)


def _mixed(seed: int, number: int) -> NDArray[np.uint8]:
    """16 frames of as many scenes [16, 128, 128, 3], which no story binds: many more looks than a clip has."""
    rng = random.Random(seed * 1_000_003 + number)
    scenes = (any_scene(rng) for _ in itertools.count())
    chosen = itertools.islice((s for s in scenes if not held_out(s)), FRAMES)
    return np.concatenate([render_frames(s, [rng.randrange(FRAMES)]) for s in chosen])


class Pool:
    """Clips and as many mixtures of single frames (`_mixed`), of which the newest replace the oldest. They have the
    numbers of the last steps, so what it holds follows from seed and step alone. `patches` uint8 [size, 16 * 64, 768].
    With `encode`, which makes codes [16, 64, depth] of a clip, it knows those too.
    """

    def __init__(
        self, size: int, a_step: int, seed: int, step: int, encode: Callable[[NDArray[np.uint8]], Tensor] | None = None
    ) -> None:
        self.size, self.a_step, self.seed, self.encode = size, a_step, seed, encode
        self.patches = np.empty((size, FRAMES * _PLACES, _PIXELS), np.uint8)
        self.codes: list[Tensor] = [torch.empty(0)] * size
        self._distinct: list[NDArray[np.intp]] = [np.empty(0, np.intp)] * size
        self._near, self._inside = _neighbours()
        first = step * a_step
        for number in range(first, first + size):
            self._render(number)

    def advance(self, step: int) -> None:
        """Bring in the clips of this step."""
        for i in range(self.a_step):
            self._render(self.size + step * self.a_step + i)

    def _render(self, number: int) -> None:
        at = number % self.size
        clip = render(scene_of(self.seed, number)) if number % 2 else _mixed(self.seed, number)
        self.patches[at] = cut(clip).reshape(-1, _PIXELS)
        rows = self.patches[at].view(np.dtype((np.void, _PIXELS)))[:, 0]
        self._distinct[at] = np.unique(rows, return_index=True)[1]
        if self.encode is not None:
            self.codes[at] = self.encode(clip).flatten(0, 1)

    def draw(self, count: int, rng: random.Random) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """(clip, place in it) [count] of random patches: most of them each look of a clip equally often."""
        numbers = np.random.default_rng(rng.getrandbits(32))
        clips = numbers.integers(0, self.size, count)
        shares = numbers.random(count)
        places = np.array(
            [self._distinct[c][int(u * len(self._distinct[c]))] for c, u in zip(clips, shares, strict=True)]
        )
        anywhere = numbers.integers(0, FRAMES * _PLACES, count)
        return clips, np.where(np.arange(count) % _ANYWHERE == 0, anywhere, places)

    def pixels(self, clips: NDArray[np.intp], places: NDArray[np.intp]) -> Tensor:
        """Patches [count, 768] in 0..1."""
        return torch.from_numpy(self.patches[clips, places]).float() / 255

    def codes_around(self, clips: NDArray[np.intp], places: NDArray[np.intp]) -> tuple[Tensor, Tensor]:
        """Codes [count, 9, depth] of patches and what is around them, and which of these are within the frame."""
        at = torch.from_numpy(places)
        near = at[:, None] // _PLACES * _PLACES + self._near[at % _PLACES]
        codes = torch.stack([self.codes[c][n] for c, n in zip(clips, near, strict=True)])
        return codes, self._inside[at % _PLACES]
