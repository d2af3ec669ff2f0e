"""Clips with mistakes such as a model makes, and what it should draw all the same.

Physics continues from what was drawn. What a frame should be is said place after place, given what was drawn before in
it: an object that is drawn already is not drawn again, and one that was left out comes in the next place near it, or
in the next frame.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np

from fastcar_lab.worlds.table_actions.codes import (
    CELL,
    GRID,
    GROUND_CODES,
    PLACES,
    RISE,
    Codes,
    encode,
    ground_codes,
    object_code,
    objects,
)
from fastcar_lab.worlds.table_actions.keys import Player, random_keys
from fastcar_lab.worlds.table_actions.samples import Clip, scene_of
from fastcar_lab.worlds.table_actions.scene import (
    BOTTOM,
    TOP,
    Action,
    Look,
    Place,
    Scene,
    State,
    bounds,
    draw_scene,
    draw_state,
    step,
)

NEAR = 3  # steps of the grid by which an object may be moved to be drawn in a later place
GLANCING = 0.5  # share of the times that a player does not drive at the middle of an object
STILL = 0.4  # share of the clips in which nothing but the ball moves that are taken
_KINDS = (("moved", "gone", "twice", "other"), (5, 2, 2, 1))
_BEFORE = (0, 0, 8, 30, 120)  # frames of a session before its first clip


def _into(at: int, place: Place) -> Place:
    """The nearest place on the ground that is in this one of the frame's 64."""
    row, column = divmod(at, GRID)
    x, y = (max(CELL * n, min(CELL * n + CELL - 1, v)) for n, v in ((column, place[0]), (row, place[1] - RISE)))
    return x, y + RISE


def wanted(scene: Scene, state: State, drawn: Codes) -> Codes:
    """Codes [64] that should have been drawn of a state, each given those `drawn` before it in the frame."""
    right = ground_codes(scene)
    due: dict[int, tuple[Look, Place]] = {}

    def put(look: Look, place: Place, after: int) -> None:
        row, column = divmod(object_code(look, place)[0], GRID)
        near = [GRID * r + c for r in (row, row + 1) for c in (column - 1, column, column + 1) if r < GRID > c >= 0]
        ways = [(max(abs(a - b) for a, b in zip(_into(at, place), place, strict=True)), at) for at in near]
        ways = [way for way in ways if way[1] > after and way[1] not in due and way[0] <= NEAR]
        if ways:
            at = min(ways)[1]
            due[at] = look, _into(at, place)

    for look, place in zip(scene.looks, state, strict=True):
        put(look, place, -1)
    seen = {object_code(look, place)[0]: look for look, place in objects(drawn)}
    for at in range(PLACES):
        here, there = due.pop(at, None), seen.get(at)
        if here is not None:
            right[at] = object_code(*here)[1]
        later = [k for k, (look, _) in due.items() if look == there]
        for k in later:
            del due[k]
        if here is not None and here[0] != there and (there is None or later):
            put(*here, at)
    return right


class _Session:
    """What is known of one session: where everything is thought to be."""

    def __init__(self, rng: random.Random, kept_out: bool) -> None:
        self.scene = scene_of(rng, kept_out=kept_out)
        self.halves = self.scene.halves
        self.before = self.now = draw_state(self.scene, rng)
        self._player = Player(rng, self.halves, GLANCING)
        self._keys = random_keys(rng, rng.choice(((1, 1), (1, 8), (4, 16))))
        self._plays = rng.random() < 0.65

    def expect(self) -> tuple[Action, State]:
        """A key, and where everything should be in the next frame."""
        action = self._player.key(self.now) if self._plays else next(self._keys)
        return action, step(self.before, self.now, action, self.halves)

    def see(self, state: State, drawn: Codes | None = None) -> None:
        """Continue from the frame that was drawn where this state was expected."""
        found = list(zip(self.scene.looks, state, strict=True)) if drawn is None else list(objects(drawn))
        self.before, self.now = (
            self.now,
            tuple(
                min(
                    (p for other, p in found if other == look),
                    key=lambda p: abs(p[0] - x) + abs(p[1] - y),
                    default=(x, y),
                )
                for look, (x, y) in zip(self.scene.looks, state, strict=True)
            ),
        )


def _spoiled(right: Codes, scene: Scene, state: State, rng: random.Random) -> Codes:
    """The frame with a mistake at one object, where there is room for it."""
    made, i, kind = right.copy(), rng.randrange(len(state)), rng.choices(*_KINDS)[0]
    look, (x, y) = scene.looks[i], state[i]
    at, _ = object_code(look, (x, y))
    if kind == "other":
        made[at] = object_code(draw_scene(rng).looks[min(i, 1)], (x, y))[1]
        return made
    if kind == "moved":
        low, high = bounds(scene.halves[i], 0)
        place = min(max(x + rng.randint(-2, 2), low), high), min(max(y + rng.randint(-2, 2), TOP), BOTTOM)
    else:
        row, column = divmod(at, GRID)
        near = min(max(row + rng.randint(-1, 1), 1), GRID - 2), min(max(column + rng.randint(-1, 1), 0), GRID - 1)
        place = _into(GRID * near[0] + near[1], (x, y))
    if kind != "twice":
        made[at] = ground_codes(scene)[at]
    there, code = object_code(look, place)
    if kind != "gone" and made[there] < GROUND_CODES:
        made[there] = code
    return made


def clips(rng: random.Random, frames: int, mistakes: float, *, kept_out: bool = False) -> Iterator[Clip]:
    """Clips of so many frames, a few of each session; none of the first two frames has one of the mistakes."""
    while True:
        session = _Session(rng, kept_out)
        for _ in range(rng.choice(_BEFORE)):
            session.see(session.expect()[1])
        for _ in range(4):
            rests = session.before == session.now
            seen = [encode(session.scene, [session.now])[0]]
            right, actions, moved = [*seen], [], False
            for t in range(1, frames):
                action, state = session.expect()
                moved |= state[1:] != session.now[1:]
                frame = encode(session.scene, [state])[0]
                if t > 1 and rng.random() < mistakes:
                    frame = _spoiled(frame, session.scene, state, rng)
                right.append(wanted(session.scene, state, frame))
                session.see(state, frame)
                seen.append(frame)
                actions.append(action)
            # Only what begins at rest says with one frame how it continues.
            counts = np.arange(frames) > (0 if rests else 1)
            if moved or rng.random() < STILL:
                yield Clip(np.stack(seen), np.stack(right), np.array(actions, np.float32), counts)
