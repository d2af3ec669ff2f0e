"""The threshold that keeps a replay ratio, in its plainest form, from the formula in docs/method.md."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

Key = tuple[int, int, int]
"""Layer, row and input token."""
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class ReferenceRatio:
    """One video's threshold for the layers that share one; `members` are their pairs of layer and row."""

    ratio: float
    frame: int
    passes: int
    members: list[tuple[int, int]]
    max_age: int | None

    def threshold(
        self, t: int, gated: Mapping[Key, float], replayed: Mapping[Key, bool], age: Mapping[Key, int]
    ) -> float:
        """Tau at input token t, from the scores, decisions and ages of the tokens before it."""
        every = max(1, self.frame // 16)
        now = t - (t - self.frame) % every
        past = range(max(self.frame, now - self.frame), now)
        if not past:
            return math.inf
        missing = self.ratio * self.passes * len(self.members) - sum(
            replayed[i, r, s] for i, r in self.members for s in range(now)
        )
        possible = sum(
            self._possible(now, place, age[i, r, place]) for i, r in self.members for place in self._last(now)
        )
        share = missing / max(possible, 0.5)
        if share <= 0 or share >= 1:
            return math.inf if share <= 0 else -math.inf
        scores = sorted(
            (gated[i, r, s] for i, r in self.members for s in past if self._young(age[i, r, self._latest(s, now)])),
            reverse=True,
        )
        if not scores:
            return -math.inf
        wanted = share * len(scores)
        value = scores[int(wanted)]
        above, equal = sum(s > value for s in scores), scores.count(value)
        taken = (now * GOLDEN) % 1.0 * equal < wanted - above
        return math.nextafter(value, -math.inf) if taken else value

    def _last(self, now: int) -> range:
        return range(now - self.frame, now)

    def _latest(self, token: int, now: int) -> int:
        """The last token before `now` at the place of this one."""
        return now - 1 - (now - 1 - token) % self.frame

    def _young(self, age: int) -> bool:
        return self.max_age is None or age < self.max_age

    def _possible(self, now: int, place: int, age: int) -> int:
        """Replays that the place of this token can still have, one visit after the other."""
        count = 0
        for visit in range(place + self.frame, self.passes, self.frame):
            assert visit >= now
            may = self._young(age)
            age, count = (age + 1, count + 1) if may else (0, count)
        return count
