"""Claim 7: one threshold beats thresholds by layer (figure 4), middle layers replay less (figure 5)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastcar_lab.claims.finding import FAILS, HOLDS, OPEN, PART, Finding, Plot
from fastcar_lab.claims.quality import KEYS, measure, values
from fastcar_lab.claims.stats import Estimate, by_prompt, difference, estimate
from fastcar_lab.claims.study import RATIOS, TAUS, Job, Study

NUMBER, TITLE = 7, "One threshold beats thresholds by layer; middle layers replay less"
CLAIM = (
    "At equal replay ratios one threshold for all layers keeps more quality than thresholds by layer (figure 4), and "
    "under it shallow and deep layers replay most (figure 5); a threshold of -8 replays about 87 % (table 6)."
)
GLOBAL = "one-threshold"


def needs(study: Study) -> list[Job]:
    """Ratios kept by one threshold and by one a layer, and the paper's thresholds."""
    ratios = study.reached(RATIOS)
    return [
        Job(axes=(("tau", (*TAUS, -math.inf)), ("ratio", ratios))),
        Job(GLOBAL, (("replay.controller", "global"),), (("ratio", ratios),)),
    ]


def judge(study: Study) -> Finding:
    """Quality of one threshold less that of one a layer; replay of outer layers less that of middle ones."""
    ratios = study.reached(RATIOS)
    if not ratios:
        return Finding(NUMBER, TITLE, CLAIM, study.model, OPEN, "The model's frames allow none of the ratios.")
    one = {r: study.cells(GLOBAL, ratio=r) for r in ratios}
    each = {r: study.cells(ratio=r) for r in ratios}
    key = measure([c for group in one.values() for c in group])
    rows: list[dict[str, Any]] = []
    margins: list[Estimate] = []
    for r in ratios:
        margins.append(difference(values(one[r], key), values(each[r], key)))
        for name, cells in (("one threshold", one[r]), ("one a layer", each[r])):
            rows.append(_row(f"ratio {r:g}, {name}", cells, key))
    for tau in (*TAUS, -math.inf):
        rows.append(_row(f"tau {tau:g}", study.cells(tau=tau), key))
    gap = _gap([c for r in ratios for c in one[r]], study.layers)
    better, worse = sum(m.above_zero for m in margins), sum(m.below_zero for m in margins)
    first = HOLDS if better and not worse else FAILS if worse and not better else PART
    second = HOLDS if gap.above_zero else FAILS if gap.below_zero else PART
    both = {first, second}
    verdict = first if len(both) == 1 else PART
    gains = ", ".join(f"{m.text('+.4f')} at {r:g}" for m, r in zip(margins, ratios, strict=True))
    most = estimate(values(study.cells(tau=-8.0), "ratio"))
    summary = (
        f"{KEYS[key]} of one threshold less that of one per layer: {gains}. Outer layers replay "
        f"{gap.text('+.3f')} more of their MLPs than middle ones under one threshold. "
        f"tau -8 replays {most.text('.1%')}."
    )
    notes = [
        "The ratio is kept by a controller either way, so both replay the same share of each video; it moves one "
        "threshold, or one a layer so that each layer keeps the ratio.",
        "The paper's thresholds by layer were set by hand and are in no file; equal shares of all layers stand for "
        "them here.",
        "Outer layers are the first and the last third.",
    ]
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, summary, gap.videos, gap.prompts, rows,
        {"margins": {f"{r:g}": m.bounds for r, m in zip(ratios, margins, strict=True)},
         "outer_less_middle": gap.bounds, "parts": [first, second]}, notes,
        [Plot("layers", "Replay by layer under one threshold", lambda figure: _draw(figure, one))],
    )  # fmt: skip


def _row(name: str, cells: list[dict[str, Any]], key: str) -> dict[str, Any]:
    row: dict[str, Any] = {"setting": name}
    for k in ("ratio", key):
        row |= estimate(values(cells, k)).row(k)
    layers = np.mean([c["replay"]["by_layer"] for c in cells], axis=0)
    return row | {f"layer_{i}": float(v) for i, v in enumerate(layers, 1)}


def _gap(cells: list[dict[str, Any]], layers: int) -> Estimate:
    third = max(1, layers // 3)
    videos = []
    for cell in cells:
        by_layer = np.array(cell["replay"]["by_layer"])
        outer = np.concatenate([by_layer[:third], by_layer[-third:]]).mean()
        middle = by_layer[third:-third].mean() if layers > 2 * third else np.nan
        videos.append((cell["prompt"], float(outer - middle)))
    return estimate(by_prompt(videos))


def _draw(figure: Any, one: dict[float, list[dict[str, Any]]]) -> None:
    axes = figure.subplots()
    for r, cells in one.items():
        layers = np.array([c["replay"]["by_layer"] for c in cells])
        axes.set_xticks(range(1, layers.shape[1] + 1))
        axes.plot(range(1, layers.shape[1] + 1), 100 * layers.mean(0), marker="o", label=f"ratio {r:g}")
    axes.set(xlabel="layer", ylabel="replayed MLPs (%)", ylim=(0, 100))
    axes.legend(frameon=False)
