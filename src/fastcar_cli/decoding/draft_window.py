"""How many tokens the next pass takes: the window with which most tokens a second become final.

Both are measured, not modelled: passes of a window are timed, and what a pass accepts says what smaller windows would
have accepted. A window that was not timed yet, or lost some time ago, is tried for a few passes where the drafts that
were right call for it. While one token a pass is taken that is counted on tokens that are final anyway, so a model
whose drafts are never right pays nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TRIAL = 2
"""Passes of a window before it is judged."""

STALE = 40
"""Passes after which a window that lost is tried again, twice as many each time it loses."""

PROMISING = 0.4
"""Share of right drafts among the last tokens from which a window of several tokens is tried."""


@dataclass
class _Seen:
    """What passes of one window give lately: tokens a pass, seconds a pass, and when it is worth another trial."""

    tokens: float = 0.0
    seconds: float = 0.0
    counted: int = 0
    timed: int = 0
    retry: int = 0
    lost: int = 0

    def count(self, tokens: float) -> None:
        """Count what a pass accepts; older passes count less and less."""
        self.counted += 1
        self.tokens += max(1 / self.counted, 0.08) * (tokens - self.tokens)

    def time(self, seconds: float) -> None:
        """Count what a pass takes; one that another program interrupts counts for at most twice what is usual."""
        self.timed += 1
        seconds = min(seconds, 2 * self.seconds) if self.timed > 1 else seconds
        self.seconds += max(1 / self.timed, 0.2) * (seconds - self.seconds)

    @property
    def speed(self) -> float:
        """Tokens a second."""
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass
class DraftWindow:
    """Chooses the windows of a decode: 1, 2, 4 and on up to `most`."""

    most: int
    _now: int = 1
    _home: int = 1
    _left: int = TRIAL
    _passes: int = 0
    _seen: dict[int, _Seen] = field(default_factory=dict)

    def choose(self, promising: float) -> int:
        """The window of the next pass; `promising` is the share of right drafts among the last tokens."""
        if self._left == 0:
            self._now = self._next(promising)
        return self._now

    def learn(self, window: int, tokens: float, seconds: float) -> None:
        """Count a pass of a window: how many tokens of a video became final, in how many seconds."""
        self._passes += 1
        self._left = max(0, self._left - 1)
        for smaller, seen in self._seen.items():
            if smaller < window:
                seen.count(min(tokens, smaller))
        here = self._seen.setdefault(window, _Seen())
        here.count(tokens)
        here.time(seconds)

    def _next(self, promising: float) -> int:
        """The best window known, or another one that is worth a trial."""
        # A trial may have had fewer tokens than its window, near the end of a frame or video.
        tried = self._seen.setdefault(self._now, _Seen())
        best = max(self._seen, key=lambda window: self._seen[window].speed)
        if self._now != self._home:
            tried.lost = 0 if self._now == best else tried.lost + 1
            tried.retry = self._passes + STALE * 2**tried.lost
        self._home = best
        for window in self._untried(promising):
            seen = self._seen.get(window)
            if seen is None or self._passes >= seen.retry > 0:
                self._left = TRIAL
                return window
        self._left = 1
        return best

    def _untried(self, promising: float) -> list[int]:
        """Windows that may be better than the best one known, the more likely one first."""
        home, tokens = self._home, self._seen[self._home].tokens
        if home == 1:
            first = min(4, self.most)
            seen = self._seen.get(first)
            # What it costs is known from the trial that it lost.
            worth = seen is None or sum(promising**i for i in range(first)) > seen.seconds * self._seen[1].speed
            return [first] if first > 1 and promising >= PROMISING and worth else []
        larger = min(home * (4 if tokens > 0.7 * home else 2), self.most)
        # A window of which few drafts are right has nothing to gain from more of them.
        return ([larger] if larger > home and tokens > 0.5 * home else []) + [home // 2]
