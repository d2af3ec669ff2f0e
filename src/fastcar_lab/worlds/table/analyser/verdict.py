"""From followed objects to what happens: looks, deeds, contacts, and what breaks the rules of the world."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.inputs.worlds.physics import SLANT, height
from fastcar_lab.worlds.table.analyser.backdrop import find_backdrop
from fastcar_lab.worlds.table.analyser.track import Track, follow
from fastcar_lab.worlds.table.scene import MASS, RADIUS, SIDE, TURNING, Thing
from fastcar_lab.worlds.table.stories import HOPS

_CONTRADICTS = 0.025
"""By how much another colour and material must fit a frame better than the video's own to count as a change."""
_CHANGES = 0.12
"""By how much another form must fit better than the video's own, summed over the frames, to count as a change."""
_DOUBT = 0.01  # what is taken off for each frame, as what is drawn softly may fit another form a little better
_STILL = 3.0  # pixels within which something stands still
_ROUGH = 2.0  # mean deviation in px of a path from the straight line or the bounce that it is taken for
_TOUCH = 5.0  # pixels between two objects that touch, for errors of both places


@dataclass(frozen=True)
class TrackedObject:
    """One object of a video."""

    shape: str
    size: str
    color: str
    material: str
    deed: str  # still, moves, turns, bounces or irregular, until something touches it
    way: tuple[int, int]  # signs of its own motion to the right and towards the viewer
    enters: str | None  # the side, if it does
    leaves: str | None  # as enters
    path: tuple[tuple[float, float] | None, ...]  # (x, y) px in each frame without the camera's motion; None: not seen

    @property
    def reach(self) -> int:
        """As that of `Thing`."""
        return Thing(self.shape, self.color, self.material, self.size, 0, 0).reach

    @property
    def look(self) -> str:
        """In words."""
        return f"{self.size} {self.color} {self.material} {self.shape}"


@dataclass(frozen=True)
class Verdict:
    """What a video shows; ground and light are None where no known one is seen."""

    ground: str | None
    light: str | None
    pan: int
    objects: tuple[TrackedObject, ...]
    contacts: tuple[tuple[int, int, int], ...]  # (frame, first, second), indices into `objects`
    wrong: tuple[str, ...]  # what breaks the rules, in words: things that vanish, jump, change, pass through each other


Path = tuple[tuple[float, float] | None, ...]


def as_float(video: NDArray[Any]) -> NDArray[np.float32]:
    """A video [T, 128, 128, 3], uint8 or 0..1, as float32 in 0..1. Raises ValueError for another shape."""
    v = np.asarray(video)
    if v.ndim != 4 or v.shape[1:] != (SIDE, SIDE, 3):
        raise ValueError(f"video has shape {list(v.shape)}, needed [T, {SIDE}, {SIDE}, 3]")
    return np.asarray(v, np.float32) / np.float32(255 if v.dtype == np.uint8 else 1)


def _sums(rows: list[dict[tuple[str, str], float]]) -> tuple[str, str]:
    """What fits best in all frames, of which none counts for more than 0.3."""
    least = [min(r.values()) for r in rows]
    return min(rows[0], key=lambda k: sum(min(r[k] - low, 0.3) for r, low in zip(rows, least, strict=True)))


def _final_look(track: Track, wrong: list[str]) -> tuple[str, str, str, str]:
    """(shape, size, color, material) over the whole video; what contradicts it is noted. Another form, that is shape
    and size, counts by how much better it fits in all frames in which it does: a difference too small to decide in any
    of them adds up if it lasts or comes again and again. Colours are distinguished in every frame.
    """
    look = track.look
    if not track.judged:
        return look.shape, look.size, look.color, look.material
    shape, size = _sums(track.form_errors)
    color, material = _sums(track.tint_errors)
    gains = {
        form: [max(rest[shape, size] - rest[form] - _DOUBT, 0) for rest in track.form_errors]
        for form in track.form_errors[0]
    }
    other = max(gains, key=lambda form: sum(gains[form]))
    if sum(gains[other]) > _CHANGES:
        t = next(t for t, gain in zip(track.judged, gains[other], strict=True) if gain)
        wrong.append(f"frame {t}: the {color} {shape} looks {' '.join(other)}")
    for t, tints in zip(track.judged, track.tint_errors, strict=True):
        best = min(tints, key=lambda k: tints[k])
        if tints[color, material] > tints[best] + _CONTRADICTS:
            wrong.append(f"frame {t}: the {color} {shape} looks {' '.join(best)}")
    return shape, size, color, material


