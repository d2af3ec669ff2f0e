"""Times dense passes beside processes that keep a core busy: what a second thread is worth, or costs, there."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fastcar_cli.profile.machine import processor
from fastcar_lab.bench.cases import Benchmark
from fastcar_lab.bench.contestants import engine
from fastcar_lab.bench.measure import models


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep `count` processes counting; they are gone afterwards."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(
    plan: Benchmark, busy: int, threads: int, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Time dense passes of the native kernels on one thread and on `threads`, in turn, beside `busy` processes.

    Returns machine, plan, and for each format of the weights milliseconds a pass (median of turns) on one thread and
    on `threads`, and `threads_over_one`, the median over turns of their ratio. torch's number of threads is what it
    was, afterwards.
    """
    before = torch.get_num_threads()
    runs: dict[tuple[str, int], Callable[[int], float | None]] = {}
    try:
        for form, model in models(plan).items():
            for count in (1, threads):
                # An executor takes the number that torch has when it is made.
                torch.set_num_threads(count)
                runs[form, count] = engine(
                    model, rows=plan.rows, context=plan.context, passes=plan.passes, executor="native"
                )
    finally:
        torch.set_num_threads(before)
    seconds: dict[tuple[str, int], list[float]] = {key: [] for key in runs}
    with busy_processes(busy):
        # The first turn only warms up.
        for turn in range(plan.turns + 1):
            for key, run in runs.items():
                began = time.perf_counter()
                run(plan.passes)
                if turn:
                    seconds[key].append((time.perf_counter() - began) / plan.passes)
            on_progress(turn + 1, plan.turns + 1)
    lines = {}
    for form in dict.fromkeys(form for form, _ in runs):
        one, several = seconds[form, 1], seconds[form, threads]
        lines[form] = {
            "one_thread_ms": statistics.median(one) * 1e3,
            "threads_ms": statistics.median(several) * 1e3,
            "threads_over_one": statistics.median(b / a for a, b in zip(one, several, strict=True)),
        }
    return {
        "cpu": processor(),
        "torch": torch.__version__,
        "threads": threads,
        "busy": busy,
        **{name: getattr(plan, name) for name in ("shape", "context", "rows", "passes", "turns")},
        "lines": lines,
    }
