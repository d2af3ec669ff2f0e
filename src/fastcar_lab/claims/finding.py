"""What a claim came to on one model: verdict, sentences, numbers, a table, plots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

HOLDS, PART, FAILS, OPEN = "holds", "holds in part", "does not hold", "not measured"
Row = dict[str, Any]


@dataclass(frozen=True)
class Plot:
    """A figure: its name, what it shows, and how it is drawn onto a matplotlib figure."""

    name: str
    title: str
    draw: Callable[[Any], None]


@dataclass
class Finding:
    """A claim on one model.

    claim: what the paper says. summary: what was found, with number, interval and videos. table: rows of its CSV.
    numbers: what the summary rests on, for claims.json. notes: how it was measured and what may be the reason where it
    fails.
    """

    number: int
    title: str
    claim: str
    model: str
    verdict: str
    summary: str
    videos: int = 0
    prompts: int = 0
    table: list[Row] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)

    @property
    def key(self) -> str:
        """Name of its files."""
        return f"claim-{self.number}-{self.model}"
