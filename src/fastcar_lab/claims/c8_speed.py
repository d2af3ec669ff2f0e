"""Claim 8: 2.1 x on the accelerator, from the decisions of these very runs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastcar_lab.claims.accelerator import BATCH_PRESETS, ROWS, batches, independent, latency
from fastcar_lab.claims.finding import FAILS, HOLDS, OPEN, PART, Finding, Plot, bars
from fastcar_lab.claims.stats import estimate
from fastcar_lab.claims.study import MAIN, RATIOS, WINDOWED, Job, Study

NUMBER, TITLE = 8, "2.1 x on the accelerator"
PUBLISHED = {0.2: 1.24, 0.5: 1.45, 0.8: 1.76}
CLAIM = (
    "On a U280, 20, 50 and 80 % replay decode 1.24, 1.45 and 1.76 times as fast, 87 % with a window of 16 2.13 times."
)
WINDOW, BEST = 16, 2.13


def needs(study: Study) -> list[Job]:
    """The paper's ratios, and everything replayed with a window."""
    return [
        Job(axes=(("ratio", study.reached(RATIOS)), ("tau", (-math.inf,)))),
        Job(WINDOWED, axes=(("window", (WINDOW,)), ("tau", (-math.inf,)))),
    ]


def judge(study: Study) -> Finding:
    """Speed-up over dense of the decisions as they are, and of independent draws at their ratios."""
    settings: list[tuple[str, float | None, int | None, list[dict[str, Any]]]] = [
        (f"ratio {r:g}", PUBLISHED[r], None, study.cells(ratio=r)) for r in study.reached(RATIOS)
    ]
    settings.append(("all that can", None, None, study.cells(tau=-math.inf)))
    windowed = study.cells(WINDOWED, tau=-math.inf, window=WINDOW)
    settings.append((f"all that can, window {WINDOW}", BEST, WINDOW, windowed))
    rows = []
    for preset in BATCH_PRESETS:
        for name, published, window, cells in settings:
            if not cells:
                continue
            speed, drawn = {}, {}
            sizes = set()
            for key, bits in batches(study, cells, WINDOWED if window else MAIN).items():
                dense = latency(study, preset, bits, dense=True)
                speed[key] = [dense / latency(study, preset, bits, window)]
                drawn[key] = [dense / latency(study, preset, independent(bits, study.frame), window)]
                sizes.add(bits.shape[1])
            e, d = estimate(speed), estimate(drawn)
            rows.append({
                "preset": preset, "setting": name, **e.row("speedup"),
                "independent": d.mean, "published": published, "batches": e.videos, "rows": max(sizes),
                "ratio": float(np.mean([c["replay"]["ratio"] for c in cells])),
            })  # fmt: skip
    paper = [r for r in rows if r["preset"] == BATCH_PRESETS[0]]
    best = next((r for r in paper if r["published"] == BEST), None)
    if best is None:
        return Finding(NUMBER, TITLE, CLAIM, study.model, OPEN, "No decisions to emulate.", table=rows)
    verdict = HOLDS if best["speedup"] >= 0.95 * BEST else PART if best["speedup"] >= 1.5 else FAILS
    speeds = "; ".join(
        f"{r['setting']} {r['speedup']:.2f} x (drawn independently {r['independent']:.2f}"
        + (f", published {r['published']:.2f}" if r["published"] else "")
        + ")"
        for r in paper
    )
    other = next(r for r in rows if r["preset"] == BATCH_PRESETS[1] and r["published"] == BEST)
    summary = f"{BATCH_PRESETS[0]}: {speeds}. {BATCH_PRESETS[1]}: {other['speedup']:.2f} x at its best."
    notes = [
        "The decisions are these videos' own, rows as decoded and pairs as they are; batches have up to "
        f"{max(r['rows'] for r in rows)} rows, {ROWS} or more where the videos suffice.",
        f"The size is the 7B model's, of whose 32 layers each of the {study.layers} here stands for its part; it makes "
        f"{study.pipe.frames} frames of {study.frame} tokens, as this model does.",
        "The preset paper-u280 was fitted to the published table, which takes ratios for independent draws. Dense is "
        "static mapping without a window, as in the table.",
        "Replays that fall on all rows of a step together save whole rounds: where the decisions as they are come out "
        "faster than independent draws, rows agree on what stands still.",
    ]
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, summary, len(settings[0][3]),
        len({c["prompt"] for c in settings[0][3]}), rows, {"best": best["speedup"], "published": BEST}, notes,
        [Plot("speed", f"Speed-up on {BATCH_PRESETS[0]}", lambda figure: _draw(figure, paper))],
    )  # fmt: skip


def _draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    axes = figure.subplots()
    kinds = {"speedup": ("these runs", "#ee6677"), "independent": ("drawn", "#4477aa")}
    bars(axes, rows, [r["setting"] for r in rows], kinds | {"published": ("published", "#999999")})
    axes.set(ylabel="speed-up over dense")
