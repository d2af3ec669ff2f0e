"""Frames of a session, as `table` draws them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastcar_lab.worlds.table.ground import ground
from fastcar_lab.worlds.table.render import draw
from fastcar_lab.worlds.table.scene import LIGHTS, SIDE
from fastcar_lab.worlds.table_actions.scene import Scene, State, poses


def render(scene: Scene, states: Sequence[State]) -> NDArray[np.uint8]:
    """Frames uint8 [T, 128, 128, 3]."""
    light = np.asarray(LIGHTS[scene.light], np.float32) * 255
    empty, things = ground(scene.ground, 0), scene.things
    video = np.empty((len(states), SIDE, SIDE, 3), np.uint8)
    for frame, state in zip(video, states, strict=True):
        frame[:] = np.clip(draw(things, poses(state), empty) * light + 0.5, 0, 255)
    return video
