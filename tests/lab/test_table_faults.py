"""Faults planted in rendered videos of the table world: what the analyser must notice, and in how many of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from fastcar_lab.worlds.table.analyser import analyse, judge
from fastcar_lab.worlds.table.ground import PERIOD, ground
from fastcar_lab.worlds.table.render import draw, render
from fastcar_lab.worlds.table.said import said_of
from fastcar_lab.worlds.table.scene import FRAMES, GROUNDS, LIGHTS, SHAPES, SIDE, SIZES, TURNING, Scene, Thing
from fastcar_lab.worlds.table.stories import draw_scene, happens, standing

_DELETED, _CHANGED = 9, 8
"""First frame of a fault."""
_SIDES = (*range(10, 20, 2), *range(110, 120, 2))
_BOTTOM = tuple(range(108, 120, 2))
"""Places within 22 px of a border."""


def _rendered(scene: Scene, at: Callable[[int], Thing | None], which: int) -> NDArray[np.uint8]:
    """A video in which object `which` is `at(frame)`, wherever the scene's own object is, or nothing."""
    paths, _ = scene.paths()
    light = np.asarray(LIGHTS[scene.light], np.float32) * 255
    video = np.empty((FRAMES, SIDE, SIDE, 3), np.uint8)
    for t in range(FRAMES):
        shown, poses = [], []
        for i, own in enumerate(scene.things):
            thing = at(t) if i == which else own
            if thing is not None:
                shown.append(thing)
                poses.append(replace(paths[i][t], turn=paths[i][t].turn if thing.shape in TURNING else 0))
        canvas = draw(tuple(shown), poses, ground(scene.ground, (scene.offset + scene.pan * t) % PERIOD))
        video[t] = np.clip(canvas * light + 0.5, 0, 255)
    return video


def _near_border(rng: random.Random, moves: bool) -> Scene:
    """One object that rests within 22 px of a border or moves along it."""
    while True:
        thing = standing(rng)
        if rng.random() < 0.5:
            thing = replace(thing, x=rng.choice(_SIDES), vy=rng.choice((-4, -2, 2, 4)) if moves else 0)
        else:
            thing = replace(thing, y=rng.choice(_BOTTOM), vx=rng.choice((-6, -4, -2, 2, 4, 6)) if moves else 0)
        scene = Scene((thing,), rng.choice(GROUNDS), rng.choice(list(LIGHTS)), "alone")
        if happens(scene):
            return scene


def _anywhere(rng: random.Random, shapes: tuple[str, ...] = SHAPES) -> tuple[Scene, int]:
    """A scene of any story, and which of its objects stays in the frame and has one of these shapes."""
    while True:
        scene = draw_scene(rng)
        which = rng.randrange(len(scene.things))
        inside = all(8 <= p.x <= SIDE - 8 and p.y <= SIDE - 4 for p in scene.paths()[0][which])
        if inside and scene.things[which].shape in shapes:
            return scene, which


def _changed(rng: random.Random, fault: str) -> tuple[Scene, NDArray[np.uint8]]:
    scene, which = _anywhere(rng, ("cube", "cylinder") if fault == "cube or cylinder" else SHAPES)
    own = scene.things[which]
    if fault == "size":
        other = replace(own, size=next(s for s in SIZES if s != own.size))
    elif fault == "cube or cylinder":
        other = replace(own, shape="cylinder" if own.shape == "cube" else "cube")
    else:
        other = replace(own, shape=rng.choice([s for s in SHAPES if s != own.shape]))
    if fault == "alternating shape":
        return scene, _rendered(scene, lambda t: other if t % 2 else own, which)
    return scene, _rendered(scene, lambda t: own if t < _CHANGED else other, which)


def planted(fault: str, rng: random.Random) -> tuple[Scene, NDArray[np.uint8]]:
    """A scene, and its video with a fault."""
    if fault in ("rests and is deleted", "moves and is deleted"):
        scene = _near_border(rng, fault.startswith("moves"))
        return scene, _rendered(scene, lambda t: scene.things[0] if t < _DELETED else None, 0)
    return _changed(rng, fault)


def noticed(fault: str, count: int) -> float:
    """Share of so many planted faults that the analyser notices."""
    rng = random.Random(fault)
    seen = 0
    for _ in range(count):
        scene, video = planted(fault, rng)
        seen += not judge(analyse(video), said_of(scene))["persists"]
    return seen / count


def test_a_scene_without_a_fault_is_as_it_is_rendered() -> None:
    scene, which = _anywhere(random.Random(5))
    assert np.array_equal(_rendered(scene, lambda _: scene.things[which], which), render(scene))


FAULTS = {
    "rests and is deleted": (36, 0.95),
    "moves and is deleted": (36, 0.95),
    "cube or cylinder": (30, 0.9),
    "any shape": (30, 0.9),
    "size": (36, 0.9),
    "alternating shape": (24, 0.9),
}
"""Every fault, how many of it are planted, and the least share of them to be noticed."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str) -> None:
    """The second cylinder that becomes a cube does so while something passes behind it, and is not."""
    assert noticed(fault, 2) >= (0.5 if fault == "cube or cylinder" else 1)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_nearly_all_planted_faults_are_noticed(fault: str) -> None:
    count, least = FAULTS[fault]
    assert noticed(fault, count) >= least
