"""What a scene of the synthetic world consists of, and how it moves.

The world is finite on purpose: one object of 6 shapes, 7 colours and 2 sizes moves in one of 8
ways before one of 6 backgrounds. Every centre lies on a 4 px grid and every path starts on the
8 px patch grid, so the same look is always cut into the same patches and hence the same codes.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass

SIDE = 64  # height and width of a frame in pixels
FRAMES = 8  # frames of a training video

SHAPES = ("ball", "box", "triangle", "star", "car", "boat")
COLORS: dict[str, tuple[float, float, float]] = {
    "red": (0.86, 0.13, 0.13),
    "orange": (0.97, 0.53, 0.05),
    "yellow": (0.99, 0.88, 0.10),
    "green": (0.05, 0.48, 0.16),
    "blue": (0.12, 0.25, 0.86),
    "purple": (0.52, 0.15, 0.66),
    "pink": (0.98, 0.52, 0.74),
}
SIZES = ("small", "big")
MOTIONS = ("left", "right", "up", "down", "still", "growing", "shrinking", "bouncing")
BACKGROUNDS = ("grass", "sky", "sea", "sand", "night", "road")

ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "size": SIZES,
    "color": tuple(COLORS),
    "shape": SHAPES,
    "motion": MOTIONS,
    "background": BACKGROUNDS,
}
"""Every attribute of a scene with its values, in the order of a plain caption."""

_HALF = {"small": 8, "big": 12}
_GROWTH = {"small": (5, 6, 8, 10), "big": (8, 10, 12, 14)}
_BOUNCE = (0, 4, 12, 24, 12, 4)
_CROSS = (24, 32, 40)
_STARTS = {
    "right": ((16,), _CROSS),
    "left": ((48,), _CROSS),
    "down": (_CROSS, (16,)),
    "bouncing": (_CROSS, (16,)),
    "up": (_CROSS, (48,)),
}
"""x and y of the centres at which a motion may begin; others begin anywhere on the grid of `_CROSS`."""
_STEPS = {"right": (4, 0), "left": (-4, 0), "down": (0, 4), "up": (0, -4)}  # pixels a frame of straight paths


@dataclass(frozen=True)
class Scene:
    """One video of the world: five named attributes and the centre of the object in frame 0 (px)."""

    shape: str
    color: str
    size: str
    motion: str
    background: str
    start: tuple[int, int]

    @property
    def combination(self) -> tuple[str, ...]:
        """The attributes without the start position, in the order of `ATTRIBUTES`."""
        return (self.size, self.color, self.shape, self.motion, self.background)

    @property
    def facing(self) -> int:
        """-1 where the object looks to the left, else 1."""
        return -1 if self.motion == "left" else 1


@dataclass(frozen=True)
class Pose:
    """Where the object is in one frame: centre (px, y grows downwards) and half its width (px)."""

    x: int
    y: int
    half: int


def starts(motion: str) -> tuple[tuple[int, int], ...]:
    """The centres (x, y) at which a video with this motion may begin."""
    return tuple(itertools.product(*_STARTS.get(motion, (_CROSS, _CROSS))))


def poses(scene: Scene, frames: int = FRAMES) -> list[Pose]:
    """The pose in each frame: 4 px a frame for straight paths, two frames a stage when growing."""
    x, y = scene.start
    dx, dy = _STEPS.get(scene.motion, (0, 0))
    path = []
    for t in range(frames):
        half, up = _HALF[scene.size], 0
        match scene.motion:
            case "bouncing":
                up = _BOUNCE[t % 6]
            case "growing":
                half = _GROWTH[scene.size][min(t // 2, 3)]
            case "shrinking":
                half = _GROWTH[scene.size][3 - min(t // 2, 3)]
        path.append(Pose(x + dx * t, y + dy * t + up, half))
    return path


def combinations() -> Iterator[tuple[str, ...]]:
    """Every combination of attribute values, in the order of `ATTRIBUTES`."""
    return itertools.product(*ATTRIBUTES.values())


def scenes_of(combination: tuple[str, ...]) -> list[Scene]:
    """Every scene of one combination, one for each start position."""
    size, color, shape, motion, background = combination
    return [Scene(shape, color, size, motion, background, s) for s in starts(motion)]


def split_combinations(held_out: float = 0.12, seed: int = 7) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """(trained, held out) combinations; the same for everybody who asks with the same arguments."""
    everything = list(combinations())
    random.Random(seed).shuffle(everything)
    n = round(len(everything) * held_out)
    return everything[n:], everything[:n]
