"""Finding objects in one frame without knowing what is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.inputs.worlds.physics import STEP
from fastcar_lab.worlds import masks
from fastcar_lab.worlds.table.analyser.looks import CAP, GEOMETRIES, TINTS, Look, Template, errors, pad, template, thin
from fastcar_lab.worlds.table.scene import COLORS, LIGHTS, SIDE
from fastcar_lab.worlds.table.solids import Array

STRANGE = 0.085  # strangeness from which a pixel belongs to an object
SPECK = 22  # pixels below which a strange region is noise
_FAR = 26  # how far outside the frame a place may be
_MISFIT = 0.15  # mean difference of a template above which nothing known is seen
_VAGUE = 16  # by how many px the region of an object may be too small whose colour is one of these
_LIKE_GROUND = ("white", "orange", "green")

_FINALISTS = 16  # looks that are compared at all of their pixels


@dataclass(frozen=True)
class Found:
    """An object in a frame: look, turn, place (x, y) px as seen, and mean difference of its visible pixels."""

    look: Look
    turn: int
    x: int
    y: int
    error: float


def places(center: int, reach: int) -> range:
    """Places on the grid around one, within what may be asked of `errors`."""
    low, high = max(center - reach, -_FAR), min(center + reach, SIDE + _FAR)
    return range(low + low % STEP, max(high, low + low % STEP) + 1, STEP)


def regions(strange: Array, known: NDArray[np.bool_]) -> list[NDArray[np.bool_]]:
    """Parts of a frame that are strange and not `known`, largest first."""
    mask = (strange > STRANGE) & ~known
    # Edges of objects that are explained leave thin lines; what has no inside is no object.
    mask &= masks.opened(mask) | (masks.share_around(mask) > 0.35)
    return masks.regions(mask, SPECK)


def _likely_colors(frame: Array, region: NDArray[np.bool_], light: str, most: int = 3) -> list[str]:
    """The colours whose direction most pixels of a region are near to."""
    pixels = frame[region] / np.asarray(LIGHTS[light], np.float32)
    pixels = pixels[pixels.max(-1) > 0.12]
    if not len(pixels):
        return list(COLORS)[:most]
    palette = np.asarray(list(COLORS.values()), np.float32)
    palette = palette / np.linalg.norm(palette, axis=-1, keepdims=True)
    nearest = (pixels / np.linalg.norm(pixels, axis=-1, keepdims=True) @ palette.T).argmax(-1)
    votes = np.bincount(nearest, minlength=len(COLORS))
    return [list(COLORS)[i] for i in np.argsort(-votes)[:most] if votes[i] >= 0.06 * len(pixels)]


def _gain(padded: Array, strange: Array, t: Template, xs: range, ys: range) -> tuple[Array, Array]:
    """What a template explains that the ground does not, in pixels, at places [y, x]; and its mean difference."""
    error, count = errors(padded, t, xs, ys)
    plain = Template(t.solid, np.zeros_like(t.rgb), t.top, t.left)
    ground, _ = errors(strange, plain, xs, ys)
    return (ground - error) * count / CAP, error


def find(frame: Array, strange: Array, region: NDArray[np.bool_], light: str) -> Found | None:
    """The object that explains a region of a frame [128, 128, 3] best, or None where nothing known does."""
    rows, columns = np.flatnonzero(region.any(1)), np.flatnonzero(region.any(0))
    top, bottom, left, right = int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1
    padded, grey = pad(frame), pad(np.repeat(strange[..., None], 3, -1))
    colors = _likely_colors(frame, region, light)
    # First every look at a quarter of its pixels, then the best of them at all.
    rough: list[tuple[float, Look, int, range, range]] = []
    for shape, size in GEOMETRIES:
        for turn in Look(shape, size, "red", "metal").turns():
            t = template(Look(shape, size, "red", "metal"), turn, light)
            h, w = t.solid.shape
            # A template's box begins near the region's or ends near it, unless the border cuts it off.
            spare_x, spare_y = max(right - left - w, 0), max(bottom - top - h, 0)
            center_x = (left + right - w) // 2 - t.left
            center_y = (top + bottom - h) // 2 - t.top
            cut = max(w, h) if left == 0 or right == SIDE or top == 0 or bottom == SIDE else 0
            for color, material in TINTS:
                # Sides of an object may look like ground in the shade and be missing from the region.
                vague = max(cut, _VAGUE if color in _LIKE_GROUND else 0)
                if color not in colors or right - left < w - 8 - vague or bottom - top < h - 10 - vague:
                    continue
                xs, ys = places(center_x, 4 + (spare_x + vague) // 2), places(center_y, 6 + (spare_y + vague) // 2)
                look = Look(shape, size, color, material)
                gain, _ = _gain(padded, grey, thin(look, turn, light), xs, ys)
                row, column = (int(k) for k in np.unravel_index(int(gain.argmax()), gain.shape))
                rough.append((4 * float(gain.max()), look, turn, places(xs[column], STEP), places(ys[row], STEP)))
    best: tuple[float, Found] | None = None
    for _, look, turn, xs, ys in sorted(rough, key=lambda r: -r[0])[:_FINALISTS]:
        gain, error = _gain(padded, grey, template(look, turn, light), xs, ys)
        at = np.unravel_index(int(gain.argmax()), gain.shape)
        value = float(gain[at])
        if best is None or value > best[0]:
            best = (value, Found(look, turn, xs[int(at[1])], ys[int(at[0])], float(error[at])))
    return best[1] if best is not None and best[1].error <= _MISFIT and best[0] > 4 else None
