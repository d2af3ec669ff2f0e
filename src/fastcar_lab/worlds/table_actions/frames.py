"""Frames of a session as `table` draws them, and what its analyser, which knows nothing of the model, sees in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.inputs.worlds.physics import STEP
from fastcar_lab.worlds.table.analyser.backdrop import find_backdrop
from fastcar_lab.worlds.table.analyser.track import follow
from fastcar_lab.worlds.table.ground import ground
from fastcar_lab.worlds.table.render import draw
from fastcar_lab.worlds.table.scene import LIGHTS, SIDE
from fastcar_lab.worlds.table_actions.evaluate import Seen
from fastcar_lab.worlds.table_actions.scene import SIZE, Look, Scene, State, poses


def render(scene: Scene, states: Sequence[State]) -> NDArray[np.uint8]:
    """Frames uint8 [T, 128, 128, 3]."""
    light = np.asarray(LIGHTS[scene.light], np.float32) * 255
    empty, things = ground(scene.ground, 0), scene.things
    video = np.empty((len(states), SIDE, SIDE, 3), np.uint8)
    for frame, state in zip(video, states, strict=True):
        frame[:] = np.clip(draw(things, poses(state), empty) * light + 0.5, 0, 255)
    return video


def watch(video: NDArray[np.uint8]) -> list[Seen]:
    """Objects by frame of a video [T, 128, 128, 3]; those of another size are none of this world's."""
    frames = np.asarray(video / np.float32(255), np.float32)
    tracks, _ = follow(frames, find_backdrop(frames))
    seen: list[Seen] = [{} for _ in video]
    for track in tracks:
        if track.look.size != SIZE:
            continue
        look = Look(track.look.shape, track.look.material, track.look.color)
        for frame, at in zip(seen, track.at, strict=True):
            if at is not None:
                frame.setdefault(look, []).append((round(at[0] / STEP), round(at[1] / STEP)))
    return seen
