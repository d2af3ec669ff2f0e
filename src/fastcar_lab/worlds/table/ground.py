"""The four grounds: square tiles that repeat, so a ground costs few distinct patches."""

from __future__ import annotations

import functools

import numpy as np

from fastcar_lab.worlds.table.scene import SIDE
from fastcar_lab.worlds.table.solids import Array

PERIOD = 32  # pixels after which a ground repeats in both directions


def _noise(seed: int, across: float, down: float) -> Array:
    """Smooth noise [32, 32] of unit variance that wraps; `across` and `down` are its grain in px."""
    white = np.random.default_rng(seed).standard_normal((PERIOD, PERIOD))
    fy, fx = np.meshgrid(np.fft.fftfreq(PERIOD), np.fft.fftfreq(PERIOD), indexing="ij")
    soft = np.fft.ifft2(np.fft.fft2(white) * np.exp(-2 * (np.pi**2) * ((across * fx) ** 2 + (down * fy) ** 2))).real
    return np.asarray((soft - soft.mean()) / soft.std(), np.float32)


def _mix(rgb: tuple[float, float, float], shade: Array) -> Array:
    return np.asarray(np.asarray(rgb, np.float32) * shade[..., None], np.float32)


@functools.cache
def tile(name: str) -> Array:
    """One period of a ground, float32 [32, 32, 3] in 0..1."""
    rows, columns = np.mgrid[:PERIOD, :PERIOD]
    if name == "grey":
        return _mix((0.60, 0.60, 0.61), 1 + 0.025 * _noise(1, 1.2, 0.9))
    if name == "wood":
        grain = 0.05 * _noise(2, 7.0, 0.6) + 0.03 * _noise(3, 2.5, 0.5)
        plank = np.where(rows < 16, 1.04, 0.93) + 0.02 * _noise(4, 12, 4)
        seam = np.where(rows % 16 == 15, 0.72, 1.0) * np.where(
            (rows < 16) & (columns == 6) | (rows >= 16) & (columns == 22), 0.78, 1.0
        )
        return _mix((0.58, 0.39, 0.23), (plank + grain) * seam)
    if name == "grass":
        blades = 0.08 * _noise(5, 1.0, 1.3) + 0.05 * _noise(6, 2.0, 1.5)
        return _mix((0.36, 0.56, 0.25), 1 + blades) + 0.02 * _noise(7, 1, 1)[..., None] * np.array(
            [1, 0.6, 0], np.float32
        )
    if name == "checker":
        light = (columns // 16 + rows // 16) % 2 == 0
        grain = 1 + 0.012 * _noise(8, 1.5, 1.0)
        return np.where(light[..., None], _mix((0.69, 0.71, 0.75), grain), _mix((0.52, 0.55, 0.61), grain)).astype(
            np.float32
        )
    raise ValueError(f"unknown ground {name!r}")


@functools.cache
def ground(name: str, shift: int) -> Array:
    """The empty frame, float32 [128, 128, 3], seen by a camera `shift` px (modulo 32) to the right."""
    turned = np.roll(tile(name), -shift, axis=1)
    return np.tile(turned, (SIDE // PERIOD, SIDE // PERIOD, 1))
