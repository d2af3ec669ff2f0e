"""What a claim came to on one model: verdict, sentences, numbers, a table, plots."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

HOLDS, PART, FAILS, OPEN = "holds", "holds in part", "does not hold", "not measured"
Row = dict[str, Any]


@dataclass(frozen=True)
class Plot:
    """A figure: its name, what it shows, and how it is drawn onto a matplotlib figure."""

    name: str
    title: str
    draw: Callable[[Any], None]


def bars(axes: Any, rows: Sequence[Row], names: Sequence[str], series: Mapping[str, tuple[str, str]]) -> None:
    """Draw numbers of rows side by side, with their intervals where rows have some.

    names: what is below each row. series: label and colour by key.
    """
    at, width = np.arange(len(rows)), 0.8 / len(series)
    for i, (key, (label, color)) in enumerate(series.items()):
        spread = None
        if f"{key}_low" in rows[0]:
            spread = np.nan_to_num([[r[key] - r[f"{key}_low"], r[f"{key}_high"] - r[key]] for r in rows]).T
        heights, place = [r[key] or 0 for r in rows], at + (i - (len(series) - 1) / 2) * width
        axes.bar(place, heights, 0.93 * width, yerr=spread, color=color, label=label)
    axes.set_xticks(at, [name.replace(", ", ",\n") for name in names])
    axes.legend(frameon=False)


@dataclass
class Finding:
    """A claim on one model."""

    number: int
    title: str
    claim: str  # what the paper says
    model: str
    verdict: str
    summary: str  # what was found, with number, interval and videos
    videos: int = 0
    prompts: int = 0
    table: list[Row] = field(default_factory=list)  # rows of its CSV
    numbers: dict[str, Any] = field(default_factory=dict)  # what the summary rests on, for claims.json
    notes: list[str] = field(default_factory=list)  # how it was measured, and why it may fail
    plots: list[Plot] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Name of its files."""
        return f"claim-{self.number}-{self.model}"
