"""Antialiased rendering of scenes: silhouettes sampled 8 x 8 a pixel, composited over a background.

An object's look is linear in its colour, `rgb = background * (1 - alpha) + color * gain + fixed`,
so one template serves every colour; `fixed` holds what has a colour of its own (wheels, windows).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastcar_lab.worlds.mini.scene import COLORS, FRAMES, SIDE, Pose, Scene, poses

Array = NDArray[np.float32]
_SAMPLES = 8

_BASE: dict[str, tuple[float, float, float]] = {
    "grass": (0.60, 0.78, 0.40),
    "sky": (0.70, 0.87, 0.98),
    "sea": (0.30, 0.64, 0.70),
    "sand": (0.91, 0.82, 0.63),
    "night": (0.08, 0.09, 0.19),
    "road": (0.50, 0.51, 0.53),
}
_MOTIF: dict[str, tuple[tuple[float, float, float], tuple[str, ...]]] = {
    # Repeats every 8 px, so a background is one patch however large it is.
    "grass": (
        (0.50, 0.70, 0.32),
        ("........", ".#......", ".##.....", "........", ".....#..", "....##..", "........", "........"),
    ),
    "sea": (
        (0.42, 0.73, 0.78),
        ("........", ".###....", "#...#...", "........", "........", "....###.", "...#...#", "........"),
    ),
    "sand": (
        (0.83, 0.73, 0.54),
        ("........", "..#.....", "........", "......#.", "........", ".#......", ".....#..", "........"),
    ),
    "night": (
        (0.55, 0.56, 0.62),
        ("........", "........", "..#.....", "........", "........", "........", "........", "........"),
    ),
    "road": (
        (0.45, 0.46, 0.48),
        ("........", ".....#..", "........", "..#.....", "........", "......#.", "...#....", "........"),
    ),
}


@dataclass(frozen=True)
class Template:
    """An object of one shape, half width and facing on a square grid of 2 x (half + 1) pixels."""

    alpha: Array  # [n, n], the covered share of each pixel
    gain: Array  # [n, n], the factor on the object's colour
    fixed: Array  # [n, n, 3], the light of parts with a colour of their own


def _polygon(u: Array, v: Array, points: list[tuple[float, float]]) -> NDArray[np.bool_]:
    """Even-odd test of sample points against a polygon."""
    inside = np.zeros(u.shape, dtype=bool)
    for (x0, y0), (x1, y1) in zip(points, points[1:] + points[:1], strict=True):
        crosses = (y0 > v) != (y1 > v)
        at = x0 + (v - y0) * (x1 - x0) / (y1 - y0 if y1 != y0 else 1.0)
        inside ^= crosses & (u < at)
    return inside


def _parts(shape: str, u: Array, v: Array) -> list[tuple[NDArray[np.bool_], float, tuple[float, float, float]]]:
    """Parts from back to front as (where, gain, fixed rgb) over unit coordinates in [-1, 1]."""
    own = (0.0, 0.0, 0.0)
    light = (0.45, 0.45, 0.45)
    dark = (0.10, 0.10, 0.12)
    if shape == "ball":
        return [(u**2 + v**2 < 0.97**2, 1.0, own), ((u + 0.36) ** 2 + (v + 0.36) ** 2 < 0.26**2, 0.55, light)]
    if shape == "box":
        body = (abs(u) < 0.88) & (abs(v) < 0.88)
        return [(body, 1.0, own), (body & (abs(u) < 0.5) & (abs(v) < 0.5), 0.72, own)]
    if shape == "triangle":
        return [((v > -0.95) & (v < 0.8) & (abs(u) < (v + 0.95) / 1.75 * 0.98), 1.0, own)]
    if shape == "star":
        angles = -np.pi / 2 + np.arange(10) * np.pi / 5
        radii = np.where(np.arange(10) % 2 == 0, 1.0, 0.42)
        points = [(float(r * np.cos(a)), float(r * np.sin(a)) + 0.07) for a, r in zip(angles, radii, strict=True)]
        return [(_polygon(u, v, points), 1.0, own)]
    if shape == "car":
        body = (abs(u) < 0.99) & (v > -0.1) & (v < 0.5)
        cabin = _polygon(u, v, [(-0.8, -0.1), (-0.62, -0.62), (0.12, -0.62), (0.48, -0.1)])
        window = _polygon(u, v, [(-0.6, -0.1), (-0.5, -0.48), (0.04, -0.48), (0.28, -0.1)])
        wheels = ((abs(u) - 0.55) ** 2 + (v - 0.5) ** 2) < 0.29**2
        return [(body | cabin, 1.0, own), (window, 0.0, (0.80, 0.92, 0.98)), (wheels, 0.0, dark)]
    if shape == "boat":
        hull = _polygon(u, v, [(-0.98, 0.38), (0.98, 0.38), (0.62, 0.88), (-0.62, 0.88)])
        mast = (abs(u) < 0.07) & (v > -0.96) & (v < 0.4)
        sail = _polygon(u, v, [(0.12, -0.92), (0.12, 0.22), (0.85, 0.22)])
        jib = _polygon(u, v, [(-0.12, -0.6), (-0.12, 0.22), (-0.65, 0.22)])
        return [(hull, 1.0, own), (mast, 0.0, dark), (sail | jib, 0.55, light)]
    raise ValueError(f"unknown shape {shape!r}")


@functools.cache
def template(shape: str, half: int, facing: int = 1) -> Template:
    """The template of a shape of this half width (px); `facing` -1 mirrors it."""
    n = 2 * (half + 1)
    grid = (np.arange(n * _SAMPLES, dtype=np.float32) + 0.5) / _SAMPLES - (half + 1)
    v, u = np.meshgrid(grid / half, grid / half * facing, indexing="ij")
    alpha = np.zeros(u.shape, np.float32)
    gain = np.zeros(u.shape, np.float32)
    fixed = np.zeros((*u.shape, 3), np.float32)
    for where, factor, rgb in _parts(shape, u.astype(np.float32), v.astype(np.float32)):
        alpha[where], gain[where], fixed[where] = 1.0, factor, rgb

    def shrink(a: Array) -> Array:
        return np.asarray(a.reshape(n, _SAMPLES, n, _SAMPLES, *a.shape[2:]).mean(axis=(1, 3)), np.float32)

    return Template(shrink(alpha), shrink(gain), shrink(fixed))


@functools.cache
def background(name: str) -> Array:
    """The empty scene, float32 [64, 64, 3] in 0..1."""
    cell = np.tile(np.asarray(_BASE[name], np.float32), (8, 8, 1))
    if name in _MOTIF:
        rgb, rows = _MOTIF[name]
        cell[np.array([[c == "#" for c in row] for row in rows])] = rgb
    return np.tile(cell, (SIDE // 8, SIDE // 8, 1))


def place(canvas: Array, shape: str, color: tuple[float, float, float], pose: Pose, facing: int = 1) -> Array:
    """A copy of `canvas` [H, W, 3] with one object drawn on it; what lies outside is cut off."""
    t = template(shape, pose.half, facing)
    n = t.alpha.shape[0]
    y0, x0 = pose.y - n // 2, pose.x - n // 2
    h, w = canvas.shape[:2]
    ys, xs = slice(max(y0, 0), min(y0 + n, h)), slice(max(x0, 0), min(x0 + n, w))
    out = canvas.copy()
    if ys.start >= ys.stop or xs.start >= xs.stop:
        return out
    inner = (slice(ys.start - y0, ys.stop - y0), slice(xs.start - x0, xs.stop - x0))
    rgb = np.asarray(color, np.float32)
    out[ys, xs] = out[ys, xs] * (1 - t.alpha[inner][..., None]) + t.gain[inner][..., None] * rgb + t.fixed[inner]
    return out


def image(scene: Scene, pose: Pose) -> Array:
    """One frame, float32 [64, 64, 3] in 0..1."""
    return place(background(scene.background), scene.shape, COLORS[scene.color], pose, scene.facing)


def render(scene: Scene, frames: int = FRAMES) -> Array:
    """The video of a scene, float32 [frames, 64, 64, 3] in 0..1."""
    return np.stack([image(scene, pose) for pose in poses(scene, frames)])


def coverage(scene: Scene, pose: Pose) -> Array:
    """The share of each pixel that the object covers, float32 [64, 64]."""
    t = template(scene.shape, pose.half, scene.facing)
    n = t.alpha.shape[0]
    padded = np.zeros((SIDE + 2 * n, SIDE + 2 * n), np.float32)
    y, x = pose.y - n // 2 + n, pose.x - n // 2 + n
    padded[y : y + n, x : x + n] = t.alpha
    return padded[n : n + SIDE, n : n + SIDE]
