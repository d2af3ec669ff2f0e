"""A scene to frames: shadows on the ground, then objects from back to front, then the light of the day."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.inputs.worlds.physics import Pose
from fastcar_lab.worlds.table.ground import PERIOD, ground
from fastcar_lab.worlds.table.scene import COLORS, FRAMES, LIGHTS, SIDE, Scene, Thing
from fastcar_lab.worlds.table.solids import Array
from fastcar_lab.worlds.table.sprites import HALF, SHADOW_SHIFT, Box, Sprite, sprite

Window = tuple[tuple[slice, slice], tuple[slice, slice]]


def window(x: int, y: int, box: Box) -> Window | None:
    """(where in the frame, where in the sprite) a part of a sprite centred at (x, y) px lies, cut at the border."""
    top, bottom, left, right = box
    y0, x0 = y - HALF, x - HALF
    ys, xs = slice(max(y0 + top, 0), min(y0 + bottom, SIDE)), slice(max(x0 + left, 0), min(x0 + right, SIDE))
    if ys.start >= ys.stop or xs.start >= xs.stop:
        return None
    return (ys, xs), (slice(ys.start - y0, ys.stop - y0), slice(xs.start - x0, xs.stop - x0))


def cast_shadow(canvas: Array, look: Sprite, pose: Pose) -> None:
    """Darken the ground in `canvas` [128, 128, 3] in place."""
    right, down = (round(pose.z * s) for s in SHADOW_SHIFT)
    at = window(pose.x + right, pose.y + down, look.shade)
    if at:
        canvas[at[0]] *= look.shadow[at[1]]


def paint(canvas: Array, look: Sprite, color: Array, pose: Pose) -> None:
    """Draw an object on `canvas` [128, 128, 3] in place."""
    at = window(pose.x, pose.y - pose.z, look.box)
    if at:
        here = canvas[at[0]]
        here *= 1 - look.alpha[at[1]]
        here += look.gain[at[1]] * color + look.shine[at[1]]


def draw(things: tuple[Thing, ...], poses: list[Pose], bare: Array) -> Array:
    """One frame in daylight, float32 [128, 128, 3], of objects on an empty ground of that shape."""
    canvas = bare.copy()
    looks = [sprite(t.shape, t.size, t.material, p.turn) for t, p in zip(things, poses, strict=True)]
    for look, pose in zip(looks, poses, strict=True):
        cast_shadow(canvas, look, pose)
    for i in sorted(range(len(things)), key=lambda i: poses[i].y):
        paint(canvas, looks[i], np.asarray(COLORS[things[i].color], np.float32), poses[i])
    return canvas


def empty(scene: Scene, t: int) -> Array:
    """The ground alone in daylight, as the camera sees it in frame t, float32 [128, 128, 3]."""
    return ground(scene.ground, (scene.offset + scene.pan * t) % PERIOD)


def render(scene: Scene, frames: int = FRAMES) -> NDArray[np.uint8]:
    """The video of a scene, uint8 [frames, 128, 128, 3]."""
    return render_frames(scene, range(frames))


def render_frames(scene: Scene, frames: Sequence[int]) -> NDArray[np.uint8]:
    """Some frames of a scene, rising, uint8 [len(frames), 128, 128, 3]."""
    paths, _ = scene.paths(frames[-1] + 1)
    light = np.asarray(LIGHTS[scene.light], np.float32) * 255
    video = np.empty((len(frames), SIDE, SIDE, 3), np.uint8)
    for i, t in enumerate(frames):
        canvas = draw(scene.things, [path[t] for path in paths], empty(scene, t))
        canvas *= light
        canvas += 0.5
        np.clip(canvas, 0, 255, out=canvas)
        video[i] = canvas
    return video
