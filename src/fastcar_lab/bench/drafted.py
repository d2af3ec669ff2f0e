"""Passes with drafts at a given acceptance: their cost, measured, and what they are worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastcar_cli.profile.profiler import tokens_of
from fastcar_lab.bench import window
from fastcar_lab.bench.cases import Benchmark


def measure(
    plan: Benchmark, windows: Sequence[int], accept: float, on_progress: Callable[[int, int], None] = lambda *_: None
) -> dict[str, Any]:
    """What `window.measure` says of one token and of these windows, and what drafts bring.

    Each line has besides: `cost`, the pass at the model's full depth and its draws in those of one token;
    `tokens_per_pass`, where each draft is right with probability `accept`; and `speedup`.
    """
    result = window.measure(plan, list(dict.fromkeys((1, *windows))), on_progress)
    scale = 1.0 if plan.whole else plan.spec.decoder.layers / plan.layers
    for by_window in result["lines"].values():
        whole = {size: line["ms"] * scale + line["draw_ms"] for size, line in by_window.items()}
        for size, line in by_window.items():
            cost, tokens = whole[size] / whole[1], tokens_of(size, accept)
            line |= {"cost": cost, "tokens_per_pass": tokens, "speedup": tokens / cost}
    return result | {"accept": accept}
