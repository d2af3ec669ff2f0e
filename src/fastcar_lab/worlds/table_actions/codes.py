"""The codes of a frame: 8 x 8, one for 16 x 16 pixels, enumerated from what the renderer can draw there.

A code says which piece of which ground in which light is there; or that an object's middle is there, what the object
looks like, and where in the 16 x 16 pixels its middle is, on the grid of 2 px. No two middles can be in one place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fastcar_lab.worlds.table.scene import COLORS, GROUNDS, LIGHTS, MATERIALS, SHAPES
from fastcar_lab.worlds.table_actions.scene import Look, Place, Scene, State

GRID = 8  # codes along one side
PLACES = GRID * GRID
CELL = 8  # steps of the grid of 2 px along one side of a place
RISE = 5  # steps from the point of the ground under an object up to its middle, as seen
TILES = 2  # pieces of ground along one side before it repeats

GROUND_CODES = len(GROUNDS) * len(LIGHTS) * TILES * TILES
KINDS = tuple((shape, material) for shape in SHAPES for material in MATERIALS)
SIZES = (len(KINDS), len(COLORS), CELL, CELL)
"""Values of kind, colour, step to the right and step down of an object's code, which is the number they make."""
CODES = GROUND_CODES + int(np.prod(SIZES))

Codes = NDArray[np.int64]


def ground_codes(scene: Scene) -> Codes:
    """Codes [64] of the empty frame."""
    rows, columns = np.mgrid[:GRID, :GRID] % TILES
    which = GROUNDS.index(scene.ground) * len(LIGHTS) + list(LIGHTS).index(scene.light)
    return np.asarray(which * TILES * TILES + rows * TILES + columns, np.int64).ravel()


def object_code(look: Look, place: Place) -> tuple[int, int]:
    """Place in the frame's 64, and code there, of an object."""
    (column, right), (row, down) = divmod(place[0], CELL), divmod(place[1] - RISE, CELL)
    kind = KINDS.index((look.shape, look.material))
    number = ((kind * SIZES[1] + list(COLORS).index(look.color)) * CELL + right) * CELL + down
    return row * GRID + column, GROUND_CODES + number


def encode(scene: Scene, states: Sequence[State]) -> Codes:
    """Codes [T, 64] of frames."""
    codes = np.tile(ground_codes(scene), (len(states), 1))
    for row, state in zip(codes, states, strict=True):
        for look, place in zip(scene.looks, state, strict=True):
            at, code = object_code(look, place)
            row[at] = code
    return codes


def parts(codes: Codes) -> Codes:
    """Codes [...] of objects as kind, colour, step to the right, step down: [..., 4]; of ground without meaning."""
    return np.stack(np.unravel_index(np.maximum(codes - GROUND_CODES, 0), SIZES), -1)


def objects(codes: Codes) -> Iterator[tuple[Look, Place]]:
    """Looks and places of the objects in a frame's codes [64]."""
    for at in np.flatnonzero(codes >= GROUND_CODES):
        kind, color, right, down = (int(n) for n in parts(codes[at]))
        row, column = divmod(int(at), GRID)
        shape, material = KINDS[kind]
        yield Look(shape, material, list(COLORS)[color]), (column * CELL + right, row * CELL + down + RISE)
