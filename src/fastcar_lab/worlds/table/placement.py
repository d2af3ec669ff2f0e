"""What captions leave open of a scene, as tokens: where things begin, how fast they are, what they look like.

In training a prompt holds all of it, after the words that name a thing. In use the seed picks one of the placements
that are kept for what the prompt says (`placements.py`). So how many things there are, and where, is decided before
the first frame, not by chance at each of its tokens.
"""

from __future__ import annotations

from fastcar_cli.inputs.worlds.physics import STEP
from fastcar_lab.worlds.table.scene import COLORS, GROUNDS, LIGHTS, MATERIALS, SIZES, Scene, Thing

CELL = 16  # places are given in cells of so many pixels, and where in the cell
_INSIDE = range(CELL // STEP)
_SPEEDS = (-6, -4, -2, 2, 4, 6)

TOKENS: tuple[str, ...] = (
    *(f"column {c}" for c in range(-2, 10)),
    *(f"row {r}" for r in range(8)),
    *(f"right by {i}" for i in _INSIDE),
    *(f"down by {i}" for i in _INSIDE),
    *(f"across {v}" for v in _SPEEDS),
    *(f"along {v}" for v in _SPEEDS),
    *(f"hop {v}" for v in (10, 14)),
    *(f"spin {v}" for v in (-1, 1)),
    "turned",
    *(f"pan {v}" for v in (-4, -2, 2, 4)),
    *(f"ground {i}" for i in range(CELL)),
)
"""Tokens that no word stands for."""

LOOKS = {"size": SIZES, "color": tuple(COLORS), "material": MATERIALS}
"""What is drawn for a thing of which it is not said."""
AROUND = {"ground": GROUNDS, "light": tuple(LIGHTS)}  # what is said of a scene
USUAL = {"light": "day"}  # what goes without saying: captions always name the other light


def of_thing(thing: Thing) -> tuple[str, ...]:
    """Where a thing begins and how it moves."""
    (column, right), (row, down) = divmod(thing.x, CELL), divmod(thing.y, CELL)
    tokens = [f"column {column}", f"right by {right // STEP}", f"row {row}", f"down by {down // STEP}"]
    moves = {"across": thing.vx, "along": thing.vy, "hop": thing.hop, "spin": thing.spin}
    tokens += [f"{name} {value}" for name, value in moves.items() if value]
    return (*tokens, "turned") if thing.turn else tuple(tokens)


def looks_of(thing: Thing) -> dict[str, str]:
    """What a thing looks like, by the names of `LOOKS`."""
    return {"size": thing.size, "color": thing.color, "material": thing.material}


def of_scene(scene: Scene) -> list[tuple[str, ...]]:
    """The placement of a scene: tokens of each thing in the order of the caption, then the camera's."""
    camera = (f"pan {scene.pan}", f"ground {scene.offset // STEP}") if scene.pan else ()
    return [*(of_thing(t) for t in scene.things), camera]
