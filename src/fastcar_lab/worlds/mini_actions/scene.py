"""One still object of `mini`'s world, and the pushes that move it: what an action-conditioned model learns here.

An action is a push (dx, dy) in pixels, a multiple of 4 up to 8 either way; the object moves by it until the next frame,
and a wall at the edge of the picture stops it. Looks are `mini`'s: its small balls, boxes, triangles and stars in all
colours before all backgrounds, so that a frame drawn by `mini` can be pushed on.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np

from fastcar_lab.worlds.mini.render import Array, background, place
from fastcar_lab.worlds.mini.scene import BACKGROUNDS, COLORS, SIDE, Pose

SHAPES = ("ball", "box", "triangle", "star")
HALF = 8
"""Half the width of every object (px)."""
CELL = 4
"""Side of the grid (px) on which centres lie and along which a frame is cut into codes."""
PLACES = SIDE // CELL - 2 * HALF // CELL + 1
"""Places of a centre along one side; place 0 is `HALF` from the edge."""
FRAMES = 8
"""Frames of a training video, the given one included."""
REACH = 2
"""Largest push along one side, in cells."""

Place = tuple[int, int]
"""Column and row of a centre, 0 to PLACES - 1."""
Push = tuple[int, int]
"""(dx, dy) in cells."""


@dataclass(frozen=True)
class Look:
    """What does not change in a video."""

    shape: str
    color: str
    background: str


@dataclass(frozen=True)
class Story:
    """One video: a look, where the object begins, and a push between each frame and the next."""

    look: Look
    start: Place
    pushes: tuple[Push, ...]

    @property
    def places(self) -> list[Place]:
        """Where the object is in each frame."""
        places = [self.start]
        for push in self.pushes:
            column, row = (min(max(a + b, 0), PLACES - 1) for a, b in zip(places[-1], push, strict=True))
            places.append((column, row))
        return places

    @property
    def actions(self) -> list[tuple[float, float]]:
        """The pushes in pixels, as a model is given them."""
        return [(float(CELL * dx), float(CELL * dy)) for dx, dy in self.pushes]


def centre(spot: Place) -> tuple[int, int]:
    """Where a centre is in pixels, (x, y)."""
    return HALF + CELL * spot[0], HALF + CELL * spot[1]


def image(look: Look, spot: Place) -> Array:
    """One frame, float32 [64, 64, 3] in 0..1."""
    x, y = centre(spot)
    return place(background(look.background), look.shape, COLORS[look.color], Pose(x, y, HALF))


def render(story: Story) -> Array:
    """A video, float32 [frames, 64, 64, 3] in 0..1."""
    return np.stack([image(story.look, spot) for spot in story.places])


def looks(held_out: float = 0.12, seed: int = 7) -> tuple[list[Look], list[Look]]:
    """(trained, held out) looks; the same for everybody who asks with the same arguments."""
    everything = [Look(*parts) for parts in itertools.product(SHAPES, COLORS, BACKGROUNDS)]
    random.Random(seed).shuffle(everything)
    n = round(len(everything) * held_out)
    return everything[n:], everything[:n]


def draw_story(choice: list[Look], rng: random.Random, frames: int = FRAMES) -> Story:
    """A video drawn at random; a third of the pushes are those before once more, some leave the object where it is."""
    pushes: list[Push] = []
    for _ in range(frames - 1):
        number = rng.random()
        if pushes and number < 0.35:
            pushes.append(pushes[-1])
        elif number < 0.5:
            pushes.append((0, 0))
        else:
            pushes.append((rng.randint(-REACH, REACH), rng.randint(-REACH, REACH)))
    return Story(rng.choice(choice), (rng.randrange(PLACES), rng.randrange(PLACES)), tuple(pushes))
