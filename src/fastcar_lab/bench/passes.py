"""Passes of 1 to 32 tokens in every format, beside rivals where layers of large models are timed: one run with the
kernels of one instruction set.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any

from fastcar_cli.checkpoints.names import FROM_TEXT
from fastcar_lab.bench import window
from fastcar_lab.bench.cases import Benchmark
from fastcar_lab.bench.render import rates_text
from fastcar_lab.bench.rival import Rival
from fastcar_lab.common import commit, markdown

LAYERS_OF = {"vila-u-7b": "VILA-U 7B", "cosmos-predict1-4b": "Cosmos-Predict1 4B"}
CONTEXTS, CONTEXT_OF_WHOLE, WINDOWS = (512, 2048), 300, (1, 2, 4, 8, 16, 32)


def run(rivals: tuple[Rival, ...], turns: int, on_part: Callable[[str], None] = lambda name: None) -> dict[str, Any]:
    """Time two layers of each of `LAYERS_OF` at `CONTEXTS` and the bundled models at one, one row. Returns commit, date
    and the documents of `window.measure`.
    """
    plans = [
        Benchmark(shape, 2, context, 1, 2, turns, compiled=False, rivals=rivals)
        for shape in LAYERS_OF
        for context in CONTEXTS
    ]
    plans += [Benchmark(model, 0, CONTEXT_OF_WHOLE, 1, 48, turns, compiled=False) for model in FROM_TEXT]
    parts = []
    for plan in plans:
        on_part(f"{plan.shape}, context {plan.context}")
        parts.append(window.measure(plan, WINDOWS))
    return {"commit": commit(), "date": f"{date.today()}", "parts": parts}


def _timed(shape: str) -> str:
    return f"`{shape}`" if shape in FROM_TEXT else f"Two layers of {LAYERS_OF[shape]}"


def table(result: dict[str, Any]) -> str:
    """A result as JSON has it, as Markdown: tables by shape and context, each cell a pass of so many tokens."""
    first = result["parts"][0]
    rivals = "".join(f", {name} {version}" for name, version in first["rivals"].items())
    text = [
        f"{first['cpu']}, {first['threads']} threads, {first['instruction_set']}, torch {first['torch']}{rivals}, "
        f"commit {result['commit']}, {result['date']}."
    ]
    for part in result["parts"]:
        windows, memory = list(next(iter(part["lines"].values()))), part["bandwidth_gb_s"]
        text += [
            "",
            f"{_timed(part['shape'])}, {part['context']} tokens of context; memory gave "
            f"{memory:.1f} GB/s, the cores {rates_text(part)}:",
            "",
        ]
        rows = []
        for name, by_window in part["lines"].items():
            cells = (
                f"{line['ms']:.2f} ms; {line['gb_s']:.1f} GB/s, {line['of_bandwidth']:.0%}; "
                f"{line['multiply_adds_g_s']:.0f} G/s, {line['of_arithmetic']:.0%}"
                for line in by_window.values()
            )
            rows.append([name, *cells])
        text += markdown(["tokens a pass", *windows], rows)
    return "\n".join(text) + "\n"
