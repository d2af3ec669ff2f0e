"""Claim 5 (table 1, figure 4): quality holds to 80 % replay."""

from __future__ import annotations

import json
import math
from typing import Any

from fastcar_cli.decoding.replay.scores import DEFAULT
from fastcar_lab.claims.finding import FAILS, HOLDS, OPEN, PART, Finding, Plot
from fastcar_lab.claims.quality import KEYS, measure, values
from fastcar_lab.claims.stats import difference, estimate, less
from fastcar_lab.claims.study import RATIOS, TAUS, Job, Study

NUMBER, TITLE = 5, "Quality holds to 80 % replay"
CLAIM = "From 20 to 80 % replay PSNR falls by 0.23 dB (17.94 to 17.71) and SSIM by 0.020 (table 1)."
LOSSES = {"ssim": 0.02, "psnr_db": 0.23, "right": 0.02}
"""Largest loss that still counts as holding: the paper's own; of prompts shown all right, two in a hundred."""


def needs(study: Study) -> list[Job]:
    """The paper's thresholds, everything replayed, and its ratios."""
    return [Job(axes=(("tau", (*TAUS, -math.inf)), ("ratio", study.reached(RATIOS))))]


def judge(study: Study) -> Finding:
    """Quality over thresholds and ratios, and what is lost between the least and the most replayed of the ratios."""
    ratios, dense = study.reached(RATIOS), study.cells()
    levels: list[tuple[str, list[dict[str, Any]]]] = [("dense", dense)]
    levels += [(f"tau {t:g}", study.cells(tau=t)) for t in (*TAUS, -math.inf)]
    levels += [(f"ratio {r:g}", study.cells(ratio=r)) for r in ratios]
    judged = any(c["fidelity"] is not None for c in dense)
    measured = {k for _, cells in levels for c in cells if c["metrics"] is not None for k in c["metrics"]}
    keys = [k for k in KEYS if k in measured or (k == "right" and judged)]
    rows = []
    for name, cells in levels:
        row: dict[str, Any] = {"setting": name, "videos": len(cells)}
        for key in ("ratio", *keys):
            row |= estimate(values(cells, key)).row(key)
        rows.append(row)
    if len(ratios) < 2:
        return Finding(
            NUMBER, TITLE, CLAIM, study.model, OPEN, "The model's frames allow too few of the ratios.", table=rows
        )
    least, most = study.cells(ratio=min(ratios)), study.cells(ratio=max(ratios))
    main = measure(most)
    lost = {k: difference(values(least, k), values(most, k)) for k in {main, "psnr_db"}}
    if judged:
        lost["right"] = difference(values(dense, "right"), values(most, "right"))
    kept = {k: e.low <= LOSSES[k] for k, e in lost.items()}
    sure = {k: e.high <= LOSSES[k] for k, e in lost.items()}
    verdict = HOLDS if all(sure.values()) else FAILS if not any(kept.values()) else PART
    knees = json.loads(study.results().read_text(encoding="utf-8"))["knee"]
    whole = (k for k in knees if k["score"] == DEFAULT and k["window"] is None)
    knee = next(whole, None)
    summary = (
        f"From ratio {min(ratios):g} to {max(ratios):g} "
        + ", ".join(f"{KEYS[k]} loses {e.text()}" for k, e in lost.items() if k != "right")
        + (f"; prompts shown all right lose {lost['right'].text()} against dense" if judged else "")
        + (f". Knee: {knee['why']}." if knee else ". The curve has no knee.")
    )
    notes = [
        "Compared is with the dense video of the same prompt and seed. A number holds where its whole interval stays "
        f"within the paper's own loss ({LOSSES['ssim']} SSIM, {LOSSES['psnr_db']} dB) or {LOSSES['right']:.0%} of the "
        "prompts, and fails where none of it does.",
        "The paper's 20 % is already far from dense (17.94 dB): there replay changes which video is drawn, and further "
        "replay hardly changes it more. A model that stays near its dense video has more to lose between both.",
        *study.notes_on_kinds(f"{KEYS[main]} lost", less(values(least, main), values(most, main))),
    ]
    first = estimate(values(most, main))
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, summary, first.videos, first.prompts, rows,
        {"lost": {k: e.bounds for k, e in lost.items()}, "knee": knee}, notes,
        [Plot("quality", f"{KEYS[main]} over the replay ratio", lambda figure: _draw(figure, rows, main, judged))],
    )  # fmt: skip


def _draw(figure: Any, rows: list[dict[str, Any]], key: str, judged: bool) -> None:
    grid = figure.subplots(1, 2 if judged else 1, squeeze=False)[0]
    for axes, k in zip(grid, (key, "right"), strict=False):
        for kind, color in (("tau", "#4477aa"), ("ratio", "#ee6677")):
            mine = sorted((r for r in rows if r["setting"].startswith((kind, "dense"))), key=lambda r: r["ratio"])
            x = [r["ratio"] for r in mine]
            axes.plot(
                x, [r[k] for r in mine], marker="o", color=color, label="thresholds" if kind == "tau" else "ratios kept"
            )
            axes.fill_between(x, [r[f"{k}_low"] for r in mine], [r[f"{k}_high"] for r in mine], color=color, alpha=0.15)
        axes.set(xlabel="replay ratio", ylabel=KEYS[k])
    grid[0].legend(frameon=False)
