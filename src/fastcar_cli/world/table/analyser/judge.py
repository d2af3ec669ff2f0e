"""Does a video show what its scene says? Each part right or wrong, and all together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np

from fastcar_cli.world.table.analyser.verdict import Seen, Verdict
from fastcar_cli.world.table.scene import Scene, Thing

KEYS = ("ground", "light", "camera", "count", "color", "shape", "material", "size", "motion", "relation", "persists")


def _deed(thing: Thing) -> str:
    if thing.hop:
        return "bounces"
    if thing.spin:
        return "turns"
    return "moves" if thing.moves else "still"


def _moves_right(scene: Scene, i: int, seen: Seen) -> bool:
    """Whether an object does what its scene says, until something touches it."""
    thing = scene.things[i]
    if scene.story == "enter" and i == 0:
        return seen.enters == ("left" if thing.vx > 0 else "right") and seen.deed == "moves"
    if scene.story == "leave" and i == 0:
        return seen.leaves == ("right" if thing.vx > 0 else "left") and seen.deed == "moves"
    way = (int(np.sign(thing.vx)), int(np.sign(thing.vy)))
    hit_last = scene.story.rstrip("+") in ("hit", "chain") and i > 0
    gone = seen.leaves is not None and not hit_last and not thing.moves
    return seen.deed == _deed(thing) and seen.way == way and seen.enters is None and not gone


def _passes(first: Seen, second: Seen, front: bool) -> bool:
    """Whether the first crosses the column of the second, on the wanted side of it."""
    both = [(p, q) for p, q in zip(first.path, second.path, strict=True) if p is not None and q is not None]
    if len(both) < 2:
        return False
    beside = [p[0] - q[0] for p, q in both]
    depth = float(np.mean([p[1] - q[1] for p, q in both]))
    return beside[0] * beside[-1] < 0 and (depth > 2 if front else depth < -2)


def _related(scene: Scene, objects: list[Seen], contacts: set[tuple[int, int]]) -> bool:
    """Whether the objects, in the scene's order, meet as its story says."""
    base = scene.story.rstrip("+")
    wanted = {"hit": {(0, 1)}, "chain": {(0, 1), (1, 2)}}.get(base, set())
    if contacts != wanted:
        return False
    if base in ("front", "behind"):
        return _passes(objects[0], objects[1], base == "front")
    if base == "apart" and not any(t.moves for t in scene.things[:2]):
        gap = scene.things[0].x - scene.things[1].x
        p, q = objects[0].path[0], objects[1].path[0]
        return abs(gap) < 30 or (p is not None and q is not None and (p[0] - q[0]) * gap > 0)
    return True


def judge(verdict: Verdict, scene: Scene) -> dict[str, bool]:
    """Right or wrong for each of `KEYS`, and `all` of them together.

    The objects seen are taken for those of the scene in the order that makes most of them right.
    """
    right = {
        "ground": verdict.ground == scene.ground,
        "light": verdict.light == scene.light,
        "camera": int(np.sign(verdict.pan)) == int(np.sign(scene.pan)),
        "count": len(verdict.objects) == len(scene.things),
        "persists": not verdict.wrong,
    }
    best: dict[str, bool] = dict.fromkeys(("color", "shape", "material", "size", "motion", "relation"), False)
    score = -1
    if right["count"]:
        for order in itertools.permutations(range(len(scene.things))):
            seen = [verdict.objects[k] for k in order]
            place = {k: i for i, k in enumerate(order)}
            pairs = {(min(place[a], place[b]), max(place[a], place[b])) for _, a, b in verdict.contacts}
            matches = {
                name: [getattr(s, name) == getattr(t, name) for s, t in zip(seen, scene.things, strict=True)]
                for name in ("color", "shape", "material", "size")
            }
            matches["motion"] = [_moves_right(scene, i, s) for i, s in enumerate(seen)]
            matches["relation"] = [_related(scene, seen, pairs)]
            total = sum(sum(m) for m in matches.values())
            if total > score:
                score, best = total, {name: all(m) for name, m in matches.items()}
    result = {**right, **best}
    return {**{key: result[key] for key in KEYS}, "all": all(result.values())}


def shares(judgements: Iterable[Mapping[str, bool]]) -> dict[str, float]:
    """Share of right answers for each key over many videos."""
    rows = list(judgements)
    return {key: sum(r[key] for r in rows) / len(rows) for key in rows[0]} if rows else {}
