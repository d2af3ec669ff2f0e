"""The window that `auto` chooses, on machines and models made up."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding.drafts.length import DraftWindow
from fastcar_cli.pipeline.pipeline import VideoPipeline

TOKENS, MOST = 1024, 16


def _decode(
    right: Callable[[int], float],
    cost: Callable[[int], float],
    seed: int = 0,
    noise: float = 0.0,
    windows: DraftWindow | None = None,
) -> tuple[float, dict[int, int]]:
    """Seconds of a decode and its passes by window; noise: mean seconds that other programs add to what is measured.

    right: the probability that a draft is right, by how many tokens are done.
    """
    chance, windows = random.Random(seed), windows or DraftWindow(MOST)
    windows.begin(TOKENS)
    seconds, done, passes = 0.0, 0, dict[int, int]()
    last: list[bool] = []
    while done < TOKENS:
        promising = sum(last[-16:]) / 16 if len(last) >= 4 else 0.0
        window = windows.choose(partial(float, promising))
        accepted = 1
        while accepted < window and chance.random() < right(done):
            accepted += 1
        last += [chance.random() < right(done) for _ in range(accepted)]
        windows.learn(window, [accepted], cost(window) * (1 + (chance.expovariate(1 / noise) if noise else 0)))
        seconds, done = seconds + cost(window), done + accepted
        passes[window] = passes.get(window, 0) + 1
    return seconds, passes


def _line(slope: float) -> Callable[[int], float]:
    return lambda window: 1 + slope * (window - 1)


def _best(right: float, cost: Callable[[int], float]) -> float:
    """Seconds with the best fixed window."""
    return min(TOKENS / sum(right**i for i in range(w)) * cost(w) for w in (1, 2, 4, 8, 16))


@pytest.mark.parametrize("slope", [0.02, 0.2, 0.5, 1.0, 2.0])
def test_drafts_that_are_never_right_cost_two_passes(slope: float) -> None:
    seconds, passes = _decode(lambda done: 0.0, _line(slope))
    assert seconds <= 1.02 * TOKENS
    assert sum(n for window, n in passes.items() if window > 1) <= 8


@settings(max_examples=50, deadline=None)
@given(right=st.floats(0, 1), slope=st.floats(0, 2), seed=st.integers(0, 10**6))
def test_a_decode_is_never_much_slower_than_without_drafts(right: float, slope: float, seed: int) -> None:
    assert _decode(lambda done: right, _line(slope), seed)[0] <= 1.02 * TOKENS


@pytest.mark.slow
@settings(max_examples=50, deadline=None)
@given(before=st.floats(0, 1), right=st.floats(0, 1), slope=st.floats(0, 2), seed=st.integers(0, 10**6))
def test_what_another_video_gained_is_not_lost_again(before: float, right: float, slope: float, seed: int) -> None:
    windows = DraftWindow(MOST)
    _decode(lambda done: before, _line(slope), seed, windows=windows)
    assert _decode(lambda done: right, _line(slope), seed + 1, windows=windows)[0] <= 1.02 * TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    ("right", "slope"),
    [(0.95, 0.02), (0.95, 0.1), (0.85, 0.02), (0.7, 0.1), (0.95, 0.3), (0.93, 0.44), (0.5625, 0.375)],
)
def test_the_choice_is_near_the_best_window(right: float, slope: float, noise: float) -> None:
    runs = [_decode(lambda done: right, _line(slope), seed, noise)[0] for seed in range(20)]
    assert sum(runs) / len(runs) <= 1.1 * _best(right, _line(slope))


def test_drafts_that_become_right_are_taken() -> None:
    seconds, _ = _decode(lambda done: 0.0 if done < 64 else 0.95, _line(0.1))
    assert seconds <= 64 + 1.3 * _best(0.95, _line(0.1))


def test_what_windows_cost_in_a_slow_beginning_is_not_held_against_them() -> None:
    """As where the first passes of a process are slow and accept little."""
    for seed in range(20):
        asked = itertools.count()

        def cost(window: int, asked: Iterator[int] = asked) -> float:
            slow = 2.0 if next(asked) < 100 else 1.0  # 50 passes, as each asks twice
            return slow * (1.0 if window == 1 else 1.3 + 0.3 * (window - 1))

        _, passes = _decode(lambda done: 0.5 if done < 64 else 0.95, cost, seed)
        assert TOKENS / sum(passes.values()) > 1.5, f"seed {seed}: {passes}"


def test_long_looks_are_seldom_but_do_not_end() -> None:
    windows, looks = DraftWindow(MOST), list[int]()
    windows.begin(TOKENS)
    done = 0

    def promising() -> float:
        time.sleep(0.001)  # beside passes of 0.1 ms
        looks.append(done)
        return 0.0

    while done < 512:
        window = windows.choose(promising)
        windows.learn(window, [1], 1e-4 * window)
        done += 1
    late = [look for look in looks if look >= 64]
    assert 8 <= len(late) <= 14 and max(b - a for a, b in itertools.pairwise(looks)) <= 32


@given(st.integers(1, 64))
def test_windows_are_within_the_most(most: int) -> None:
    windows = DraftWindow(most)
    windows.begin(50)
    for _ in range(50):
        window = windows.choose(lambda: 1.0)
        assert 1 <= window <= most
        windows.learn(window, [window], 1.0)


def test_videos_of_a_pipeline_know_what_passes_of_the_one_before_cost() -> None:
    pipe = VideoPipeline.from_config(RunConfig.from_dict({"model": "mini", "generation": {"frames": 2}}))
    ball = "a red ball rolling to the right"
    first, second = (pipe.run([ball], [seed]).windows for seed in (1, 2))
    assert first is not None and first is second
    assert pipe.run([ball, ball], [1, 2]).windows is not first
