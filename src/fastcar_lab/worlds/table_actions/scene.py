"""A ball that a person steers, and one to three other objects that it pushes; and how they move.

All places are whole steps of a grid of 2 px. Where everything is in a frame follows from the two frames before it and
from the action: a speed is the way from one frame to the next. So nothing is hidden from who sees the pictures, and
after a mistake the motion continues from what is seen.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from fastcar_cli.inputs.worlds.physics import STEP, Pose
from fastcar_lab.worlds.table.scene import COLORS, GROUNDS, LIGHTS, MATERIALS, SHAPES, SIDE, Thing

Place = tuple[int, int]  # steps of the grid to the right, and down to the point of the ground under an object's middle
State = tuple[Place, ...]  # places of all objects, the ball's first
Action = tuple[int, int]

ACTIONS: tuple[Action, ...] = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))
"""Nothing, to the right, to the left, to the front, to the back."""

STEERED = "ball"
OTHERS = tuple(shape for shape in SHAPES if shape != STEERED)
SIZE = "large"
HALF_WIDTH = {"ball": 7, "cube": 7, "cylinder": 5, "pyramid": 8, "ring": 7}
"""Steps from the middle of an object to what touches its side."""
DEPTH = 8  # steps between two objects, one behind the other, that touch
TOP, BOTTOM = 16, 58  # steps from the upper border within which an object's place is; it is seen whole there
FASTEST = 3  # steps a frame of the steered ball at most
KICKED = 4  # steps a frame of what was hit at most
MOST = 3  # other objects at most


@dataclass(frozen=True)
class Look:
    """What an object looks like."""

    shape: str
    material: str
    color: str


@dataclass(frozen=True)
class Scene:
    """Everything about a session that does not change; the first look is the ball's."""

    looks: tuple[Look, ...]
    ground: str
    light: str

    @property
    def halves(self) -> tuple[int, ...]:
        """`HALF_WIDTH` of each object."""
        return tuple(HALF_WIDTH[look.shape] for look in self.looks)

    @property
    def things(self) -> tuple[Thing, ...]:
        """The objects as `table` draws them."""
        return tuple(Thing(look.shape, look.color, look.material, SIZE, 0, 0) for look in self.looks)


def poses(state: State) -> list[Pose]:
    """Where `table`'s renderer draws the objects."""
    return [Pose(STEP * x, STEP * y, 0, 0) for x, y in state]


def _slower(speed: int) -> int:
    """The speed that friction leaves."""
    return speed - (speed > 0) + (speed < 0)


def _wanted(speed: int, push: int) -> int:
    """Speed of the steered ball along one side."""
    return max(-FASTEST, min(FASTEST, speed + push)) if push else _slower(max(-FASTEST, min(FASTEST, speed)))


def bounds(half: int, axis: int) -> tuple[int, int]:
    """Least and largest place of an object along one side."""
    return (half, SIDE // STEP - half) if axis == 0 else (TOP, BOTTOM)


class _Moves:
    """What happens along one side of the picture between two frames."""

    def __init__(self, at: Sequence[list[int]], wanted: Sequence[int], halves: Sequence[int], axis: int) -> None:
        self.at, self.wanted, self.halves, self.axis = at, wanted, halves, axis
        self.done: dict[int, int] = {}

    def apart(self, i: int, j: int, axis: int) -> int:
        """Steps between the middles of two objects that touch."""
        return self.halves[i] + self.halves[j] if axis == 0 else DEPTH

    def move(self, i: int, steps: int) -> int:
        """Move an object as far as it gets, and what is in its way with it; the steps that it moved."""
        if not steps:
            self.done[i] = 0
            return 0
        axis, way, far = self.axis, 1 if steps > 0 else -1, abs(steps)
        low, high = bounds(self.halves[i], axis)
        here = self.at[i][axis]
        far = min(far, high - here if way > 0 else here - low)
        self.done[i] = way * far
        ahead = []
        for j in range(len(self.at)):
            gap = way * (self.at[j][axis] - here)
            across = abs(self.at[j][1 - axis] - self.at[i][1 - axis])
            if j != i and gap > 0 and across < self.apart(i, j, 1 - axis):
                ahead.append((gap - self.apart(i, j, axis), j))
        for gap, j in sorted(ahead):
            if far <= gap:
                continue
            if j in self.done:
                moved = way * self.done[j]
            else:
                own = max(0, way * self.wanted[j])
                kicked = max(far - gap, min(max(far - gap, own) + 1, KICKED))
                moved = way * self.move(j, way * (kicked if far > gap + own else own))
            far = min(far, max(0, gap + moved))
        self.done[i] = way * far
        return way * far


def step(before: State, now: State, action: Action, halves: Sequence[int]) -> State:
    """The next frame. What is steered gains a step a frame while a key is pressed; all else loses one by friction.

    What is hit slides a step a frame faster than what hit it, at most `KICKED`, if there is room; else both stop.
    """
    at = [list(place) for place in now]
    for axis in (0, 1):
        speeds = [b[axis] - a[axis] for a, b in zip(before, now, strict=True)]
        wanted = [_wanted(speeds[0], action[axis]), *(_slower(max(-KICKED, min(KICKED, v))) for v in speeds[1:])]
        moves = _Moves(at, wanted, halves, axis)
        others = sorted(range(1, len(at)), key=lambda i: (-abs(wanted[i]), now[i][1], now[i][0]))
        for i in (0, *others):
            if i not in moves.done:
                moves.move(i, wanted[i])
        for i, steps in moves.done.items():
            at[i][axis] += steps
    return tuple((x, y) for x, y in at)


def touches(state: State, halves: Sequence[int], slack: int = 0) -> bool:
    """Whether two objects overlap, or are nearer than `slack` steps."""
    for i, (x, y) in enumerate(state):
        for j in range(i):
            wide = halves[i] + halves[j] + slack
            if abs(x - state[j][0]) < wide and abs(y - state[j][1]) < DEPTH + slack:
                return True
    return False


def draw_scene(rng: random.Random, others: int | None = None) -> Scene:
    """A random scene, whose objects have a colour each."""
    count = others or rng.choice((1, 2, 2, 3, 3))
    colors = rng.sample(list(COLORS), count + 1)
    shapes = [STEERED, *(rng.choice(OTHERS) for _ in range(count))]
    looks = tuple(Look(s, rng.choice(MATERIALS), c) for s, c in zip(shapes, colors, strict=True))
    return Scene(looks, rng.choice(GROUNDS), rng.choice(list(LIGHTS)))


def draw_state(scene: Scene, rng: random.Random) -> State:
    """Places where nothing overlaps."""
    halves = scene.halves
    while True:
        sides = [bounds(half, 0) for half in halves]
        state = tuple((rng.randint(low, high), rng.randint(TOP, BOTTOM)) for low, high in sides)
        if not touches(state, halves):
            return state
