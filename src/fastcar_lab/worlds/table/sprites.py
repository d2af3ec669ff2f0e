"""Each look of an object, ray-cast once: cover, light and shadow on a small square of pixels.

An object's look is linear in its colour, `rgb = ground * (1 - alpha) + color * gain + shine`, so one
sprite serves every colour. The shadow is a factor on the ground.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.inputs.worlds.physics import RISE, SLANT
from fastcar_lab.worlds.table.scene import RADIUS
from fastcar_lab.worlds.table.solids import FAR, Array, intersect

HALF = 36  # half the side of a sprite in px; its middle is the point of the ground under the object
_SAMPLES = 3
_LIGHT = np.array([-0.50, -0.30, 0.81], np.float32) / np.linalg.norm([-0.50, -0.30, 0.81]).astype(np.float32)
_VIEW = np.array([0, RISE, -SLANT], np.float32)
# In float32, which numpy before 2 leaves where a Python number is met.
SHADOW_SHIFT = (
    float(-_LIGHT[0] / _LIGHT[2] / np.float32(RISE)),
    float(-_LIGHT[1] / _LIGHT[2] / np.float32(RISE) * np.float32(-SLANT)),
)
"""How far (right, down) in px a shadow moves for a pixel of height above the ground."""
_DARK = 0.50  # what a full shadow takes of the ground's light


Box = tuple[int, int, int, int]

_STREAKS = {"cube": (0.6, 0.30), "pyramid": (0.6, 0.30), "cylinder": (0.0, 0.16)}
"""How a window is mirrored by metal whose sides have no highlight: its lean, and its width in radii."""


@dataclass(frozen=True)
class Sprite:
    """Look of an object: `alpha`, `gain`, `shine` and `shadow`, each float32 [72, 72, 1]. `box` is (top, bottom, left,
    right) of the part where alpha is above 0, `shade` of that with a shadow.
    """

    alpha: Array
    gain: Array
    shine: Array
    shadow: Array
    box: Box
    shade: Box


def _shade(material: str, normal: Array, streak: Array) -> tuple[Array, Array]:
    """Gain on the colour and white light [...], of normals [..., 3]; `streak` is where metal mirrors a window."""
    lit = np.maximum(normal @ _LIGHT, 0)
    mirrored = _VIEW - 2 * (normal @ _VIEW)[..., None] * normal
    glint = np.maximum(mirrored @ _LIGHT, 0)
    if material == "rubber":
        return (0.34 + 0.76 * lit).astype(np.float32), (0.05 * glint**6).astype(np.float32)
    # A metal mirrors a bright sky above a dark floor, with a soft edge between them, in its own colour.
    sky = 1 / (1 + np.exp(-7 * (mirrored[..., 2] - 0.12)))
    gain = 0.30 + 0.46 * lit + 0.38 * sky + 0.16 * streak
    return gain.astype(np.float32), (0.85 * glint**20 + 0.06 * sky + 0.15 * streak).astype(np.float32)


def _soft(a: Array, rounds: int = 1) -> Array:
    """An image [72, 72] as [72, 72, 1], each pixel mixed with its neighbours (1, 2, 1) in both directions."""
    for _ in range(rounds):
        for axis in (0, 1):
            before, after = (np.take(a, np.clip(np.arange(2 * HALF) + i, 0, 2 * HALF - 1), axis) for i in (-1, 1))
            a = np.asarray((before + 2 * a + after) / 4, np.float32)
    return a[..., None]


def _mean(a: Array) -> Array:
    """Mean over the samples of each pixel, softened: a lens is never sharper than its pixels."""
    n = 2 * HALF
    return _soft(a.reshape(n, _SAMPLES, n, _SAMPLES).mean((1, 3)))


def _box(mask: NDArray[np.bool_]) -> Box:
    """(top, bottom, left, right) around what is set in a mask [72, 72, 1]."""
    rows, columns = np.flatnonzero(mask.any((1, 2))), np.flatnonzero(mask.any((0, 2)))
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


def _shadow(shape: str, angle: float, radius: float) -> Array:
    """Factor on the ground's light, [72, 72, 1]: the share of a wide lamp that each point still sees."""
    at = np.arange(2 * HALF, dtype=np.float32) + 0.5 - HALF
    v, u = np.meshgrid(at, at, indexing="ij")
    ground = np.asarray(np.stack([u, -v / SLANT, np.full_like(u, 1e-3)], -1) / radius, np.float32)
    hidden = np.zeros_like(u)
    lamps = [(r * np.cos(a), r * np.sin(a)) for r, k in ((0.14, 5), (0.34, 9)) for a in np.arange(k) * 2 * np.pi / k]
    for dx, dy in lamps:
        towards = _LIGHT + np.array([dx, dy, 0], np.float32)
        hidden += intersect(shape, angle, ground, (towards / np.linalg.norm(towards)).astype(np.float32))[0] < FAR / 2
    return 1 - _DARK * _soft(hidden / len(lamps), 2)


@functools.cache
def sprite(shape: str, size: str, material: str, turn: int) -> Sprite:
    """The sprite of an object turned by `turn` x 15 degrees; at 0 its sides are 22.5 degrees off the frame's."""
    radius, angle = RADIUS[size], (turn + 1.5) * np.pi / 12
    at = (np.arange(2 * HALF * _SAMPLES, dtype=np.float32) + 0.5) / _SAMPLES - HALF
    v, u = np.meshgrid(at / radius, at / radius, indexing="ij")
    origin = np.stack([u, -v * SLANT, -v * RISE], -1) - 8 * _VIEW
    t, normal = intersect(shape, angle, origin, _VIEW)
    inside = t < FAR / 2
    lean, width = _STREAKS.get(shape, (0.0, 0.0))
    streak: Array = np.exp(-np.square((u + lean * (v + 0.5) + 0.25) / width)) if width else np.zeros_like(u)
    gain, shine = _shade(material, np.where(inside[..., None], normal, 0), streak)
    alpha, gain, shine = (_mean(np.where(inside, a, 0)) for a in (np.ones_like(t), gain, shine))
    shadow = _shadow(shape, angle, radius)
    return Sprite(alpha, gain, shine, shadow, _box(alpha > 0), _box(shadow < 1))
