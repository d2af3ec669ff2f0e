"""Following objects from frame to frame, and noticing what no object of this world does."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.inputs.worlds.physics import TURNS
from fastcar_lab.worlds.masks import dilated
from fastcar_lab.worlds.table.analyser.backdrop import Backdrop, strangeness
from fastcar_lab.worlds.table.analyser.detect import Found, find, places, regions
from fastcar_lab.worlds.table.analyser.looks import (
    GEOMETRIES,
    MARGIN,
    TINTS,
    Look,
    cover,
    errors,
    pad,
    template,
    thin,
    unexplained,
)
from fastcar_lab.worlds.table.scene import SIDE
from fastcar_lab.worlds.table.solids import Array

_LOST = 0.13  # mean difference above which an object is not where it was looked for
_ABSENT = 0.05
"""Share of an object that the ground must explain better than the object, on balance, for it not to be there."""
_HIDDEN = 0.3  # share of an object that must be seen for its place to be measured
_MOSTLY = 0.6  # share below which what is seen of an object may be too little to fit
_WHOLE = 0.75  # share of an object that must be seen for its look to be judged
_ENOUGH = 0.65  # share of an object that must be in the frame for it to be taken for a new one
_SEARCH = (8, 14)  # how far in px, across and down, from where it is expected an object is looked for


@dataclass
class Track:
    """One object over the video: places as seen, None where it is not in the frame; and how well each look fits."""

    look: Look
    at: list[tuple[int, int, int] | None]
    begins: int
    tint_errors: list[dict[tuple[str, str], float]] = field(default_factory=list)
    form_errors: list[dict[tuple[str, str], float]] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)
    gone: bool = False

    def last(self) -> tuple[int, int, int]:
        """Its last place (x, y, turn)."""
        return next(p for p in reversed(self.at) if p is not None)

    def expected(self) -> tuple[int, int]:
        """Where it should be next if it continues as before."""
        seen = [p for p in self.at if p is not None]
        x, y, _ = seen[-1]
        if len(seen) > 1 and self.at[-2:] == seen[-2:]:
            return 2 * x - seen[-2][0], 2 * y - seen[-2][1]
        return x, y


def _leaving(track: Track, backdrop: Backdrop) -> bool:
    """Whether an object that was last seen on its way out of the frame is mostly out of it two frames later."""
    seen = [(k, p) for k, p in enumerate(track.at) if p is not None][-3:]
    (first, (x0, y0, _)), (last, (x, y, turn)) = seen[0], seen[-1]
    # What was seen once is taken to rest on the ground, which the camera passes.
    speed = ((x - x0) / (last - first), (y - y0) / (last - first)) if last > first else (-backdrop.pan, 0)
    shown = template(track.look, turn, backdrop.light)
    now, soon = (int(cover(shown, round(x + n * speed[0]), round(y + n * speed[1])).sum()) / shown.area for n in (0, 2))
    return soon < min(now, _MOSTLY)


State = tuple[Look, int, int, int]  # look, turn, x and y of an object in a frame


def _covered(state: Iterable[State], light: str) -> NDArray[np.bool_]:
    """Pixels [128, 128] that objects hide."""
    hidden = np.zeros((SIDE, SIDE), bool)
    for look, turn, x, y in state:
        hidden |= cover(template(look, turn, light), x, y)
    return hidden


def _hiding(state: list[State], light: str, own: int) -> NDArray[np.bool_]:
    """Pixels [128, 128] hidden by objects whose foot is lower in the frame than object `own`'s."""
    return dilated(_covered((s for s in state if s[3] > state[own][3]), light))


def _turns(look: Look, turn: int) -> list[int]:
    return [turn, (turn + 1) % TURNS, (turn - 1) % TURNS] if len(look.turns()) > 1 else [0]


def _veiled(grey: Array, hidden: NDArray[np.bool_]) -> Array:
    """Padded strangeness with NaN where something else is."""
    return np.where(np.pad(hidden, MARGIN).ravel(), np.float32(np.nan), grey)


