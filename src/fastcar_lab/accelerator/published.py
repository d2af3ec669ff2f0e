"""The published latency table, emulated.

Rows of the batch, the length of the prompt, and decisions drawn independently over every pass are our
reading of the published latencies, not statements of the paper; docs/fpga.md says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastcar_cli.models.vila_u.checkpoint import full_spec
from fastcar_fpga.decisions import draw
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.preset import Preset
from fastcar_fpga.workload import workload_of

ROWS = 9
"""Rows of the batch that explain the published latencies best, of those on a power of two of cores whose remaining
time is not negative."""

PROMPT = 100
FRAMES = 8


@dataclass(frozen=True)
class Published:
    """A row of the paper's latency table: seconds on the U280, and its efficiency column."""

    method: str
    seconds: float
    efficiency: float
    replay: float
    window: int | None


TABLE: tuple[Published, ...] = (
    Published("dense", 689.7, 1.47, 0.0, None),
    Published("sparse attention, local 256", 670.5, 1.51, 0.0, 256),
    Published("sparse attention, local 16", 662.7, 1.53, 0.0, 16),
    Published("replay 20 %", 556.8, 1.82, 0.2, None),
    Published("replay 50 %", 475.3, 2.13, 0.5, None),
    Published("replay 80 %", 390.7, 2.59, 0.8, None),
    Published("replay 87 % + local 256", 354.5, 2.85, 0.87, 256),
    Published("replay 87 % + local 16", 324.3, 3.12, 0.87, 16),
)
"""Table of arXiv 2505.14709, in its order."""


def emulate_table(preset: Preset) -> list[dict[str, Any]]:
    """The rows of the table with emulated latencies beside the published ones."""
    spec = full_spec()
    rows: list[dict[str, Any]] = []
    for row in TABLE:
        work = workload_of(spec, rows=ROWS, frames=FRAMES, prompt=PROMPT, window=row.window)
        bits = draw(work, row.replay, spread="all")
        scheduler = "drs" if row.replay else "static"
        result = Emulator(preset, work).run(bits, scheduler)
        seconds = result.cycles * preset.seconds_per_cycle
        first = rows[0]["emulated_s"] if rows else seconds
        rows.append(
            {
                "method": row.method,
                "published_s": row.seconds,
                "emulated_s": seconds,
                "error": seconds / row.seconds - 1,
                "published_speedup": TABLE[0].seconds / row.seconds,
                "emulated_speedup": first / seconds,
                "published_relative_efficiency": row.efficiency / TABLE[0].efficiency,
                "emulated_relative_efficiency": first / seconds,
                "cores": preset.cores,
                "rows": ROWS,
            }
        )
    return rows


def fit(preset: Preset, used: Sequence[int] = range(7)) -> tuple[float, float]:
    """(utilisation, seconds of the rest a step) that fit these rows of the table best, by relative error. Latency is
    linear in 1 / utilisation and in the rest, apart from the tiles' rounding; both are solved for by least squares from
    the emulation at the preset's own values.
    """
    rows = emulate_table(preset)
    steps = FRAMES * full_spec().tokens_per_frame - 1
    if preset.rest.seconds_per_step is None:
        raise ValueError("a preset whose rest is modelled has nothing to fit")
    rest = preset.rest.seconds_per_step.value * steps
    compute = np.array([rows[i]["emulated_s"] - rest for i in used])
    wanted = np.array([TABLE[i].seconds for i in used])
    system = np.stack([compute / wanted, steps / wanted], 1)
    scale, seconds = np.linalg.lstsq(system, np.ones(len(wanted)), rcond=None)[0]
    return preset.core.utilisation.value / float(scale), float(seconds)
