"""Objects of `table` in a prompt, and their positions in every frame: straight paths, bounces, elastic collisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic.dataclasses import dataclass as checked_dataclass

from fastcar_cli.system.plain_data import WHOLE, Number, Size

STEP = 2  # pitch of the position grid in pixels
SLANT, RISE = 0.6, 0.8  # sine and cosine of the camera's elevation: how long depth and height appear (orthographic)
TURNS = 6  # steps of 15 degrees after which a turning object looks the same
GRAVITY = 4  # acceleration in the image, in pixels per frame squared


@dataclass
class Body:
    """The quantities that determine an object's path."""

    reach: int  # px from its centre to the point where another object touches it
    mass: int
    x: int = 0  # px on the ground at frame 0, to the right
    y: int = 0  # towards the viewer
    vx: int = 0  # px per frame
    vy: int = 0  # px per frame
    turn: int = 0  # steps of 15 degrees
    spin: int = 0  # steps per frame
    hop: int = 0  # px per frame, upwards, when it leaves the ground


@dataclass(frozen=True)
class Pose:
    """An object's pose in a frame: `x`, `y` on the ground and `z` above it (px), `turn` in steps of 15 degrees."""

    x: int
    y: int
    z: int
    turn: int


@dataclass(frozen=True)
class Contact:
    """Objects `first` and `second` touch in `frame`; their new speeds apply from the next frame on."""

    frame: int
    first: int
    second: int


def contact_distance(reach: int, along_y: bool) -> int:
    """Distance in px between two objects that touch side by side or, `along_y`, in depth; `reach`: sum of both."""
    return STEP * round(reach * SLANT / STEP) if along_y else reach


def height(hop: int, t: int) -> int:
    """Height in px after `t` frames of endless bounces at speed `hop`; a bounce takes (2 hop + GRAVITY) / GRAVITY."""
    if not hop:
        return 0
    t %= (2 * hop + GRAVITY) // GRAVITY
    return hop * t - GRAVITY * t * (t - 1) // 2


def _even(value: float) -> int:
    return STEP * round(value / STEP)


def _collide(a: Body, b: Body, va: int, vb: int) -> tuple[int, int]:
    """Speeds after an elastic collision along one line, rounded to the grid."""
    total = a.mass + b.mass
    after_a = ((a.mass - b.mass) * va + 2 * b.mass * vb) / total
    after_b = ((b.mass - a.mass) * vb + 2 * a.mass * va) / total
    return _even(after_a), _even(after_b)


def simulate(things: Sequence[Body], pan: int, frames: int) -> tuple[list[list[Pose]], list[Contact]]:
    """Poses [things][frames] in px of the frame, and the contacts in order; `pan`: the camera's px per frame."""
    x, y = [thing.x for thing in things], [thing.y for thing in things]
    v = [[thing.vx, thing.vy] for thing in things]
    paths: list[list[Pose]] = [[] for _ in things]
    contacts: list[Contact] = []
    for t in range(frames):
        for i, thing in enumerate(things):
            turn = (thing.turn + thing.spin * t) % TURNS
            paths[i].append(Pose(x[i] - pan * t, y[i], height(thing.hop, t), turn))
        for i, a in enumerate(things):
            for j in range(i + 1, len(things)):
                b = things[j]
                dx, dy = x[j] - x[i], y[j] - y[i]
                for axis, (gap, off) in enumerate(((dx, dy), (dy, dx))):
                    closing = (v[i][axis] - v[j][axis]) * (1 if gap > 0 else -1)
                    if off == 0 and closing > 0 and abs(gap) <= contact_distance(a.reach + b.reach, axis == 1):
                        v[i][axis], v[j][axis] = _collide(a, b, v[i][axis], v[j][axis])
                        contacts.append(Contact(t, i, j))
        for i in range(len(things)):
            x[i] += v[i][0]
            y[i] += v[i][1]
    return paths, contacts


_LOOKS: Final = ("shape", "color", "material", "size")


@checked_dataclass(frozen=True, config=WHOLE)
class MapSpec:
    """The attributes of placements.

    `meanings`: the attribute of each id in the vocabulary, such as "shape 2" or "across -4", or "". Kinds are shape,
    color, material, size; column and row (cells), right and down (steps in the cell), across and along (px per frame),
    hop, spin, turned (steps of 15 degrees); floor, light, pan (px per frame) and shift (steps).
    """

    meanings: tuple[str, ...]
    reach: tuple[Size, ...]  # px from an object's centre to one that touches it at its side, by shape, then size
    mass: tuple[Size, ...]  # by size
    shadow: tuple[Number, Number]  # px (right, down) that a shadow moves per px of height
    cell: Size  # px
    period: Size  # px after which the ground repeats, in x and in y
    hidden: Size  # hidden units that combine the attributes of one object

    def count(self, kind: str) -> int:
        """Number of values of a kind."""
        return 1 + max(int(m.split()[1]) for m in self.meanings if m.split()[:1] == [kind])


@dataclass
class _Thing(Body):
    shape: int = 0
    color: int = 0
    material: int = 0
    size: int = 0


@dataclass
class Scenery:
    """The objects and the scene of a prompt; without objects if the prompt has no placement."""

    things: list[_Thing] = field(default_factory=list)
    floor: int = 0
    light: int = 0
    pan: int = 0
    shift: int = 0


def read_scenery(ids: Sequence[int], spec: MapSpec) -> Scenery:
    """The placements in a prompt's ids: attributes precede their object, its position and motion follow it."""
    scenery, placed = Scenery(), set()
    looks = dict.fromkeys(_LOOKS, 0)
    moves = {"across": "vx", "along": "vy", "hop": "hop", "spin": "spin", "turned": "turn"}
    places = {"column": ("x", spec.cell), "row": ("y", spec.cell), "right": ("x", STEP), "down": ("y", STEP)}
    for kind, number in (meaning.split() for i in ids if (meaning := spec.meanings[i])):
        value = int(number)
        if kind in looks:
            looks[kind] = value
            if kind == "shape":
                reach, mass = spec.reach[value * len(spec.mass) + looks["size"]], spec.mass[looks["size"]]
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
