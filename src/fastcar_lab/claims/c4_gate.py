"""Claim 4: TAS is a good gate, beside scores that cost as little and beside the ideal one."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastcar_cli.decoding.replay.scores import DEFAULT, SCORES
from fastcar_lab.claims.finding import FAILS, HOLDS, OPEN, PART, Finding, Plot, bars
from fastcar_lab.claims.quality import KEYS, measure, values
from fastcar_lab.claims.stats import Estimate, area_under_curve, by_prompt, difference, estimate
from fastcar_lab.claims.study import RATIOS, Job, Study

NUMBER, TITLE = 4, "TAS is a good gate"
CLAIM = "Gating by TAS replays the tokens whose MLP output changed least, so quality lasts to high replay ratios."
BELOW = (0.2, 0.5, 0.8)  # quantiles of a layer's changes: x of "change below x"
CHEAP = ("input", "attention", "query")
OTHERS = tuple(name for name in SCORES if name != DEFAULT)
SCORED, SCORED_PROMPTS = "scores", 4
"""Folder of videos under each score, and of how many prompts at most: scores other than TAS take plain torch."""


def needs(study: Study) -> list[Job]:
    """Dense videos, and each score at the highest ratio."""
    jobs = [Job(observe=True)]
    if ratios := study.reached(RATIOS)[-1:]:
        jobs.append(Job(SCORED, axes=(("score", tuple(SCORES)), ("ratio", ratios)), prompts=SCORED_PROMPTS))
    return jobs


def areas(study: Study) -> dict[str, dict[str, list[float]]]:
    """Mean over layers and quantiles of the area under the curve of "change below x", by score, by prompt."""
    by_score: dict[str, list[tuple[str, float]]] = {name: [] for name in SCORES}
    for cell in study.cells():
        tokens = study.observed(cell)
        names = [str(n) for n in tokens["names"]]
        for name in SCORES:
            each = []
            for layer in range(study.layers):
                change = tokens["change"][layer, :, study.frame :].reshape(-1)
                score = tokens["scores"][names.index(name), layer, :, study.frame :].reshape(-1)
                each += [area_under_curve(score, change < np.quantile(change, q)) for q in BELOW]
            by_score[name].append((cell["prompt"], float(np.nanmean(each))))
    return {name: by_prompt(videos) for name, videos in by_score.items()}


def judge(study: Study) -> Finding:
    """Areas from dense videos; quality at one ratio, each score against TAS on the same videos."""
    area = areas(study)
    ratios = study.reached(RATIOS)
    if not ratios:
        return Finding(NUMBER, TITLE, CLAIM, study.model, OPEN, "The model's frames allow none of the ratios.")
    top = ratios[-1]
    cells = {name: study.cells(SCORED, score=name, ratio=top) for name in SCORES}
    key = measure([c for group in cells.values() for c in group])
    rows, margins = [], {}
    for name in SCORES:
        a, over = estimate(area[name]), difference(area[DEFAULT], area[name])
        row: dict[str, Any] = {"score": name, "is": SCORES[name].description, **a.row("area")}
        row |= over.row("tas_more_area")
        mine = values(cells[name], key)
        e, d = estimate(mine), difference(values(cells[DEFAULT], key), mine)
        margins[name] = d
        row |= e.row(key) | d.row(f"tas_more_{key}")
        row |= {"ratio": estimate(values(cells[name], "ratio")).mean}
        rows.append(row)
    verdict, words = _verdict(area, margins)
    first = estimate(area[DEFAULT])
    quality = ", ".join(f"{row['score']} {row[key]:.3f}" for row in rows)
    summary = (
        f"Area under the curve of 'change below x': TAS {first.text()}, "
        + ", ".join(f"{n} {estimate(area[n]).mean:.3f}" for n in OTHERS)
        + f". {KEYS[key]} at ratio {top:g}: {quality}. {words}"
    )
    notes = [
        "All scores are gated alike: one controller keeps the ratio in every layer.",
        "The area is of dense videos (x: the 20, 50 and 80 % quantile of a layer's changes), quality of replayed ones: "
        "there a score sees what its own replays have done, and a replay may be replayed again.",
        f"Quality is of the first {len(set(c['prompt'] for c in cells[DEFAULT]))} prompts.",
        "The oracle knows how wrong a replay would be, in the norm of one layer's output. That norm is not quality: it "
        "knows nothing of which errors later layers and the draw of codes take up.",
        *study.notes_on_kinds("Area of TAS", area[DEFAULT]),
    ]
    if all(c["metrics"] is not None and c["metrics"]["psnr_db"] is None for group in cells.values() for c in group):
        notes.append(
            "Every gate, random too, keeps every video pixel for pixel here, so quality says nothing of gates: the "
            "model bears any replay. What remains is the area."
        )
    least = 0.98 * min(row[f"{key}_low"] for row in rows)
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, summary, first.videos, first.prompts, rows,
        {"areas": {n: estimate(area[n]).mean for n in SCORES}, "quality": key}, notes,
        [Plot("areas", "Area under the curve of 'change below x'", lambda f: _draw(f, rows, "area", "area", 0.0)),
         Plot("quality", f"{KEYS[key]} at ratio {top:g}", lambda f: _draw(f, rows, key, KEYS[key], least))],
    )  # fmt: skip


def _verdict(area: dict[str, Any], margins: dict[str, Estimate]) -> tuple[str, str]:
    """Good: clearly better than random, and no score that costs as little is clearly better."""
    sorts = difference(area[DEFAULT], area["random"]).above_zero
    better = [n for n in CHEAP if margins[n].below_zero]
    sharper = [n for n in CHEAP if difference(area[DEFAULT], area[n]).below_zero]
    keeps, worse = margins["random"].above_zero, margins["random"].below_zero
    word = "clearly better" if keeps else "clearly worse" if worse else "not distinguishable"
    words = f"Against random TAS is {word} in quality there"
    words += f"; clearly better than TAS: {', '.join(better)}" if better else "; no cheap score is clearly better there"
    words += f"; {', '.join(sharper)} show{'s' * (len(sharper) == 1)} change clearly better." if sharper else "."
    if not sorts and not keeps:
        return FAILS, words
    return (HOLDS if sorts and keeps and not better else PART), words


def _draw(figure: Any, rows: list[dict[str, Any]], key: str, label: str, least: float) -> None:
    axes = figure.subplots()
    bars(axes, rows, [r["score"] for r in rows], {key: (label, "#4477aa")})
    axes.set(ylabel=label, ylim=(least, None))
