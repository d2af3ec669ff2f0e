"""Every code of this world, enumerated from the renderer, as `mini`'s are (world/patches.py).

A given frame has 16 x 16 codes, one for 4 x 4 pixels: which piece of an object in which colour, or which piece of a
background. A later frame has 4 x 4 codes, one for 16 x 16 pixels: which of the 16 patches it is, and where in it the
object lies, if it does. Shape, colour and background of later frames are not in their codes: they are what the
tokenizer's decoder looks up in the given frame.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastcar_lab.worlds.mini.render import background, template
from fastcar_lab.worlds.mini.scene import BACKGROUNDS, COLORS, SIDE
from fastcar_lab.worlds.mini_actions.scene import CELL, HALF, PLACES, SHAPES, Look, Place, Story

CELLS = SIDE // CELL
"""Codes of a given frame along one side."""
GRID = 4
"""Codes of a later frame along one side."""
WIDE = 2 * HALF // CELL
"""Cells that an object covers along one side."""

Codes = NDArray[np.int16]


@dataclass(frozen=True)
class Dictionary:
    """Both codebooks.

    Attributes:
        grounds: codes of a background's 2 x 2 cells, by its name.
        objects: codes of an object's 4 x 4 cells by shape and colour, -1 where nothing of it is seen.
        context: code by code of a given frame (piece, colour) of an object, or (background, -1).
        patches: codes of a later frame's patch (row, column) by the object's place, -1 where it is not there.
        dynamics: code by code of a later frame its patch, and the place of the object or None.

    """

    grounds: dict[str, Codes]
    objects: dict[tuple[str, str], Codes]
    context: tuple[tuple[int, int], ...]
    patches: dict[tuple[Place, Place], int]
    dynamics: tuple[tuple[Place, Place | None], ...]

    def given(self, look: Look, spot: Place) -> Codes:
        """Codes [256] of a frame that a model continues."""
        codes = np.tile(self.grounds[look.background], (CELLS // 2, CELLS // 2))
        column, row = spot
        window = codes[row : row + WIDE, column : column + WIDE]
        own = self.objects[look.shape, look.color]
        window[own >= 0] = own[own >= 0]
        return codes.ravel()

    def later(self, spot: Place) -> Codes:
        """Codes [16] of a later frame."""
        patches = list(itertools.product(range(GRID), range(GRID)))
        return np.array([self.patches.get((patch, spot), i) for i, patch in enumerate(patches)], np.int16)

    def of(self, story: Story) -> tuple[Codes, Codes]:
        """Codes [256] of the first frame and [frames - 1, 16] of the others."""
        first, *others = story.places
        return self.given(story.look, first), np.stack([self.later(spot) for spot in others])


def _touches(patch: int, spot: int) -> bool:
    """Whether an object at this place is seen in this patch, along one side."""
    cells = CELLS // GRID
    return spot < cells * (patch + 1) and spot + WIDE > cells * patch


@functools.cache
def dictionary() -> Dictionary:
    """The codes; the same for everybody."""
    context: list[tuple[int, int]] = []
    seen: dict[bytes, int] = {}
    grounds: dict[str, Codes] = {}
    for g, name in enumerate(BACKGROUNDS):
        cells = np.zeros((2, 2), np.int16)
        for a, b in itertools.product(range(2), range(2)):
            pixels = background(name)[CELL * a : CELL * (a + 1), CELL * b : CELL * (b + 1)]
            code = seen.setdefault(pixels.tobytes(), len(seen))
            if code == len(context):
                context.append((g, -1))
            cells[a, b] = code
        grounds[name] = cells
    pieces: dict[bytes, int] = {}
    kinds = {shape: np.full((WIDE, WIDE), -1, np.int16) for shape in SHAPES}
    for shape, (a, b) in itertools.product(SHAPES, itertools.product(range(WIDE), range(WIDE))):
        made = template(shape, HALF)
        # A template has a margin of one pixel.
        rows, columns = (slice(1 + CELL * i, 1 + CELL * (i + 1)) for i in (a, b))
        parts = [part[rows, columns] for part in (made.alpha, made.gain, made.fixed)]
        if parts[0].max() > 0:
            kinds[shape][a, b] = pieces.setdefault(b"".join(p.tobytes() for p in parts), len(pieces))
    objects: dict[tuple[str, str], Codes] = {}
    for c, color in enumerate(COLORS):
        begin = len(context)
        context += [(piece, c) for piece in range(len(pieces))]
        for shape, kind in kinds.items():
            objects[shape, color] = np.where(kind >= 0, kind + begin, -1).astype(np.int16)
    sides = list(itertools.product(range(GRID), range(GRID)))
    dynamics: list[tuple[Place, Place | None]] = [(patch, None) for patch in sides]
    patches: dict[tuple[Place, Place], int] = {}
    for patch, spot in itertools.product(sides, itertools.product(range(PLACES), range(PLACES))):
        if _touches(patch[0], spot[1]) and _touches(patch[1], spot[0]):
            patches[patch, spot] = len(dynamics)
            dynamics.append((patch, spot))
    return Dictionary(grounds, objects, tuple(context), patches, tuple(dynamics))
