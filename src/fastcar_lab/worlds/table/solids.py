"""Rays against unit solids: ball, cube, cylinder, pyramid and ring rest on the ground z = 0.

A ray is origin [..., 3] + t * direction [3]. x points to the right, y away from the viewer, z up.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
FAR = 1e6

_CUBE = 0.82
_CYLINDER = (0.68, 2.1)  # its radius and its height: narrower and taller than a cube, so one is not taken for the other
_PYRAMID = (0.96, 1.85)  # half its base and its height
_RING = (0.80, 0.28)  # radius of the circle, which is upright, and of the tube around it


def _quadratic(a: float, b: Array, c: Array) -> tuple[Array, Array]:
    """Both roots of a t^2 + 2 b t + c, near and far; (FAR, -FAR) where there is none."""
    disc = b * b - a * c
    root = np.sqrt(np.maximum(disc, 0))
    hit = disc > 0
    return np.where(hit, (-b - root) / a, FAR), np.where(hit, (-b + root) / a, -FAR)


def _convex(o: Array, d: Array, planes: list[tuple[tuple[float, float, float], float]]) -> tuple[Array, Array]:
    """First hit and normal of the body within half spaces n . p <= k."""
    near = np.full(o.shape[:-1], -FAR, np.float32)
    far = np.full(o.shape[:-1], FAR, np.float32)
    normal = np.zeros(o.shape, np.float32)
    for plane, k in planes:
        n = np.asarray(plane, np.float32)
        speed = float(n @ d)
        gap = k - o @ n
        if abs(speed) < 1e-7:
            near = np.where(gap < 0, FAR, near)
            continue
        t = gap / speed
        if speed < 0:
            normal[t > near] = n
            near = np.maximum(near, t)
        else:
            far = np.minimum(far, t)
    return np.where(near < far, near, FAR).astype(np.float32), normal


def _ball(o: Array, d: Array) -> tuple[Array, Array]:
    center = np.array([0, 0, 1], np.float32)
    m = (o - center).astype(np.float32)
    t, _ = _quadratic(1.0, m @ d, np.asarray((m * m).sum(-1) - 1, np.float32))
    return t.astype(np.float32), (m + t[..., None] * d).astype(np.float32)


def _cylinder(o: Array, d: Array) -> tuple[Array, Array]:
    r, height = _CYLINDER
    flat, down = o[..., :2], d[:2]
    outside = np.asarray((flat * flat).sum(-1) - r * r, np.float32)
    side_near, side_far = _quadratic(float(down @ down) + 1e-12, flat @ down, outside)
    top, bottom = (height - o[..., 2]) / d[2], -o[..., 2] / d[2]
    lid_near, lid_far = np.minimum(top, bottom), np.maximum(top, bottom)
    near, far = np.maximum(side_near, lid_near), np.minimum(side_far, lid_far)
    t = np.where(near < far, near, FAR)
    p = o + t[..., None] * d
    normal = np.concatenate([p[..., :2] / r, np.zeros_like(p[..., :1])], -1)
    normal[lid_near > side_near] = (0, 0, -np.sign(d[2]))
    return t.astype(np.float32), normal.astype(np.float32)


def _ring(angle: float, o: Array, d: Array) -> tuple[Array, Array]:
    """Marched along its distance field, which is exact for a torus; it rests on its edge."""
    big, tube = _RING
    axis = np.array(_turned(angle, 0.0, 1.0, 0.0), np.float32)
    m = (o - np.array([0, 0, big + tube], np.float32)).astype(np.float32)
    t = np.maximum(-(m @ d) - (big + tube) * 1.02, 0).astype(np.float32)

    def from_circle(t: Array) -> Array:
        """Vectors [..., 3] from the nearest point of the circle."""
        p = m + t[..., None] * d
        flat = p - (p @ axis)[..., None] * axis
        length = np.maximum(np.sqrt((flat * flat).sum(-1)), 1e-6)
        return np.asarray(p - flat / length[..., None] * big, np.float32)

    for _ in range(40):
        t = t + np.sqrt(np.square(from_circle(t)).sum(-1)) - tube
    away = from_circle(t)
    hit = np.sqrt(np.square(away).sum(-1)) - tube < 0.01
    return np.where(hit, t, FAR).astype(np.float32), (away / tube).astype(np.float32)


def _turned(angle: float, x: float, y: float, z: float) -> tuple[float, float, float]:
    c, s = float(np.cos(angle)), float(np.sin(angle))
    return c * x - s * y, s * x + c * y, z


def intersect(shape: str, angle: float, origin: Array, direction: Array) -> tuple[Array, Array]:
    """Distance [...] to the first hit (`FAR` for none) and the outward normal [..., 3] there. `angle` turns the solid
    about its upright axis, in radians.
    """
    if shape == "ball":
        return _ball(origin, direction)
    if shape == "cylinder":
        return _cylinder(origin, direction)
    if shape == "ring":
        return _ring(angle, origin, direction)
    sides = ((1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.0, -1.0))
    if shape == "cube":
        planes = [(_turned(angle, x, y, 0.0), _CUBE) for x, y in sides]
        return _convex(origin, direction, [*planes, ((0, 0, 1), 2 * _CUBE), ((0, 0, -1), 0.0)])
    if shape == "pyramid":
        base, height = _PYRAMID
        norm = float(np.hypot(base, height))
        slopes = [
            (_turned(angle, x * height / norm, y * height / norm, base / norm), base * height / norm) for x, y in sides
        ]
        return _convex(origin, direction, [*slopes, ((0, 0, -1), 0.0)])
    raise ValueError(f"unknown shape {shape!r}")
