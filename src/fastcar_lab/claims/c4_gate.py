"""Claim 4: TAS is a good gate, beside scores that cost as little and beside the ideal one."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastcar_cli.decoding.scores import DEFAULT, SCORES
from fastcar_lab.claims.finding import FAILS, HOLDS, OPEN, PART, Finding, Plot
from fastcar_lab.claims.quality import KEYS, measure, values
from fastcar_lab.claims.stats import Estimate, area_under_curve, by_prompt, difference, estimate
from fastcar_lab.claims.study import RATIOS, Job, Study

NUMBER, TITLE = 4, "TAS is a good gate"
CLAIM = "Gating by TAS replays the tokens whose MLP output changed least, so quality lasts to high replay ratios."
BELOW = (0.2, 0.5, 0.8)
"""Quantiles of a layer's changes: x of "change below x"."""
CHEAP = ("input", "attention", "query")
OTHERS = tuple(name for name in SCORES if name != DEFAULT)
COLORS = {"tas": "#ee6677", "input": "#4477aa", "attention": "#228833", "query": "#ccbb44", "random": "#999999",
          "oracle": "#333333"}  # fmt: skip


def needs(study: Study) -> list[Job]:
    """Dense videos, and each score at equal ratios."""
    return [Job(axes=(("scores", tuple(SCORES)), ("ratios", study.reached(RATIOS))))]


def areas(study: Study) -> dict[str, dict[str, list[float]]]:
    """Mean over layers and quantiles of the area under the curve of "change below x", by score, by prompt."""
    found: dict[str, list[tuple[str, float]]] = {name: [] for name in SCORES}
    for cell in study.cells():
        tokens = study.tokens(cell)
        names = [str(n) for n in tokens["names"]]
        for name in SCORES:
            each = []
            for layer in range(study.layers):
                change = tokens["change"][layer, :, study.frame :].reshape(-1)
                score = tokens["scores"][names.index(name), layer, :, study.frame :].reshape(-1)
                each += [area_under_curve(score, change < np.quantile(change, q)) for q in BELOW]
            found[name].append((cell["prompt"], float(np.nanmean(each))))
    return {name: by_prompt(videos) for name, videos in found.items()}


def judge(study: Study) -> Finding:
    """Areas from dense videos; quality at equal ratios, each score against TAS on the same videos."""
    area = areas(study)
    ratios = study.reached(RATIOS)
    cells = {(name, r): study.cells(score=name, ratio=r) for name in SCORES for r in ratios}
    if not ratios:
        return Finding(NUMBER, TITLE, CLAIM, study.model, OPEN, "The model's frames allow none of the ratios.")
    key = measure([c for group in cells.values() for c in group])
    rows, margins = [], {}
    for name in SCORES:
        a, over = estimate(area[name]), difference(area[DEFAULT], area[name])
        row: dict[str, Any] = {
            "score": name,
            "is": SCORES[name].description,
            "area": a.mean,
            "area_low": a.low,
            "area_high": a.high,
        }
        row |= {"tas_more_area": over.mean, "tas_more_area_low": over.low, "tas_more_area_high": over.high}
        for r in ratios:
            mine = values(cells[name, r], key)
            e, d = estimate(mine), difference(values(cells[DEFAULT, r], key), mine)
            margins[name, r] = d
            at = f"{key}_at_{r:g}"
            row |= {at: e.mean, f"{at}_low": e.low, f"{at}_high": e.high}
            row |= {f"tas_more_{at}": d.mean, f"tas_more_{at}_low": d.low, f"tas_more_{at}_high": d.high}
            row |= {f"ratio_at_{r:g}": estimate(values(cells[name, r], "ratio")).mean}
        rows.append(row)
    verdict, words = _verdict(area, margins, ratios)
    first = estimate(area[DEFAULT])
    top = max(ratios)
    quality = ", ".join(f"{n} {next(x for x in rows if x['score'] == n)[f'{key}_at_{top:g}']:.3f}" for n in SCORES)
    summary = (
        f"Area under the curve of 'change below x': TAS {first.text()}, "
        + ", ".join(f"{n} {estimate(area[n]).mean:.3f}" for n in OTHERS)
        + f". {KEYS[key]} at ratio {top:g}: {quality}. {words}"
    )
    notes = [
        "All scores are gated alike: one controller keeps the ratio in every layer.",
        "The area is of dense videos (x: the 20, 50 and 80 % quantile of a layer's changes), quality of replayed ones: "
        "there a score sees what its own replays have done, and a replay may be replayed again.",
        "The oracle knows how wrong a replay would be, in the norm of one layer's output. That norm is not quality: it "
        "knows nothing of which errors later layers and the draw of codes take up.",
        *study.notes_on_kinds("Area of TAS", area[DEFAULT]),
    ]
    if all(c["metrics"] is not None and c["metrics"]["psnr_db"] is None for group in cells.values() for c in group):
        notes.append(
            "Every gate, random too, keeps every video pixel for pixel here, so quality says nothing of gates: the "
            "model bears any replay. What remains is the area."
        )
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, summary, first.videos, first.prompts, rows,
        {"areas": {n: estimate(area[n]).mean for n in SCORES}, "quality": key}, notes,
        [Plot("areas", "Area under the curve of 'change below x'", lambda figure: _areas(figure, rows)),
         Plot("quality", f"{KEYS[key]} at equal replay ratios", lambda figure: _quality(figure, rows, ratios, key))],
    )  # fmt: skip


