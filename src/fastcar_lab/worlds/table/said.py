"""What is said of a video of the table world: by the scene that it was rendered from, or by a caption's tokens.

A scene says everything. A caption leaves open what it does not name, and may be written by anybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fastcar_lab.worlds.table.scene import COLORS, GROUNDS, LIGHTS, MATERIALS, SHAPES, SIZES, Scene, Thing

LOOKS: dict[str, tuple[str, ...]] = {"color": tuple(COLORS), "shape": SHAPES, "material": MATERIALS, "size": SIZES}
"""What an object is, and what it may be."""
_WAYS = {"left": (-1, 0), "right": (1, 0), "front": (0, 1), "back": (0, -1)}
_MEETINGS = ("hits", "in_front_of", "behind", "left_of", "right_of")


@dataclass(frozen=True)
class SaidThing:
    """One object; None is what nothing is said of. `deed` is still, moves, turns or bounces; `way` the signs of its
    motion to the right and towards the viewer; `enters` and `leaves` name a side.
    """

    color: str | None = None
    shape: str | None = None
    material: str | None = None
    size: str | None = None
    deed: str | None = None
    way: tuple[int, int] | None = None
    enters: str | None = None
    leaves: str | None = None


@dataclass(frozen=True)
class Said:
    """All of it; None is what nothing is said of. `camera` is the sign of its motion to the right. `relation` is how
    the first object meets the second: hits, chain (which hits the third), in_front_of or behind (passing it), left_of,
    right_of, or none.
    """

    things: tuple[SaidThing, ...]
    ground: str | None = None
    light: str | None = None
    camera: int = 0
    relation: str | None = None


def _deed(thing: Thing) -> str:
    if thing.hop:
        return "bounces"
    if thing.spin:
        return "turns"
    return "moves" if thing.moves else "still"


def said_of(scene: Scene) -> Said:
    """What a scene says."""
    things = []
    for thing in scene.things:
        way = (int(np.sign(thing.vx)), int(np.sign(thing.vy)))
        things.append(SaidThing(thing.color, thing.shape, thing.material, thing.size, _deed(thing), way))
    if scene.story == "enter":
        things[0] = replace(things[0], way=None, enters="left" if scene.things[0].vx > 0 else "right")
    if scene.story == "leave":
        things[0] = replace(things[0], way=None, leaves="right" if scene.things[0].vx > 0 else "left")
    base = scene.story.rstrip("+")
    relation = {"hit": "hits", "chain": "chain", "front": "in_front_of", "behind": "behind"}.get(base)
    if base == "apart" and not any(t.moves for t in scene.things[:2]):
        gap = scene.things[0].x - scene.things[1].x
        if abs(gap) >= 30:
            relation = "left_of" if gap < 0 else "right_of"
    camera = int(np.sign(scene.pan))
    return Said(tuple(things), scene.ground, scene.light, camera, relation)


def said_in(tokens: Sequence[str]) -> Said:
    """What the tokens of a caption say, read from left to right; tokens are those of `lexicon.PHRASES`. Words for looks
    belong to the next object named, words for deeds to the last one. What is hit or passed stands still, if nothing
    else is said of it.
    """
    things: list[SaidThing] = []
    looks: dict[str, str] = {}
    ground = light = relation = None
    camera = 0

    def note(**words: object) -> None:
        if things:
            things[-1] = replace(things[-1], **words)  # type: ignore[arg-type]

    for token in tokens:
        kind = next((k for k, values in LOOKS.items() if token in values), None)
        if kind == "shape":
            met = relation not in (None, "left_of", "right_of") and len(things) == (2 if relation == "chain" else 1)
            still = {"deed": "still", "way": (0, 0)} if met else {}
            things.append(SaidThing(**looks, **{"shape": token, **still}))  # type: ignore[arg-type]
            looks = {}
        elif kind is not None:
            looks[kind] = token
        elif token in GROUNDS:
            ground = token
        elif token in LIGHTS:
            light = token
        elif token in ("pan_left", "pan_right"):
            camera = 1 if token == "pan_right" else -1
        elif token in _MEETINGS:
            relation = "chain" if relation == token == "hits" else token
        elif token in ("still", "turns"):
            note(deed=token, way=(0, 0))
        elif token in ("moves", "bounces"):
            note(deed=token, way=(0, 0) if token == "bounces" else None)
        elif token == "enters":
            note(deed="moves", way=None)
        elif token in ("from_left", "from_right"):
            note(enters=token.removeprefix("from_"))
        elif token == "leaves":
            note(deed="moves", way=None, leaves="")
        elif token in _WAYS and things:
            last = things[-1]
            if last.leaves is not None:
                note(leaves=token)
            else:
                x, y = last.way or (0, 0)
                note(way=(x + _WAYS[token][0], y + _WAYS[token][1]))
    return Said(tuple(things), ground, light, camera, relation)
