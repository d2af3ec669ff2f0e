"""Decodes token ids of a prompt: objects, their start and motion, and their surroundings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic.dataclasses import dataclass as checked_dataclass

from fastcar_cli.inputs.worlds.physics import STEP, Body
from fastcar_cli.system.plain_data import WHOLE, Number, Size

_LOOKS: Final = ("shape", "color", "material", "size")


@checked_dataclass(frozen=True, config=WHOLE)
class MapSpec:
    """What placements are made of.

    Attributes:
        meanings: what each id of the vocabulary says of placements, as "shape 2" or "across -4", or "". Kinds are
            shape, color, material, size; column and row (cells), right and down (steps in the cell), across and along
            (px a frame), hop, spin, turned (steps of 15 degrees); floor, light, pan (px a frame) and shift (steps).
        reach: px from a thing's middle to what touches it beside it, by shape and then size.
        mass: its weight, by size.
        shadow: px (right, down) that a shadow moves for each px of height.
        cell, period: px of a cell, and after which grounds repeat, both ways.
        hidden: units that join what is known of one object.

    """

    meanings: tuple[str, ...]
    reach: tuple[Size, ...]
    mass: tuple[Size, ...]
    shadow: tuple[Number, Number]
    cell: Size
    period: Size
    hidden: Size

    def count(self, kind: str) -> int:
        """Distinct values of a kind."""
        return 1 + max(int(m.split()[1]) for m in self.meanings if m.split()[:1] == [kind])


@dataclass
class _Thing(Body):
    shape: int = 0
    color: int = 0
    material: int = 0
    size: int = 0


@dataclass
class Scenery:
    """The placements of a prompt; without things if it has none."""

    things: list[_Thing] = field(default_factory=list)
    floor: int = 0
    light: int = 0
    pan: int = 0
    shift: int = 0


def read_scenery(ids: Sequence[int], spec: MapSpec) -> Scenery:
    """The placements in a prompt's ids: looks come before their thing, places after it."""
    scenery, placed = Scenery(), set()
    looks = dict.fromkeys(_LOOKS, 0)
    moves = {"across": "vx", "along": "vy", "hop": "hop", "spin": "spin", "turned": "turn"}
    places = {"column": ("x", spec.cell), "row": ("y", spec.cell), "right": ("x", STEP), "down": ("y", STEP)}
    for kind, number in (meaning.split() for i in ids if (meaning := spec.meanings[i])):
        value = int(number)
        if kind in looks:
            looks[kind] = value
            if kind == "shape":
                sizes = len(spec.mass)
                reach, mass = spec.reach[value * sizes + looks["size"]], spec.mass[looks["size"]]
                scenery.things.append(_Thing(reach, mass, **looks))
        elif kind in ("floor", "light", "pan", "shift"):
            setattr(scenery, kind, value)
        elif scenery.things and kind in places:
            name, step = places[kind]
            setattr(scenery.things[-1], name, getattr(scenery.things[-1], name) + value * step)
            placed |= {len(scenery.things)} if kind == "column" else set()
        elif scenery.things:
            setattr(scenery.things[-1], moves[kind], value)
    if len(placed) < len(scenery.things):
        scenery.things = []
    return scenery
