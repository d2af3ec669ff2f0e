"""The draft length of the next pass: the one that is expected to make the most tokens final per second.

Passes are timed and their accepted drafts counted. The cost of a length that was never timed is interpolated linearly
between those that were; the cost of one that lost falls a little with every pass, so it is tried again.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

# The first length that is tried, and how many passes of a new length are timed, as the first may be slow.
FIRST, TRIAL = 4, 2
# The fastest of this many last passes is a length's cost, as other programs only make passes slower.
LATELY = 5
# Decay of the weight of older passes.
FORGET = 0.04
# Maximum time that trials may lose per video, in one-token passes: a share of its tokens, but at least STAKE.
STAKE, SHARE = 4.0, 0.02
# Maximum share of the time of one-token passes for choosing a length, and maximum passes between two choices: a choice
# takes 60 us, a pass of a small model 300, and another program may have made a choice slow.
LOOKS, PAUSE = 0.005, 32
# Factor on the cost of a length that lost, for each pass without it; its effect halves each time the length loses.
EASE = 0.995


@dataclass
class _Window:
    """Passes of one draft length: seconds of the last ones, and of a one-token pass at that time; number of the last
    pass; how often the length lost; passes in this video and their final tokens.
    """

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=LATELY))
    one: float = 0.0
    last: int = 0
    lost: int = 0
    passes: int = 0
    tokens: float = 0.0


class DraftWindow:
    """Chooses the draft lengths of a decode: powers of two up to `most`."""

    def __init__(self, most: int) -> None:
        self._sizes = [1 << i for i in range(most.bit_length())]
        self._timed = {1: _Window()}
        self._now, self._trial, self._passes = 1, TRIAL, 0
        # By position in a pass: how many drafts were checked, and how many of them were right.
        self._tried, self._right = [0.0] * most, [0.0] * most
        self._stake = 0.0
        # The first pass that may choose again.
        self._look = 0

    def begin(self, tokens: int, most: int | None = None) -> None:
        """Start another video or batch of `tokens` tokens; its passes take at most `most`; None: as before."""
        self._sizes = [size for size in self._sizes if size <= (most or size)]
        self._stake = max(STAKE, SHARE * tokens)
        for window in self._timed.values():
            window.passes, window.tokens = 0, 0.0

    def choose(self, promising: Callable[[], float]) -> int:
        """The draft length of the next pass; `promising` gives the share of right drafts among the last tokens."""
        if self._trial == 0 and self._passes >= self._look:
            began = time.perf_counter()
            if len(self._timed) == 1 and len(self._sizes) > 1:
                best = min(FIRST, self._sizes[-1])
            else:
                costs, left, share = {size: self._cost(size) for size in self._sizes}, self._left(), promising()
                affordable = [s for s in self._sizes if s == 1 or self._most(s) - costs[1] <= left / TRIAL]
                best = max(affordable, key=lambda size: self._expected(size, share) / costs[size])
            if best != self._now:
                if self._now in self._timed:
                    self._timed[self._now].lost += 1
                self._now = best
            self._trial = 0 if len(self._timed.setdefault(best, _Window()).seconds) >= TRIAL else TRIAL
            took = time.perf_counter() - began
            pause = min(PAUSE, math.ceil(took / max(LOOKS * min(self._timed[1].seconds), 1e-9)))
            self._look = self._passes + (pause if best == 1 else 0)
        return self._now

    def learn(self, window: int, accepted: list[int], seconds: float) -> None:
        """Record a pass of a draft length: tokens of each video that became final, and seconds."""
        self._passes += 1
        self._trial = max(0, self._trial - 1)
        # Fewer tokens than the window may be left, near the end of a frame or video.
        timed = self._timed.get(window)
        if timed is not None:
            timed.seconds.append(seconds)
            timed.last = self._passes
            timed.passes += 1
            timed.tokens += sum(accepted) / max(1, len(accepted))
        if window == 1:
            return
        if timed is not None:
            timed.one = min(self._timed[1].seconds)
        for numbers in (self._tried, self._right):
            numbers[:] = [n * (1 - FORGET) for n in numbers]
        for count in accepted:
            for place in range(1, min(count + 1, window)):
                self._tried[place] += 1
                self._right[place] += place < count

    def _seconds(self, window: _Window) -> float:
        """Seconds of a pass of a timed draft length, scaled if one-token passes have become faster since then."""
        seconds, one = min(window.seconds), min(self._timed[1].seconds)
        return seconds * one / window.one if window.one > one else seconds

    def _left(self) -> float:
        """Seconds that trials may still cost, compared with passes of one token."""
        one = min(self._timed[1].seconds)
        left = self._stake * one
        for window in self._timed.values():
            if window.seconds:
                left += window.tokens * one - window.passes * self._seconds(window)
        return left

    def _expected(self, size: int, promising: float) -> float:
        """Expected final tokens of a pass with a draft length."""
        total, reached, right = 1.0, 1.0, promising
        for place in range(1, size):
            # A position that was seldom reached is as likely right as the one before it.
            right = (self._right[place] + right) / (self._tried[place] + 1)
            reached *= max(right, promising) if self._now == 1 else right
            total += reached
            if reached < 0.001:
                break
        return total

    def _most(self, size: int) -> float:
        """Upper estimate of the seconds of a pass with a draft length: measured, or those of the next shorter timed
        length, scaled by tokens. It limits trials, however much better a length that lost looks by now.
        """
        timed = max(s for s, w in self._timed.items() if s <= size and w.seconds)
        return self._seconds(self._timed[timed]) * size / timed

    def _cost(self, size: int) -> float:
        """Seconds of a pass with a draft length, measured or interpolated."""
        timed = self._timed.get(size)
        if timed is not None and timed.seconds:
            cost = self._seconds(timed)
            return cost if size == self._now else cost * EASE ** ((self._passes - timed.last) / 2**timed.lost)
        known = sorted(s for s, w in self._timed.items() if w.seconds)
        below = max(s for s in known if s < size)
        above = min((s for s in known if s > size), default=0)
        low, high = (below, above) if above else (known[-2], known[-1]) if len(known) > 1 else (1, 1)
        if low == high:
            return min(self._timed[1].seconds)
        a, b = self._seconds(self._timed[low]), self._seconds(self._timed[high])
        return max(a, a + (b - a) * (size - low) / (high - low))
