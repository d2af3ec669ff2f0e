"""Readings of the published latencies: how well each number of cores and rows explains them, by formula.

Seconds = passes x (rest + round x (E[ceil(computing rows / cores)] + attention)): a row's attention core is charged at
the MLP's rate per multiply-accumulate. Rest and round are fitted, by relative error, to the first seven rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.models.vila_u.checkpoint import full_spec
from fastcar_lab.accelerator.published import FRAMES, PROMPT, TABLE, Published

FITTED = 7
SINKS = 4


def rounds(cores: int, rows: int, replay: float, together: bool = False) -> float:
    """The mean of ceil(computing rows / cores) where each row, or guided pair, computes with chance 1 - replay."""
    size = 2 if together else 1
    count = rows // size
    return sum(
        comb(count, n) * (1 - replay) ** n * replay ** (count - n) * -(-size * n // cores) for n in range(count + 1)
    )


@dataclass(frozen=True)
class Reading:
    """Cores and rows with both fitted constants, the relative errors of all rows, and whether a pair decides as one."""

    cores: int
    rows: int
    together: bool
    rest: float
    round: float
    errors: NDArray[np.float64]

    @property
    def worst(self) -> float:
        """The largest error of the rows that are fitted."""
        return float(np.abs(self.errors[:FITTED]).max())


def _attention(row: Published) -> float:
    """MACs of a row's attention core a layer, in those of its MLP."""
    decoder, tokens = full_spec().decoder, full_spec().tokens_per_frame * FRAMES - 1
    context = PROMPT + 1 + tokens / 2 if row.window is None else row.window + SINKS
    return 2 * decoder.width * context / decoder.mlp_weights


def read(cores: int, rows: int, together: bool = False) -> Reading:
    """Fit a reading."""
    passes = FRAMES * full_spec().tokens_per_frame - 1
    fixed = -(-rows // cores)
    busy = np.array([rounds(cores, rows, row.replay, together) + fixed * _attention(row) for row in TABLE])
    wanted = np.array([row.seconds for row in TABLE])
    system = passes * np.stack([np.ones(len(TABLE)), busy], 1) / wanted[:, None]
    constants = np.linalg.lstsq(system[:FITTED], np.ones(FITTED), rcond=None)[0]
    return Reading(cores, rows, together, float(constants[0]), float(constants[1]), system @ constants - 1)


def needed(reading: Reading) -> float:
    """The replay ratio at which the reading has the seconds of the table's last row; above 1: none has."""
    row, passes = TABLE[-1], FRAMES * full_spec().tokens_per_frame - 1
    left = row.seconds / passes - reading.rest
    fixed = -(-reading.rows // reading.cores) * _attention(row)
    ratios = np.linspace(0, 1, 1001)
    busy = np.array([rounds(reading.cores, reading.rows, float(r), reading.together) + fixed for r in ratios])
    reached = ratios[busy * reading.round <= left]
    return float(reached[0]) if len(reached) else float("inf")


def best(limit: float) -> Iterator[Reading]:
    """Readings on up to 16 cores whose fitted rows are within a limit and whose rest is not negative, best first."""
    made = [
        read(cores, rows, together)
        for cores in range(1, 17)
        for rows in range(cores + 1, 33)
        for together in ((False, True) if rows % 2 == 0 else (False,))
    ]
    yield from sorted((r for r in made if r.worst <= limit and r.rest >= 0), key=lambda r: r.worst)


def lines(limit: float) -> Iterator[str]:
    """A table of the docs."""
    yield "| cores | rows | whole pairs | pair decides | largest error | last error | required ratio | rest, ms |"
    yield "|---|---|---|---|---|---|---|---|"
    for r in best(limit):
        pairs, decides = "yes" if r.rows % 2 == 0 else "no", "together" if r.together else "separately"
        ratio = f"{needed(r):.1%}" if needed(r) <= 1 else "none"
        shares = f"{r.worst:.1%} | {r.errors[-1]:+.1%} | {ratio}"
        yield f"| {r.cores} | {r.rows} | {pairs} | {decides} | {shares} | {r.rest * 1e3:.1f} |"