def _locate(
    padded: Array, grey: Array, light: str, track: Track, hidden: NDArray[np.bool_]
) -> tuple[float, int, int, int, float]:
    """(error, x, y, turn, share seen) of an object near its last and its expected place. The error is 1 where the
    ground alone explains better what is seen there, so that an object whose colour is not far from the ground's isn't
    taken to be where nothing is.
    """
    guess = track.expected()
    x0, y0, turn0 = track.last()
    best = (9.0, x0, y0, turn0, 0.0)
    there = cover(template(track.look, turn0, light), *guess)
    share = float((there & ~hidden).sum()) / template(track.look, turn0, light).area
    if share < _HIDDEN:
        return best
    for turn in _turns(track.look, turn0):
        t = template(track.look, turn, light)
        for cx, cy in {guess, (x0, y0)}:
            xs, ys = places(cx, _SEARCH[0]), places(cy, _SEARCH[1])
            error, count = errors(padded, t, xs, ys, hidden)
            near = np.minimum(
                np.abs(np.array(xs)[None] - guess[0]) + np.abs(np.array(ys)[:, None] - guess[1]),
                4 + np.abs(np.array(xs)[None] - x0) + np.abs(np.array(ys)[:, None] - y0),
            )
            score = error + 4e-4 * near + (3e-3 if turn != turn0 else 0)
            score = np.where(count >= min(_HIDDEN * t.area, 40), score, 9)
            at = np.unravel_index(int(score.argmin()), score.shape)
            if float(score[at]) < best[0]:
                best = (float(score[at]), xs[int(at[1])], ys[int(at[0])], turn, float(count[at]) / t.area)
    if best[0] <= _LOST:
        _, x, y, turn, seen = best
        rest = _veiled(grey, hidden) if hidden.any() else grey
        shown = template(track.look, turn, light)
        if float(unexplained(padded, rest, shown, range(x, x + 1), range(y, y + 1))[0, 0]) > _ABSENT * shown.area:
            best = (1.0, x, y, turn, seen)
    # Little of it may be too little to fit: then it is taken to be where it should be.
    return best if best[0] <= _LOST or share >= _MOSTLY else (9.0, *guess, turn0, 0.0)


