"""Sessions, and clips out of them."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastcar_lab.worlds.table_actions.codes import GROUND_CODES, PLACES, Codes
from fastcar_lab.worlds.table_actions.keys import Player, random_keys
from fastcar_lab.worlds.table_actions.scene import (
    Action,
    Scene,
    State,
    draw_scene,
    draw_state,
    step,
)


@dataclass(frozen=True)
class Session:
    """A scene, its states, and the keys between them."""

    scene: Scene
    states: list[State]
    actions: list[Action]


@dataclass(frozen=True)
class Clip:
    """Codes [T, 64] of frames as seen, and as they should be; actions [T - 1, 2]; whether a frame counts [T]."""

    seen: Codes
    right: Codes
    actions: NDArray[np.float32]
    counts: NDArray[np.bool_]


def held_out(scene: Scene) -> bool:
    """Whether scenes with these looks, ground and light are kept out of training: one in sixteen."""
    return zlib.crc32(repr(scene).encode()) % 16 == 0


def scene_of(rng: random.Random, *, kept_out: bool = False) -> Scene:
    """A random scene, either of those held out or of the others."""
    while True:
        scene = draw_scene(rng)
        if held_out(scene) == kept_out:
            return scene


def play(rng: random.Random, frames: int, *, kept_out: bool = False) -> Session:
    """A session of so many frames from rest."""
    scene = scene_of(rng, kept_out=kept_out)
    halves = scene.halves
    before = now = draw_state(scene, rng)
    player, anything = Player(rng, halves), random_keys(rng, rng.choice(((1, 1), (1, 6), (4, 16))))
    plays = rng.random() < 0.65
    states, actions = [now], list[Action]()
    for _ in range(1, frames):
        action = player.key(now) if plays else next(anything)
        before, now = now, step(before, now, action, halves)
        states.append(now)
        actions.append(action)
    return Session(scene, states, actions)


def kept_places(clip: Clip, count: int, rng: random.Random) -> list[int]:
    """So many places of a frame, rising: those with an object in any frame, those beside such, and others."""
    order = [rng.random() + 2 for _ in range(PLACES)]
    for at in {int(p) for p in np.nonzero(np.concatenate([clip.seen, clip.right]) >= GROUND_CODES)[1]}:
        row, column = divmod(at, 8)
        for r in range(max(0, row - 1), min(8, row + 2)):
            for c in range(max(0, column - 1), min(8, column + 2)):
                order[8 * r + c] = min(order[8 * r + c], 1 + rng.random())
        order[at] = min(order[at], rng.random())
        order[(at + 1) % PLACES] = min(order[(at + 1) % PLACES], rng.random())
    return sorted(sorted(range(PLACES), key=order.__getitem__)[:count])