def _speeds(path: Path) -> NDArray[np.float64]:
    """Speed [T - 1, 2] between frames, NaN where it is not seen."""
    places = np.array([(np.nan, np.nan) if p is None else p for p in path])
    return np.diff(places, axis=0)


def _near(a: TrackedObject, b: TrackedObject, t: int) -> float | None:
    """Pixels between the sides of two objects in frame t along the row or column that both share, else None."""
    p, q = a.path[t], b.path[t]
    if p is None or q is None:
        return None
    dx, dy = abs(p[0] - q[0]), abs(p[1] - q[1])
    reach = a.reach + b.reach
    if dy <= _TOUCH and dx > dy:
        return dx - reach
    if dx <= _TOUCH:
        return dy - reach * SLANT
    return None


def _turning_point(speeds: NDArray[np.float64], t: int, span: int = 2) -> NDArray[np.float64]:
    """Change of speed [2] in frame t, from the mean of `span` frames before to that of those after."""
    with np.errstate(all="ignore"):
        before, after = speeds[max(t - span, 0) : t], speeds[t : t + span]
        if not len(before) or not len(after) or np.isnan(before).all() or np.isnan(after).all():
            return np.zeros(2)
        return np.asarray(np.nanmean(after, 0) - np.nanmean(before, 0))


def _contacts(objects: list[TrackedObject], wrong: list[str]) -> list[tuple[int, int, int]]:
    """Frames in which two objects touch and both change their speed."""
    meetings = []
    speeds = [_speeds(o.path) for o in objects]
    for i, a in enumerate(objects):
        for j in range(i + 1, len(objects)):
            b = objects[j]
            if "bounces" in (a.deed, b.deed):
                continue
            best: tuple[float, int] | None = None
            for t in range(1, len(a.path) - 1):
                gap = _near(a, b, t)
                if gap is None or gap > _TOUCH:
                    continue
                change_a, change_b = _turning_point(speeds[i], t), _turning_point(speeds[j], t)
                size = min(float(np.abs(change_a).max()), float(np.abs(change_b).max()))
                if size >= 1 and (best is None or size > best[0] + 0.5):
                    best = (size, t)
            if best is not None:
                meetings.append((best[1], i, j))
    for t, i, j in meetings:
        # Where an object meets two others at nearly the same time, the changes can't be distinguished.
        if any({i, j} & {k, m} and abs(t - s) <= 2 for s, k, m in meetings if (s, k, m) != (t, i, j)):
            continue
        a, b = objects[i], objects[j]
        changes = [
            MASS[a.size] * _turning_point(speeds[i], t, n) + MASS[b.size] * _turning_point(speeds[j], t, n)
            for n in (1, 2)
        ]
        if min(float(np.abs(c).max()) for c in changes) > 3:
            wrong.append(f"frame {t}: the {a.look} and the {b.look} do not keep their momentum")
    return sorted(meetings)


def _through(objects: list[TrackedObject], wrong: list[str]) -> None:
    """Note objects that are inside each other."""
    for i, a in enumerate(objects):
        for b in objects[i + 1 :]:
            if "bounces" in (a.deed, b.deed):
                continue
            for t, (p, q) in enumerate(zip(a.path, b.path, strict=True)):
                if p is None or q is None:
                    continue
                apart = float(np.hypot(p[0] - q[0], (p[1] - q[1]) / SLANT))
                if apart < 0.6 * (a.reach + b.reach):
                    wrong.append(f"frame {t}: the {a.look} is inside the {b.look}")
                    break


