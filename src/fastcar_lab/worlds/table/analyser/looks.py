"""Looks of objects as templates, and how well a template explains the pixels of a frame at many places at once."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.inputs.worlds.physics import TURNS
from fastcar_lab.worlds.table.scene import COLORS, LIGHTS, MATERIALS, SHAPES, SIDE, SIZES, TURNING
from fastcar_lab.worlds.table.solids import Array
from fastcar_lab.worlds.table.sprites import HALF, sprite

MARGIN = 2 * HALF  # pixels around a frame where objects that leave it may be
CAP = 0.35  # largest difference of a pixel that counts
_SPAN = SIDE + 2 * MARGIN
GEOMETRIES = tuple(itertools.product(SHAPES, SIZES))
TINTS = tuple(itertools.product(COLORS, MATERIALS))


@dataclass(frozen=True)
class Look:
    """Everything about an object that does not move."""

    shape: str
    size: str
    color: str
    material: str

    def turns(self) -> range:
        """Its distinguishable turns."""
        return range(TURNS if self.shape in TURNING else 1)


@dataclass(frozen=True)
class Template:
    """Pixels of a look: `solid` [h, w] where it hides the ground, `rgb` [h, w, 3], and its corner from its place."""

    solid: NDArray[np.bool_]
    rgb: Array
    top: int
    left: int

    @property
    def area(self) -> int:
        """Pixels that hide the ground."""
        return int(self.solid.sum())

    @functools.cached_property
    def pixels(self) -> tuple[NDArray[np.intp], Array]:
        """Where its solid pixels are in a padded frame, counted from its corner, and their colours [3, pixels]."""
        rows, columns = np.nonzero(self.solid)
        return rows * _SPAN + columns, np.ascontiguousarray(self.rgb[rows, columns].T)


@functools.cache
def template(look: Look, turn: int, light: str) -> Template:
    """The template of a look in a light."""
    s = sprite(look.shape, look.size, look.material, turn)
    top, bottom, left, right = s.box
    part = (slice(top, bottom), slice(left, right))
    rgb = (s.gain[part] * np.asarray(COLORS[look.color], np.float32) + s.shine[part]) / np.maximum(s.alpha[part], 0.2)
    lit = np.minimum(rgb * np.asarray(LIGHTS[light], np.float32), 1)
    return Template(s.alpha[part][..., 0] > 0.6, np.asarray(lit, np.float32), top - HALF, left - HALF)


@functools.cache
def thin(look: Look, turn: int, light: str) -> Template:
    """The template of a look at a quarter of its pixels."""
    t = template(look, turn, light)
    rows, columns = np.indices(t.solid.shape)
    return Template(t.solid & (rows % 2 == 0) & ((columns + rows // 2) % 2 == 0), t.rgb, t.top, t.left)


def pad(image: Array) -> Array:
    """An image [128, 128, 3] as [3, 240 * 240], with `MARGIN` pixels of nothing (NaN) around it."""
    extra = ((MARGIN, MARGIN), (MARGIN, MARGIN), (0, 0))
    padded = np.pad(image.astype(np.float32), extra, constant_values=np.nan)
    return np.ascontiguousarray(padded.reshape(-1, 3).T)


def _differences(padded: Array, t: Template, xs: range, ys: range) -> tuple[Array, NDArray[np.intp]]:
    """Sum over the colours of the differences [y, x, pixel] of a template at places (ys, xs); where its pixels lie."""
    offsets, rgb = t.pixels
    corners = (np.array(ys)[:, None] + t.top + MARGIN) * _SPAN + np.array(xs) + t.left + MARGIN
    index = corners[..., None] + offsets
    difference = np.abs(padded[0].take(index) - rgb[0])
    difference += np.abs(padded[1].take(index) - rgb[1])
    difference += np.abs(padded[2].take(index) - rgb[2])
    return difference, index


def errors(
    padded: Array, t: Template, xs: range, ys: range, hidden: NDArray[np.bool_] | None = None
) -> tuple[Array, Array]:
    """Mean capped difference of the visible solid pixels, and their number, at places (ys, xs): two arrays [y, x].
    `padded` is a padded frame; `hidden` [128, 128] says where something in front hides the object. Places must keep the
    template within the margin.
    """
    difference, index = _differences(padded, t, xs, ys)
    seen = ~np.isnan(difference)
    if hidden is not None:
        seen &= ~np.pad(hidden, MARGIN).ravel().take(index)
    count = seen.sum(-1)
    capped = np.minimum(difference, 3 * CAP, out=difference)
    total = np.where(seen, capped, 0).sum(-1) / 3
    return (total / np.maximum(count, 1)).astype(np.float32), count.astype(np.float32)


def unexplained(padded: Array, grey: Array, t: Template, xs: range, ys: range) -> Array:
    """By how much a template explains a frame better than the ground does, in pixels, negative, at places [y, x].
    `padded` is a padded frame, `grey` its padded strangeness, NaN where something else is. What a small template leaves
    outside of it, or a large one covers that is ground, counts against it.
    """
    difference, index = _differences(padded, t, xs, ys)
    difference *= np.float32(1 / 3)
    balance = np.minimum(difference, CAP, out=difference)
    balance -= np.minimum(grey.take(index), CAP)
    return np.asarray(np.nansum(balance, -1) / CAP, np.float32)


def cover(t: Template, x: int, y: int) -> NDArray[np.bool_]:
    """Pixels of a frame [128, 128] that a template at (x, y), anywhere, hides."""
    out = np.zeros((SIDE, SIDE), bool)
    top, left = y + t.top, x + t.left
    h, w = t.solid.shape
    seen = t.solid[max(-top, 0) : max(SIDE - top, 0), max(-left, 0) : max(SIDE - left, 0)]
    out[max(top, 0) : max(top + h, 0), max(left, 0) : max(left + w, 0)] = seen
    return out
