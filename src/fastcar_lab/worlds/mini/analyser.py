"""Does a video show what its caption says? A deterministic judge for the synthetic world.

Analysis by synthesis: the background is the known one nearest to the frame's median, what differs from it is the
object, and the object is the rendered template (shape, half width, facing, colour, position) that explains the pixels
best. Motion and size are the pair whose path, as the renderer would draw it, lies nearest to the fitted poses.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_lab.worlds.masks import regions
from fastcar_lab.worlds.mini.render import Array, background, template
from fastcar_lab.worlds.mini.scene import ATTRIBUTES, BACKGROUNDS, COLORS, MOTIONS, SHAPES, SIDE, SIZES, Scene, poses

HALVES = (5, 6, 8, 10, 12, 14)
_FOREGROUND = 0.13  # least difference to the background, in any channel, of an object's pixel
_BACKGROUND_ERROR = 0.10  # largest median difference between a frame and its background
_MISFIT = 0.20  # largest error (mean absolute difference a covered pixel) of a template that explains an object
_MARGIN = 0.05  # a frame agrees with the video's shape or colour if its error is within this of the best one
_PATH_ERROR = 1.6  # largest mean deviation in px of a path that is still that motion
_SPECK = 14  # pixels below which a foreground region is noise


@dataclass(frozen=True)
class Verdict:
    """What a video shows; None where nothing fits. `persists` is True if every frame holds exactly one object and it
    keeps its shape and colour; `reasons` says in words what did not fit.
    """

    size: str | None
    color: str | None
    shape: str | None
    motion: str | None
    background: str | None
    persists: bool
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class _Fit:
    """Best template of one shape and colour in one frame: error a covered pixel, centre, half width."""

    error: float
    x: int
    y: int
    half: int


def as_float(video: NDArray[Any]) -> Array:
    """A video [T, H, W, 3], uint8 or 0..1, as float32 [T, 64, 64, 3] in 0..1 (multiples of 64 are averaged)."""
    v = np.asarray(video)
    if v.ndim != 4 or v.shape[-1] != 3 or v.shape[1] % SIDE or v.shape[2] % SIDE:
        raise ValueError(f"video has shape {list(v.shape)}, needed [T, 64 k, 64 k, 3]")
    f = v.astype(np.float32) / (255.0 if v.dtype == np.uint8 else 1.0)
    t, h, w, _ = f.shape
    return f.reshape(t, SIDE, h // SIDE, SIDE, w // SIDE, 3).mean((2, 4))


def _find_background(frames: Array) -> tuple[str, float]:
    """The nearest background and the median difference to it."""
    errors = {b: float(np.median(np.abs(frames - background(b)).max(-1))) for b in BACKGROUNDS}
    name = min(errors, key=lambda b: errors[b])
    return name, errors[name]


@functools.cache
def _candidates() -> tuple[tuple[str, int, int, int, int, int, int], ...]:
    """(shape, half, facing, top, bottom, left, right): extents of each template from its centre in px."""
    shapes = []
    for shape in SHAPES:
        for half in HALVES:
            for facing in (1, -1) if shape in ("car", "boat") else (1,):
                solid = template(shape, half, facing).alpha > 0.35
                rows, columns = np.flatnonzero(solid.any(1)), np.flatnonzero(solid.any(0))
                c = half + 1
                shapes.append((shape, half, facing, rows[0] - c, rows[-1] + 1 - c, columns[0] - c, columns[-1] + 1 - c))
    return tuple(shapes)


def _fits(frame: Array, empty: Array, region: NDArray[np.bool_]) -> dict[tuple[str, str], _Fit]:
    """For each (shape, colour) the best fit to the object in a frame."""
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    top, bottom, left, right = rows[0], rows[-1] + 1, columns[0], columns[-1] + 1
    tints = np.asarray(list(COLORS.values()), np.float32)
    near = np.abs(frame[region][:, None] - tints).sum(-1).argmin(1)
    votes = np.bincount(near, minlength=len(tints))
    plausible = [i for i in np.argsort(-votes)[:3] if votes[i]]
    names = list(COLORS)
    margin = 20
    padded = np.pad(frame, ((margin, margin), (margin, margin), (0, 0)), mode="edge")
    ground = np.pad(empty, ((margin, margin), (margin, margin), (0, 0)), mode="wrap")
    best: dict[tuple[str, str], _Fit] = {}
    for shape, half, facing, t, b, lf, r in _candidates():
        if abs((b - t) - (bottom - top)) > 4 or abs((r - lf) - (right - left)) > 4:
            continue
        y0 = round((top + bottom - t - b) / 2)
        x0 = round((left + right - lf - r) / 2)
        tm = template(shape, half, facing)
        n = tm.alpha.shape[0]
        cover = float(tm.alpha.sum())
        for dy in (-1, 0, 1):
            for dx in (-1, 0, 1):
                y, x = y0 + dy - n // 2 + margin, x0 + dx - n // 2 + margin
                if y < 0 or x < 0 or y + n > padded.shape[0] or x + n > padded.shape[1]:
                    continue
                window = padded[y : y + n, x : x + n]
                rest = window - ground[y : y + n, x : x + n] * (1 - tm.alpha[..., None]) - tm.fixed
                for i in plausible:
                    error = float(np.abs(rest - tm.gain[..., None] * tints[i]).mean(-1).sum()) / cover
                    key = (shape, names[i])
                    if key not in best or error < best[key].error:
                        best[key] = _Fit(error, x0 + dx, y0 + dy, half)
    return best


@dataclass(frozen=True)
class Sighting:
    """The object of one frame: what it looks like, and its centre in px."""

    shape: str
    color: str
    x: int
    y: int


def follow(video: NDArray[Any]) -> list[Sighting | None]:
    """The object of each frame by itself; None where there is not exactly one that a template explains."""
    frames = as_float(video)
    where, off = _find_background(frames)
    sightings: list[Sighting | None] = []
    for frame in frames if off <= _BACKGROUND_ERROR else ():
        parts = regions(np.abs(frame - background(where)).max(-1) > _FOREGROUND, _SPECK)
        fits = _fits(frame, background(where), parts[0]) if len(parts) == 1 else {}
        key = min(fits, key=lambda k: fits[k].error, default=None)
        known = key is not None and fits[key].error <= _MISFIT
        sightings.append(Sighting(*key, fits[key].x, fits[key].y) if key is not None and known else None)
    return sightings or [None] * len(frames)


def _path(fits: list[_Fit]) -> tuple[str, str, float]:
    """(motion, size, mean deviation in px) of the renderer's path that lies nearest to fitted poses."""
    seen = np.array([(f.x, f.y, f.half) for f in fits], np.float32)
    best = ("", "", float("inf"))
    for motion in MOTIONS:
        for size in SIZES:
            wanted = np.array(
                [(p.x, p.y, p.half) for p in poses(Scene("ball", "red", size, motion, "sky", (0, 0)), len(fits))],
                np.float32,
            )
            gap = seen - wanted
            gap[:, :2] -= np.median(gap[:, :2], axis=0)
            deviation = float(np.abs(gap).sum(1).mean())
            if deviation < best[2]:
                best = (motion, size, deviation)
    return best


