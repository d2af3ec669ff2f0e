"""The words of the table world: one token for each thing that can be said, and the ways to say it."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import cast

from fastcar_cli.inputs.worlds.placement_text import Placements, PlacementTokenizer
from fastcar_lab.worlds.table.placement import AROUND, LOOKS, TOKENS, USUAL
from fastcar_lab.worlds.table.scene import SHAPES, TURNING

PROMPT_LENGTH = 40  # tokens of every prompt, padding included

# Longest phrases win, so "to the left of" is a place and "to the left" a direction.
PHRASES: dict[str, tuple[str, ...]] = {
    "ball": ("ball", "sphere", "marble", "orb", "globe", "balls"),
    "cube": ("cube", "box", "block", "cubes", "dice", "die"),
    "cylinder": ("cylinder", "can", "drum", "tin", "cylinders", "tube"),
    "pyramid": ("pyramid", "tent", "pyramids"),
    "ring": ("ring", "torus", "donut", "doughnut", "hoop", "rings"),
    "red": ("red", "crimson", "scarlet"),
    "orange": ("orange", "tangerine"),
    "yellow": ("yellow", "golden", "gold"),
    "green": ("green", "emerald"),
    "cyan": ("cyan", "turquoise", "teal", "light blue"),
    "blue": ("blue", "dark blue", "navy"),
    "purple": ("purple", "violet", "lilac"),
    "white": ("white", "silver"),
    "metal": ("metal", "metallic", "shiny", "steel", "polished"),
    "rubber": ("rubber", "matte", "dull", "plastic"),
    "small": ("small", "little", "tiny"),
    "large": ("large", "big", "huge"),
    "still": (
        "stands", "standing", "stands still", "standing still", "rests", "resting", "lies", "lying", "stays",
        "is still", "does not move", "doesn't move", "not moving", "still", "stays still", "sits", "stand", "rest",
        "stay", "waits", "remains",
    ),
    "moves": (
        "moves", "moving", "rolls", "rolling", "slides", "sliding", "goes", "going", "glides", "gliding", "travels",
        "runs", "drifts", "heads", "heading", "move", "roll", "slide", "passes", "passing", "pass", "go", "crosses",
        "comes", "coming", "come",
    ),
    "left": ("left", "to the left", "leftwards", "leftward", "from right to left", "towards the left"),
    "right": ("right", "to the right", "rightwards", "rightward", "from left to right", "towards the right"),
    "front": (
        "forward", "forwards", "to the front", "towards the viewer", "toward the viewer", "towards the camera",
        "toward the camera", "towards us", "closer", "nearer", "down", "downwards",
    ),
    "back": (
        "backward", "backwards", "to the back", "away", "away from the viewer", "away from the camera",
        "farther away", "further away", "away from us", "up", "upwards",
    ),
    "slow": ("slowly", "slow", "gently", "calmly"),
    "fast": ("quickly", "fast", "swiftly", "rapidly"),
    "turns": (
        "turns", "turning", "spins", "spinning", "rotates", "rotating", "turns around", "spins around",
        "turns on the spot", "turns in place", "spins in place", "rotates in place", "turn", "spin", "rotate",
    ),
    "bounces": (
        "bounces", "bouncing", "hops", "hopping", "jumps", "jumping", "bounces up and down", "bouncing up and down",
        "jumps up and down", "jumping up and down", "bounce", "jump", "hop", "up and down",
    ),
    "enters": ("enters", "entering", "comes in", "coming in", "appears", "rolls in", "slides in", "enter"),
    "from_left": ("from the left", "from the left side", "from left"),
    "from_right": ("from the right", "from the right side", "from right"),
    "leaves": (
        "leaves", "leaving", "goes out", "disappears", "rolls out", "slides out", "exits", "leave", "out of the frame",
        "out of the picture", "out of view", "leaves the frame", "leaves the picture", "exits the frame",
    ),
    "hits": (
        "hits", "hitting", "strikes", "striking", "bumps into", "collides with", "knocks into", "crashes into",
        "pushes", "hit", "strike", "runs into", "rolls into", "slides into", "collide with", "bounces into",
    ),
    "in_front_of": ("in front of", "before"),
    "behind": ("behind", "in back of"),
    "left_of": ("to the left of", "left of", "on the left of"),
    "right_of": ("to the right of", "right of", "on the right of"),
    "grey": (
        "grey floor", "gray floor", "concrete", "grey table", "gray table", "grey ground", "gray ground", "stone",
        "grey", "gray", "concrete floor", "grey surface", "gray surface",
    ),
    "wood": (
        "wood", "wooden table", "wooden floor", "wooden ground", "planks", "parquet", "wooden", "wooden surface",
        "table of wood", "floor of wood", "boards",
    ),
    "grass": ("grass", "lawn", "meadow", "green grass", "green lawn", "turf"),
    "checker": (
        "checkered floor", "checkerboard", "chessboard", "checkered table", "tiles", "tiled floor", "checkered",
        "checker", "chequered floor", "checkered ground", "chess board",
    ),
    "day": ("day", "daylight", "daytime", "by day", "broad daylight", "sunlight"),
    "dusk": ("dusk", "evening", "sunset", "in the evening", "twilight", "evening light"),
    "pan_left": (
        "camera pans left", "camera pans to the left", "camera moves left", "camera moves to the left",
        "camera panning left", "camera panning to the left", "camera moving to the left",
    ),
    "pan_right": (
        "camera pans right", "camera pans to the right", "camera moves right", "camera moves to the right",
        "camera panning right", "camera panning to the right", "camera moving to the right",
    ),
}  # fmt: skip

FILLERS = frozenset(
    """
    a an and are as at during camera clip color colored colour coloured floor footage for frame from ground in into
    is it its of on one onto out over picture piece place scene screen seen shape shaped shot show showing shows side
    size sized some surface table
    that the then there there's this to toward towards video view viewer where which while
    who with across along another object thing light under made
    """.split()
)
"""Known words that say nothing the model can draw; they get no token."""

SPECIALS = ("<pad>", "<bos>", "<vi_start>")
VOCABULARY: tuple[str, ...] = (*SPECIALS, *PHRASES, *TOKENS)
"""Token strings by id: specials first, then one token for every entry of `PHRASES`, then those of placements."""


_ONLY = {token: TURNING for token in TOKENS if token.split()[0] in ("turned", "spin")}
"""Tokens of placements that belong to some shapes alone."""


@cache
def _placements() -> Placements:
    """What `placements.py` wrote."""
    file = resources.files("fastcar_lab.worlds.table") / "placements.json"
    return cast(Placements, json.loads(file.read_text(encoding="utf-8")))


def tokenizer_with(placements: Placements) -> PlacementTokenizer:
    """The text tokenizer of the model `table` with these placements."""
    return PlacementTokenizer(
        VOCABULARY, PHRASES, sorted(FILLERS), PROMPT_LENGTH, AROUND, SHAPES, LOOKS, USUAL, placements, _ONLY
    )


def table_tokenizer() -> PlacementTokenizer:
    """The text tokenizer of the model `table`."""
    return tokenizer_with(_placements())
