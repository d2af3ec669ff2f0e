"""What drafts do on an accelerator by window and acceptance, at the shape of the published table: VILA-U 7B."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.models.vila_u.checkpoint import full_spec
from fastcar_cli.profile.profiler import tokens_of
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.layer import INDEX_BITS
from fastcar_fpga.preset import Preset
from fastcar_fpga.summary import energy_of
from fastcar_fpga.workload import workload_of
from fastcar_lab.accelerator.published import FRAMES, PROMPT

ROWS = 2  # one video with guidance

WINDOWS = (1, 2, 4, 8, 16)
CURVE = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
REPLAY = 0.8  # the published replay ratio, as in the published table over all passes
PASSES = 64  # passes that are emulated for each window, evenly over a video

MEASURED: dict[str, dict[int, tuple[float, float]]] = {
    "mini": {2: (1.82, 1.89), 4: (3.12, 3.50), 8: (5.33, 6.54), 16: (7.81, 10.29)},
    "table": {2: (1.46, 1.79), 4: (2.30, 3.19), 8: (3.97, 5.78), 16: (6.62, 10.02)},
    "table-dense": {2: (1.46, 1.79), 4: (2.31, 3.20), 8: (3.96, 5.79), 16: (6.60, 9.99)},
}
"""Tokens a pass of the bundled models in the first frame and after it, by window (docs/data/fpga.md)."""


def curves() -> Iterator[tuple[str, dict[int, float]]]:
    """Tokens a pass by window: over FRAMES frames as the bundled models accept, and by acceptance."""
    for model, by_window in MEASURED.items():
        yield model, {w: FRAMES / (1 / first + (FRAMES - 1) / later) for w, (first, later) in by_window.items()}
    for acceptance in CURVE:
        yield f"{acceptance:g}", {w: tokens_of(w, acceptance) for w in WINDOWS}


def _pass(emulator: Emulator, window: int, replay: NDArray[np.float64] | None) -> tuple[float, float]:
    """Mean seconds and joules (by activity) of a pass with this window.

    replay: numbers from 0 to 1 [layers, slots, PASSES], of which those below REPLAY replay; None: all compute.
    """
    work, preset = emulator.work, emulator.preset
    first = np.linspace(0, work.steps - window, PASSES).astype(np.int64)
    tokens = first + np.arange(window).repeat(work.rows)[:, None]
    bits = np.zeros((work.layers, *tokens.shape), dtype=bool) if replay is None else replay < REPLAY
    result = emulator.run(bits, "static" if replay is None else "drs", tokens=tokens)
    return result.cycles * preset.seconds_per_cycle / PASSES, energy_of(result, preset).activity / PASSES


def emulate_drafts(preset: Preset, rows: int = ROWS, seed: int = 0) -> list[dict[str, Any]]:
    """Seconds and joules of a final token, by acceptance and window: dense, replay, drafts, both.

    A model's name, or the chance of a draft to be right, is under `acceptance`. Decisions are drawn independently for
    every layer and input token. Windows that the Index Register has no room for are left out. Raises RequestError
    where rows, weights or keys do not fit.
    """
    emulator = Emulator(preset, workload_of(full_spec(), rows=rows, frames=FRAMES, prompt=PROMPT))
    chance, costs = np.random.default_rng(seed), {}
    for window in WINDOWS:
        if rows * window <= INDEX_BITS:
            numbers = chance.random((emulator.work.layers, rows * window, PASSES))
            costs[window] = _pass(emulator, window, None), _pass(emulator, window, numbers)
    dense, replay = costs[1]
    lines = []
    for acceptance, tokens in curves():
        for window, (drafts, both) in costs.items():
            a_pass = 1.0 if window == 1 else tokens[window]
            kinds = {"dense": dense, "replay": replay}
            kinds |= {name: (s / a_pass, j / a_pass) for name, (s, j) in (("drafts", drafts), ("both", both))}
            line: dict[str, Any] = {"acceptance": acceptance, "window": window, "tokens_per_pass": a_pass}
            line |= {f"{name}_s": seconds for name, (seconds, _) in kinds.items()}
            lines.append(line | {f"{name}_energy_activity_j": joules for name, (_, joules) in kinds.items()})
    return lines
