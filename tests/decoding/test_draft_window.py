"""The window that `--draft auto` chooses: near the best one, and free where drafts are never right."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_cli.decoding.draft_window import DraftWindow

TOKENS, MOST = 1024, 16


def _decode(right: float, cost: Callable[[int], float], seed: int = 0) -> tuple[float, dict[int, int]]:
    """Seconds of a decode whose drafts are right with this probability, and its passes by window."""
    chance, windows = random.Random(seed), DraftWindow(MOST)
    seconds, done, passes = 0.0, 0, dict[int, int]()
    last: list[bool] = []
    while done < TOKENS:
        window = windows.choose(sum(last[-16:]) / 16 if len(last) >= 4 else 0.0)
        accepted = 1
        while accepted < window and chance.random() < right:
            accepted += 1
        last += [chance.random() < right for _ in range(accepted)]
        windows.learn(window, accepted, cost(window))
        seconds, done = seconds + cost(window), done + accepted
        passes[window] = passes.get(window, 0) + 1
    return seconds, passes


def _best(right: float, cost: Callable[[int], float]) -> float:
    """Seconds with the best fixed window."""
    return min(TOKENS / sum(right**i for i in range(w)) * cost(w) for w in (1, 2, 4, 8, 16))


def test_drafts_that_are_never_right_are_never_tried() -> None:
    assert _decode(0.0, lambda window: 1.0)[1] == {1: TOKENS}


@settings(max_examples=60, deadline=None)
@given(right=st.floats(0, 1), slope=st.floats(0, 2), seed=st.integers(0, 10**6))
def test_a_decode_is_never_much_slower_than_without_drafts(right: float, slope: float, seed: int) -> None:
    assert _decode(right, lambda window: 1 + slope * (window - 1), seed)[0] <= 1.05 * TOKENS


@pytest.mark.parametrize(("right", "slope"), [(0.95, 0.02), (0.95, 0.1), (0.85, 0.02), (0.7, 0.1), (0.95, 0.3)])
def test_the_choice_is_near_the_best_window(right: float, slope: float) -> None:
    def cost(window: int) -> float:
        return 1 + slope * (window - 1)

    assert _decode(right, cost)[0] <= 1.25 * _best(right, cost)


@given(st.integers(1, 64))
def test_windows_are_within_the_most(most: int) -> None:
    windows = DraftWindow(most)
    for _ in range(50):
        window = windows.choose(1.0)
        assert 1 <= window <= most
        windows.learn(window, window, 1.0)