def _verdict(
    area: dict[str, Any], margins: dict[tuple[str, float], Estimate], ratios: tuple[float, ...]
) -> tuple[str, str]:
    """Good: clearly better than random, and no score that costs as little is clearly better at the highest ratio."""
    top = max(ratios)
    sorts, keeps = difference(area[DEFAULT], area["random"]).above_zero, margins["random", top].above_zero
    better = [n for n in CHEAP if margins[n, top].below_zero]
    sharper = [n for n in CHEAP if difference(area[DEFAULT], area[n]).below_zero]
    words = f"Against random TAS is {_word(margins['random', top])} in quality there"
    words += f"; clearly better than TAS: {', '.join(better)}" if better else "; no cheap score is clearly better there"
    words += f"; {', '.join(sharper)} show{'s' * (len(sharper) == 1)} change clearly better." if sharper else "."
    if not sorts and not keeps:
        return FAILS, words
    return (HOLDS if sorts and keeps and not better else PART), words


def _word(margin: Estimate) -> str:
    return "clearly better" if margin.above_zero else "clearly worse" if margin.below_zero else "not distinguishable"


def _areas(figure: Any, rows: list[dict[str, Any]]) -> None:
    axes = figure.subplots()
    for i, row in enumerate(rows):
        spread = [[row["area"] - row["area_low"]], [row["area_high"] - row["area"]]]
        axes.bar(i, row["area"] - 0.5, 0.7, bottom=0.5, yerr=np.nan_to_num(spread), color=COLORS[row["score"]])
    axes.axhline(0.5, color="0.4", linewidth=1)
    axes.set_xticks(range(len(rows)), [r["score"] for r in rows])
    axes.set(ylabel="area (0.5: no better than chance)")


def _quality(figure: Any, rows: list[dict[str, Any]], ratios: tuple[float, ...], key: str) -> None:
    axes = figure.subplots()
    for row in rows:
        means = [row[f"{key}_at_{r:g}"] for r in ratios]
        low, high = [row[f"{key}_at_{r:g}_low"] for r in ratios], [row[f"{key}_at_{r:g}_high"] for r in ratios]
        axes.plot(ratios, means, marker="o", color=COLORS[row["score"]], label=row["score"])
        axes.fill_between(ratios, low, high, color=COLORS[row["score"]], alpha=0.12)
    axes.set(xlabel="replay ratio", ylabel=KEYS[key])
    axes.legend(frameon=False)
