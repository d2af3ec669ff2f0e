"""Where the things of `table` are in every frame: straight paths, bounces and elastic collisions, on a grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

STEP = 2  # pitch of the position grid in pixels
SLANT, RISE = 0.6, 0.8  # sine and cosine of the camera's elevation: how long depth and height appear (orthographic)
TURNS = 6  # steps of 15 degrees after which a turning object looks the same
GRAVITY = 4  # acceleration in pixels per frame squared, as seen


@dataclass
class Body:
    """What decides a thing's path.

    `reach`: px to what touches it; `x`, `y`: px on the ground at frame 0, right and towards the viewer; `vx`, `vy`: px
    a frame; `turn`: steps of 15 degrees, `spin`: steps a frame; `hop`: px a frame as it leaves the ground.
    """

    reach: int
    mass: int
    x: int = 0
    y: int = 0
    vx: int = 0
    vy: int = 0
    turn: int = 0
    spin: int = 0
    hop: int = 0


@dataclass(frozen=True)
class Pose:
    """Where an object is in one frame: `x`, `y` on the ground (px), `z` above it, `turn` of 15 degrees each."""

    x: int
    y: int
    z: int
    turn: int


@dataclass(frozen=True)
class Contact:
    """Objects `first` and `second` touch in `frame`; from the next frame on their speeds have changed."""

    frame: int
    first: int
    second: int


def contact_distance(reach: int, along_y: bool) -> int:
    """Distance in px between two objects that touch side by side, or one behind the other; `reach` of both together."""
    return STEP * round(reach * SLANT / STEP) if along_y else reach


def height(hop: int, t: int) -> int:
    """Height in px, t frames into endless bounces at speed `hop`, of (2 hop + GRAVITY) / GRAVITY frames each."""
    if not hop:
        return 0
    t %= (2 * hop + GRAVITY) // GRAVITY
    return hop * t - GRAVITY * t * (t - 1) // 2


def _even(value: float) -> int:
    return STEP * round(value / STEP)


def _collide(a: Body, b: Body, va: int, vb: int) -> tuple[int, int]:
    """Speeds after an elastic collision along one line, on the grid."""
    total = a.mass + b.mass
    after_a = ((a.mass - b.mass) * va + 2 * b.mass * vb) / total
    after_b = ((b.mass - a.mass) * vb + 2 * a.mass * va) / total
    return _even(after_a), _even(after_b)


def simulate(things: Sequence[Body], pan: int, frames: int) -> tuple[list[list[Pose]], list[Contact]]:
    """Poses [things][frames] in px of the frame, and the contacts in order; `pan`: px a frame of the camera."""
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
