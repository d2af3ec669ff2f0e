"""Which ground, light and camera a video shows, and what in its frames is neither ground nor shadow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fastcar_cli.inputs.worlds.physics import STEP
from fastcar_lab.worlds.table.ground import PERIOD, ground
from fastcar_lab.worlds.table.scene import GROUNDS, LIGHTS
from fastcar_lab.worlds.table.solids import Array

PANS = (0, -4, -2, 2, 4)
_CAP = 0.12  # difference above which a pixel counts as something else than ground
_UNKNOWN = 0.075  # mean capped difference above which no known ground is seen
_SHADE = 0.12  # what a full shadow counts as difference, so that a dark object is not taken for one


@dataclass(frozen=True)
class Backdrop:
    """Ground, light, pan (px a frame, camera to the right) and how far the frames are from it."""

    ground: str
    light: str
    pan: int
    offset: int
    error: float

    @property
    def known(self) -> bool:
        """Whether the video shows one of the grounds at all."""
        return self.error <= _UNKNOWN

    def empty(self, t: int) -> Array:
        """The ground alone in frame t, float32 [128, 128, 3] in 0..1."""
        view = ground(self.ground, (self.offset + self.pan * t) % PERIOD)
        return np.asarray(view * np.asarray(LIGHTS[self.light], np.float32), np.float32)


def _differences(frame: Array, name: str, light: str, shifts: range) -> Array:
    """Mean capped difference of every other pixel of a frame to a ground at each shift."""
    tint = np.asarray(LIGHTS[light], np.float32)
    return np.array(
        [np.minimum(np.abs(frame[::2, ::2] - ground(name, s)[::2, ::2] * tint).mean(-1), _CAP).mean() for s in shifts],
        np.float32,
    )


def find_backdrop(frames: Array) -> Backdrop:
    """The backdrop that explains frames [T, 128, 128, 3] best."""
    shifts = range(0, PERIOD, STEP)
    probe = frames[[0, len(frames) // 2]]
    choices = [(g, light) for g in GROUNDS for light in LIGHTS]
    fits = [sum(float(_differences(f, g, light, shifts).min()) for f in probe) for g, light in choices]
    name, light = choices[int(np.argmin(fits))]
    table = np.stack([_differences(f, name, light, shifts) for f in frames])
    t = np.arange(len(frames))
    best = (float("inf"), 0, 0)
    for pan in PANS:
        for start in range(len(shifts)):
            # Standing still is preferred where the texture is too weak to decide.
            total = float(table[t, (start + pan * t // STEP) % len(shifts)].mean()) + (2e-4 if pan or start else 0)
            if total < best[0]:
                best = (total, pan, start * STEP)
    return Backdrop(name, light, best[1], best[2], best[0])


def strangeness(frame: Array, backdrop: Backdrop, t: int) -> Array:
    """How little each pixel of frame t is ground in any shade, [128, 128] as it would be by day: 0 for lit ground."""
    empty = backdrop.empty(t)
    share = np.clip((frame * empty).sum(-1) / np.maximum((empty * empty).sum(-1), 1e-4), 0.3, 1.06)
    rest = np.abs(frame - share[..., None] * empty).mean(-1)
    rest /= np.float32(np.mean(LIGHTS[backdrop.light]))
    return np.asarray(rest + _SHADE * np.maximum(0.95 - share, 0), np.float32)
