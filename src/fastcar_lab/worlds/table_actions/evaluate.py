"""Whether a session goes as the keys say: by the places of objects in every frame, however they were found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastcar_cli.inputs.worlds.physics import STEP
from fastcar_lab.worlds.table_actions.codes import Codes, objects
from fastcar_lab.worlds.table_actions.scene import STEERED, Action, Look, Place, Scene, State, step, touches

NEAR = 3  # pixels within which an object is where it should be
Seen = dict[Look, list[Place]]  # where objects of each look are in a frame, in steps of the grid


def seen_in(codes: Codes) -> Seen:
    """What a frame's codes [64] say."""
    found: Seen = {}
    for look, place in objects(codes):
        found.setdefault(look, []).append(place)
    return found


@dataclass(frozen=True)
class Shares:
    """Shares of what is right: `obeys` of frames, `kept` of sessions, `pushed` of objects that contacts move."""

    obeys: float
    kept: float
    pushed: float
    all_near: float


def _off(seen: Seen, look: Look, place: Place) -> float:
    """Pixels that an object is from where it should be, along the worse side."""
    spots = seen.get(look, [])
    return min((STEP * max(abs(x - place[0]), abs(y - place[1])) for x, y in spots), default=float("inf"))


def judge(scenes: Sequence[Scene], truths: Sequence[Sequence[State]], seen: Sequence[Sequence[Seen]]) -> Shares:
    """Of sessions that should have gone like `truths`; frames of both in the same order, the first ones given.

    An object counts as pushed where it should move by 4 px or more in all, and right where it moves at least half as
    far in about that direction.
    """
    obeys: list[bool] = []
    near: list[bool] = []
    kept: list[bool] = []
    pushed: list[bool] = []
    for scene, truth, frames in zip(scenes, truths, seen, strict=True):
        wanted = sorted(map(repr, scene.looks))
        kept.append(sorted(repr(look) for look, spots in frames[-1].items() for _ in spots) == wanted)
        for state, frame in zip(truth[1:], frames[1:], strict=True):
            off = [_off(frame, look, place) for look, place in zip(scene.looks, state, strict=True)]
            obeys.append(off[0] <= NEAR)
            near.append(max(off) <= NEAR)
        for i, look in enumerate(scene.looks):
            (x0, y0), (x1, y1) = truth[0][i], truth[-1][i]
            way = (x1 - x0, y1 - y0)
            far = way[0] ** 2 + way[1] ** 2
            if look.shape == STEERED or far < 4:
                continue
            spots = frames[-1].get(look, [])
            along = [(way[0] * (x - x0) + way[1] * (y - y0)) / far for x, y in spots]
            pushed.append(any(share >= 0.5 for share in along))
    share = [sum(values) / max(1, len(values)) for values in (obeys, kept, pushed, near)]
    return Shares(*share)


@dataclass(frozen=True)
class Steps:
    """Counts over single steps of a session, each from where things are seen to be: right ones of all.

    `steered` are steps of the ball within `NEAR` px of the physics, `pushed` those of objects at rest that something
    hits and that move the same way. Where objects overlap already, as after a contact that was missed, neither counts.
    """

    steered: tuple[int, int]
    pushed: tuple[int, int]


def state_in(scene: Scene, seen: Seen) -> State | None:
    """Where the scene's objects are in a frame; None where one is missing or there twice."""
    spots = [seen.get(look, []) for look in scene.looks]
    return tuple(spot[0] for spot in spots) if all(len(spot) == 1 for spot in spots) else None


def steps_right(scene: Scene, frames: Sequence[Seen], actions: Sequence[Action]) -> Steps:
    """Of a session's frames, the first at rest, and the keys between them."""
    states = [state_in(scene, seen) for seen in frames]
    before = [states[0], *states]
    steered, pushed = [], []
    for a, b, c, action in zip(before, states, states[1:], actions, strict=False):
        if a is None or b is None or c is None or touches(b, scene.halves):
            continue
        wanted = step(a, b, action, scene.halves)
        steered.append(STEP * max(abs(x - y) for x, y in zip(c[0], wanted[0], strict=True)) <= NEAR)
        for i in range(1, len(wanted)):
            if a[i] == b[i] != wanted[i]:
                way = [w - x for w, x in zip(wanted[i], b[i], strict=True)]
                pushed.append(sum((x - y) * w for x, y, w in zip(c[i], b[i], way, strict=True)) > 0)
    return Steps((sum(steered), len(steered)), (sum(pushed), len(pushed)))
