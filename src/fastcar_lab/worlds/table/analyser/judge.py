"""Does a video show what is said of it? Each part right or wrong, and all together."""

from __future__ import annotations

import itertools

import numpy as np

from fastcar_lab.worlds.table.analyser.verdict import TrackedObject, Verdict
from fastcar_lab.worlds.table.said import LOOKS, Said, SaidThing

KEYS = ("ground", "light", "camera", "count", "color", "shape", "material", "size", "motion", "relation", "persists")
_CONTACTS = {"hits": {(0, 1)}, "chain": {(0, 1), (1, 2)}}


def _moves_right(thing: SaidThing, seen: TrackedObject, hit: bool) -> bool:
    """Whether an object does what is said of it, until something touches it; what is `hit` may leave the frame."""
    if thing.deed is None:
        return True
    if thing.enters is not None and seen.enters != thing.enters:
        return False
    if thing.leaves is not None and seen.leaves is None:
        return False
    if thing.leaves and seen.leaves != thing.leaves:
        return False
    gone = seen.leaves is not None and thing.leaves is None and not hit and thing.way == (0, 0)
    came = seen.enters is not None and thing.enters is None
    return seen.deed == thing.deed and thing.way in (None, seen.way) and not came and not gone


def _passes(first: TrackedObject, second: TrackedObject, front: bool) -> bool:
    """Whether the first crosses the column of the second, on the wanted side of it."""
    both = [(p, q) for p, q in zip(first.path, second.path, strict=True) if p is not None and q is not None]
    if len(both) < 2:
        return False
    beside = [p[0] - q[0] for p, q in both]
    depth = float(np.mean([p[1] - q[1] for p, q in both]))
    return beside[0] * beside[-1] < 0 and (depth > 2 if front else depth < -2)


def _related(relation: str | None, objects: list[TrackedObject], contacts: set[tuple[int, int]]) -> bool:
    """Whether the objects, in the order in which they are named, meet as is said, and else not."""
    if contacts != _CONTACTS.get(relation or "", set()):
        return False
    if relation is None or len(objects) < 2:
        return relation is None
    if relation in ("in_front_of", "behind"):
        front = relation == "in_front_of"
        if any(o.deed == "moves" for o in objects[:2]):
            return _passes(objects[0], objects[1], front)
        p, q = objects[0].path[0], objects[1].path[0]
        return p is not None and q is not None and (p[1] > q[1]) == front
    if relation in ("left_of", "right_of"):
        p, q = objects[0].path[0], objects[1].path[0]
        return p is not None and q is not None and (p[0] < q[0]) == (relation == "left_of")
    return True


def judge(verdict: Verdict, said: Said) -> dict[str, bool]:
    """Right or wrong for each of `KEYS`, and `all` of them together; what nothing is said of is right. The objects seen
    are taken for those named in the order that makes most of them right.
    """
    right = {
        "ground": said.ground in (None, verdict.ground),
        "light": said.light in (None, verdict.light),
        "camera": int(np.sign(verdict.pan)) == said.camera,
        "count": len(verdict.objects) == len(said.things),
        "persists": not verdict.wrong,
    }
    best: dict[str, bool] = dict.fromkeys(("color", "shape", "material", "size", "motion", "relation"), False)
    score = -1
    if right["count"]:
        for order in itertools.permutations(range(len(said.things))):
            seen = [verdict.objects[k] for k in order]
            place = {k: i for i, k in enumerate(order)}
            pairs = {(min(place[a], place[b]), max(place[a], place[b])) for _, a, b in verdict.contacts}
            matches = {
                name: [getattr(t, name) in (None, getattr(s, name)) for s, t in zip(seen, said.things, strict=True)]
                for name in LOOKS
            }
            hit = said.relation in _CONTACTS
            matches["motion"] = [
                _moves_right(thing, s, hit and i > 0)
                for i, (thing, s) in enumerate(zip(said.things, seen, strict=True))
            ]
            matches["relation"] = [_related(said.relation, seen, pairs)]
            total = sum(sum(m) for m in matches.values())
            if total > score:
                score, best = total, {name: all(m) for name, m in matches.items()}
    result = {**right, **best}
    return {**{key: result[key] for key in KEYS}, "all": all(result.values())}
