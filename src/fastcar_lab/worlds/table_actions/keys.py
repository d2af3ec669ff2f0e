"""Keys that a person might press: at random, held for a while, or on the way to an object."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from fastcar_lab.worlds.table_actions.scene import ACTIONS, DEPTH, Action, State

_HOLD = (2, 16)


def random_keys(rng: random.Random, held: tuple[int, int] = _HOLD) -> Iterator[Action]:
    """Any key, each held for a while."""
    while True:
        key = rng.choice(ACTIONS)
        yield from [key] * rng.randint(*held)


class Player:
    """Chooses keys with a state in sight: drives at objects, from the side or from above, and sometimes anywhere.

    A share of the times that it drives at one, `glancing`, it does not aim at the middle.
    """

    def __init__(self, rng: random.Random, halves: Sequence[int], glancing: float = 0.0) -> None:
        self.rng, self.halves, self.glancing = rng, halves, glancing
        self._left, self._mind, self._beside = 0, "wander", 0
        self._target, self._axis, self._key = 1, 0, ACTIONS[0]

    def _choose(self, count: int) -> None:
        rng = self.rng
        self._mind = rng.choices(("hit", "wander", "jitter"), (0.7, 0.22, 0.08))[0]
        self._left = rng.randint(2, 6) if self._mind == "jitter" else rng.randint(6, 30)
        self._target, self._axis = rng.randrange(1, count), rng.randrange(2)
        self._key = rng.choice(ACTIONS)
        self._beside = 0
        if self.glancing and rng.random() < self.glancing:
            far = DEPTH if self._axis == 0 else self.halves[0] + self.halves[self._target]
            self._beside = rng.choice((-1, 1)) * rng.randint(far // 2, far)

    def key(self, state: State) -> Action:
        """The key for the next frame."""
        if not self._left:
            self._choose(len(state))
        self._left -= 1
        if self._mind == "jitter":
            return self.rng.choice(ACTIONS)
        if self._mind == "wander":
            return self._key
        (x, y), (tx, ty) = state[0], state[self._target]
        # First beside it on the other axis, then towards it.
        other = 1 - self._axis
        gap = [tx - x, ty - y]
        gap[other] += self._beside
        near = 1 if self._beside else DEPTH // 2 if other == 1 else self.halves[0] // 2 + 1
        along = other if abs(gap[other]) > near else self._axis
        if not gap[along]:
            return ACTIONS[0]
        way = 1 if gap[along] > 0 else -1
        return (way, 0) if along == 0 else (0, way)