def _bounces(places: NDArray[np.float64], t: NDArray[np.intp]) -> bool:
    """Whether heights of places [n, 2] at frames t follow one of the bounces, x going evenly."""
    for hop in HOPS:
        rise = places[:, 1] + np.array([height(hop, int(k)) for k in t])
        if np.abs(rise - np.median(rise)).mean() <= _ROUGH:
            return True
    return False


def _deed(shape: str, path: Path, turns: list[int | None], until: int) -> tuple[str, tuple[int, int]]:
    """(deed, way) of an object up to frame `until`."""
    t = np.array([k for k in range(until + 1) if path[k] is not None])
    if len(t) < 2:
        return "still", (0, 0)
    places = np.array([path[k] for k in t], float)
    move = places[-1] - places[0]
    spread = np.ptp(places, axis=0)
    way = tuple(int(np.sign(m)) if abs(m) > _STILL else 0 for m in move)
    if shape == "ball" and spread[1] >= 10 and len(t) >= 6 and _bounces(places, t):
        return "bounces", (way[0], 0)
    steps = [(b - a) % 6 for a, b in itertools.pairwise(turns) if a is not None and b is not None]
    if shape in TURNING and len(steps) >= 3 and max(steps.count(1), steps.count(5)) >= 0.6 * len(steps):
        return "turns", (way[0], way[1])
    if spread.max() <= _STILL:
        return "still", (0, 0)
    line = np.stack([np.polyval(np.polyfit(t, c, 1), t) for c in places.T], -1)
    if np.abs(places - line).mean() > _ROUGH:
        return "irregular", (way[0], way[1])
    return "moves", (way[0], way[1])


def _side(x: float) -> str:
    return "left" if x < SIDE / 2 else "right"


def analyse(video: NDArray[Any]) -> Verdict:
    """What a video [T, 128, 128, 3] shows (uint8, or floats in 0..1)."""
    frames = as_float(video)
    backdrop = find_backdrop(frames)
    if not backdrop.known:
        return Verdict(None, None, 0, (), (), (f"no known ground (nearest: {backdrop.ground})",))
    tracks, wrong = follow(frames, backdrop)
    objects: list[TrackedObject] = []
    all_turns: list[list[int | None]] = []
    for track in tracks:
        looks = _final_look(track, wrong)
        path: Path = tuple(
            None if p is None else (float(p[0] + backdrop.pan * t), float(p[1])) for t, p in enumerate(track.at)
        )
        seen = [t for t, p in enumerate(track.at) if p is not None]
        first, last = track.at[seen[0]], track.at[seen[-1]]
        assert first is not None and last is not None
        enters = _side(first[0]) if seen[0] > 0 else None
        outside = not -2 <= last[0] < SIDE + 2 or not -2 <= last[1] < SIDE + 2
        leaves = _side(last[0]) if (outside or seen[-1] < len(frames) - 1) else None
        if leaves and not outside and min(last[0], SIDE - last[0]) > RADIUS[looks[1]] + 10:
            leaves = None
        objects.append(TrackedObject(*looks, "moves", (0, 0), enters, leaves, path))
        all_turns.append([None if p is None else p[2] for p in track.at])
    # Deeds that involve nobody else first, because what bounces touches nobody.
    alone = [_deed(o.shape, o.path, turns, len(o.path) - 1) for o, turns in zip(objects, all_turns, strict=True)]
    objects = [replace(o, deed=deed, way=way) for o, (deed, way) in zip(objects, alone, strict=True)]
    contacts = _contacts(objects, wrong)
    _through(objects, wrong)
    for i, o in enumerate(objects):
        touched = min((t for t, a, b in contacts if i in (a, b)), default=len(o.path) - 1)
        deed, way = _deed(o.shape, o.path, all_turns[i], touched)
        objects[i] = replace(o, deed=deed, way=way)
        if objects[i].deed == "irregular":
            wrong.append(f"the {o.look} changes its speed by itself")
    return Verdict(backdrop.ground, backdrop.light, backdrop.pan, tuple(objects), tuple(contacts), tuple(wrong))