def analyse(video: NDArray[Any]) -> Verdict:
    """What a video [T, H, W, 3] shows (H and W multiples of 64; uint8, or floats in 0..1)."""
    frames = as_float(video)
    where, off = _find_background(frames)
    if off > _BACKGROUND_ERROR:
        return Verdict(
            None, None, None, None, None, False, (f"no known background (nearest: {where}, off by {off:.2f})",)
        )
    empty = background(where)
    reasons: list[str] = []
    tables: list[dict[tuple[str, str], _Fit]] = []
    persists = True
    for t, frame in enumerate(frames):
        parts = regions(np.abs(frame - empty).max(-1) > _FOREGROUND, _SPECK)
        if len(parts) != 1:
            persists = False
            reasons.append(f"frame {t}: {len(parts)} objects")
        if parts:
            fits = _fits(frame, empty, parts[0])
            if fits:
                tables.append(fits)
            else:
                persists = False
                reasons.append(f"frame {t}: nothing of a known size")
    if len(tables) < max(1, len(frames) // 2):
        return Verdict(None, None, None, None, where, False, tuple(reasons))
    # A fit that is missing counts as a bad one. Larger objects show more, so they weigh more.
    keys = sorted({k for fits in tables for k in fits})
    bad = _Fit(1.0, 0, 0, 0)
    weights = np.array([min(fits.values(), key=lambda f: f.error).half for fits in tables], np.float32)
    errors = np.array([[fits.get(k, bad).error for k in keys] for fits in tables])
    shape, color = keys[int((weights @ errors).argmin())]
    for t, fits in enumerate(tables):
        own = fits.get((shape, color), bad).error
        best = min(fits, key=lambda k: fits[k].error)
        allowance = _MARGIN + (0.1 if fits[best].half < 8 else 0.0)
        if own > _MISFIT or own > fits[best].error + allowance:
            persists = False
            reasons.append(f"frame {t}: looks like a {best[1]} {best[0]}, not like a {color} {shape}")
    fitted = [fits[(shape, color)] for fits in tables if (shape, color) in fits]
    misfit = float(np.median([f.error for f in fitted]))
    found_shape: str | None = shape
    if misfit > _MISFIT:
        reasons.append(f"no known shape (nearest: {shape}, error {misfit:.2f})")
        found_shape = None
    motion: str | None = None
    size: str | None = None
    if len(fitted) == len(frames):
        motion, size, deviation = _path(fitted)
        if deviation > _PATH_ERROR:
            reasons.append(f"no known motion (nearest: {motion}, off by {deviation:.1f} px)")
            motion = None
    else:
        reasons.append("the object is not there in every frame, so its path is not judged")
    return Verdict(size, color, found_shape, motion, where, persists, tuple(reasons))


def judge(verdict: Verdict, wanted: Mapping[str, str]) -> dict[str, bool]:
    """Right or wrong for each wanted attribute, `persists`, and `all` of them together."""
    right = {name: getattr(verdict, name) == value for name, value in wanted.items() if name in ATTRIBUTES}
    right["persists"] = verdict.persists
    return {**right, "all": all(right.values())}


def wanted_of(scene: Scene) -> dict[str, str]:
    """The attributes of a scene by name."""
    return {name: getattr(scene, name) for name in ATTRIBUTES}