def _compare(padded: Array, grey: Array, light: str, track: Track, t: int) -> None:
    """Note how well every colour, material, shape and size fits in frame t. Forms differ by little more than their
    edges, so they count by what they leave unexplained, as share of the object: the object's pixels outside of a form
    count as much as ground inside of it.
    """
    place = track.at[t]
    assert place is not None
    x, y, turn = place
    one_x, one_y = range(x, x + 1), range(y, y + 1)
    look = track.look

    def error_of(other: Look, turn: int, xs: range, ys: range) -> float:
        return float(errors(padded, thin(other, turn, light), xs, ys)[0].min())

    tinted = {tint: replace(look, color=tint[0], material=tint[1]) for tint in TINTS}
    track.tint_errors.append({tint: error_of(other, turn, one_x, one_y) for tint, other in tinted.items()})
    mine = template(look, turn, light)
    middle = (x + mine.left + mine.solid.shape[1] // 2, y + mine.top + mine.solid.shape[0] // 2)
    scale = 1 / thin(look, turn, light).area

    def rest_of(other: Look, turn: int, xs: range, ys: range) -> float:
        return float(unexplained(padded, grey, thin(other, turn, light), xs, ys).min()) * scale

    forms: dict[tuple[str, str], float] = {}
    for shape, size in GEOMETRIES:
        other = Look(shape, size, look.color, look.material)
        least = 9.0
        for other_turn in other.turns():
            box = template(other, other_turn, light)
            cx = middle[0] - box.left - box.solid.shape[1] // 2
            cy = middle[1] - box.top - box.solid.shape[0] // 2
            least = min(least, rest_of(other, other_turn, places(cx, 3), places(cy, 3)))
        forms[shape, size] = least
    forms[look.shape, look.size] = min(forms[look.shape, look.size], rest_of(look, turn, one_x, one_y))
    track.form_errors.append(forms)
    track.judged.append(t)


def follow(frames: Array, backdrop: Backdrop) -> tuple[list[Track], list[str]]:
    """Objects of a video [T, 128, 128, 3] (0..1), and what is wrong with it."""
    tracks: list[Track] = []
    wrong: list[str] = []
    for t, frame in enumerate(frames):
        padded = pad(frame)
        strange = strangeness(frame, backdrop, t)
        grey = np.pad(strange, MARGIN, constant_values=np.nan).ravel()
        present = [track for track in tracks if not track.gone]
        state = [(tr.look, tr.last()[2], *tr.expected()) for tr in present]
        measured: list[tuple[float, int, int, int, float]] = []
        for _ in range(2 if len(present) > 1 else 1):
            measured = [
                _locate(padded, grey, backdrop.light, tr, _hiding(state, backdrop.light, i))
                for i, tr in enumerate(present)
            ]
            state = [
                (tr.look, m[3], m[1], m[2]) if m[0] <= _LOST else (tr.look, tr.last()[2], *tr.expected())
                for tr, m in zip(present, measured, strict=True)
            ]
        lost: list[Track] = []
        for track, (error, x, y, turn, share), where in zip(present, measured, state, strict=True):
            if error >= 9:
                # Out of sight: behind something, or out of the frame.
                x, y = where[2], where[3]
                track.at.append((x, y, where[1]))
                track.gone = not (-6 <= x < SIDE + 6 and -6 <= y < SIDE + 24)
            elif error > _LOST:
                track.at.append(None)
                lost.append(track)
            else:
                track.at.append((x, y, turn))
                own = present.index(track)
                others = _covered(state[:own] + state[own + 1 :], backdrop.light) if share >= _WHOLE else None
                # The look of what nothing hides can be judged.
                if others is not None and not (_covered([state[own]], backdrop.light) & others).any():
                    rest = _veiled(grey, dilated(others)) if len(state) > 1 else grey
                    _compare(padded, rest, backdrop.light, track, t)
        seen = [(track.look, p[2], p[0], p[1]) for track in present if (p := track.at[-1]) is not None]
        known = dilated(_covered(seen, backdrop.light), 2)
        _look_for_more(frame, strange, backdrop, t, tracks, lost, known, wrong)
        for track in lost:
            if track.at[-1] is None:
                track.gone = True
                if not _leaving(track, backdrop):
                    wrong.append(f"frame {t}: the {track.look.color} {track.look.shape} is gone")
        for track in tracks:
            if len(track.at) <= t:
                track.at.append(None)
    return tracks, wrong


def _look_for_more(
    frame: Array,
    strange: Array,
    backdrop: Backdrop,
    t: int,
    tracks: list[Track],
    lost: list[Track],
    known: NDArray[np.bool_],
    wrong: list[str],
) -> None:
    """Objects that no track explains: new ones, or lost ones elsewhere."""
    for _ in range(4):
        parts = regions(strange, known)
        if not parts:
            return
        found = find(np.where(known[..., None], np.nan, frame).astype(np.float32), strange, parts[0], backdrop.light)
        if found is None:
            if parts[0].sum() > 45:
                wrong.append(f"frame {t}: something unknown")
            known |= dilated(parts[0])
            continue
        looks = template(found.look, found.turn, backdrop.light)
        if t and cover(looks, found.x, found.y).sum() < _ENOUGH * looks.area:
            # Too little of it is in the frame to say what it is; it may come further in.
            known |= dilated(parts[0], 2)
            continue
        known |= dilated(cover(looks, found.x, found.y), 2)
        _assign(found, t, tracks, lost, wrong)


def _assign(found: Found, t: int, tracks: list[Track], lost: list[Track], wrong: list[str]) -> None:
    """Give a found object to a lost track that it may be, or to a new one."""
    for track in lost:
        if track.at[-1] is None:
            x, y, _ = track.last()
            jump = max(abs(found.x - x), abs(found.y - y))
            same = found.look == track.look
            if same or jump < 10:
                track.at[-1] = (found.x, found.y, found.turn)
                if same and jump < 12 and min(found.x, SIDE - found.x) < 20:
                    return
                what = f"the {track.look.color} {track.look.shape}"
                wrong.append(
                    f"frame {t}: {what} jumps by {jump} px"
                    if same
                    else f"frame {t}: {what} becomes a {found.look.color} {found.look.shape}"
                )
                return
    near_border = min(found.x, SIDE - found.x) < 20
    if t and not near_border:
        wrong.append(f"frame {t}: a {found.look.color} {found.look.shape} appears")
    tracks.append(Track(found.look, [None] * t + [(found.x, found.y, found.turn)], t))
