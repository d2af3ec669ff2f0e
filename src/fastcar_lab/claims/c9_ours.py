"""Claim 9: what this project adds: kept ratios, and few bits with replay, whose errors may add up."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.errors import RequestError
from fastcar_lab.claims.finding import FAILS, HOLDS, OPEN, PART, Finding, Plot, bars
from fastcar_lab.claims.quality import KEYS, measure, values
from fastcar_lab.claims.stats import by_prompt, difference, estimate
from fastcar_lab.claims.study import MAIN, RATIOS, TAUS, Job, Study

NUMBER, TITLE = 9, "What we add: kept ratios, few bits with replay"
CLAIM = "None of the paper's: a ratio is kept within 1 %, and errors of few bits and of replay do not more than add up."
KEPT_WITHIN = 0.01


def formats(study: Study) -> dict[str, tuple[tuple[str, Any], ...]]:
    """Folder and configuration of each format that the model has here."""
    network = study.pipe.model.network
    if network.device.type != "cpu" or network.quantised():
        return {}
    variants: dict[str, tuple[tuple[str, Any], ...]] = {"kv-int8": (("attention.kv_dtype", "int8"),)}
    variants["int8"] = (("runtime.dtype", "int8"),)
    # Matrices that have no groups of 32 have no int4.
    with contextlib.suppress(RequestError):
        variants["int4-kv-int8"] = (("model", str(_converted(study))), ("attention.kv_dtype", "int8"))
    return variants


def _converted(study: Study) -> Path:
    """The model in int4, converted into the study's folder where it is not there. Raises RequestError."""
    from fastcar_cli.convert.convert import Conversion, Source, padded, target_format

    folder = study.folder / "int4-model"
    if not folder.is_dir():
        study.folder.mkdir(parents=True, exist_ok=True)
        source = Source(study.base.model)
        spec = padded(source.spec, "int4")
        Conversion(source, folder, target_format(source, spec, "int4"), spec).run()
    return folder


def needs(study: Study) -> list[Job]:
    """The highest ratio kept in every format, and the paper's thresholds for how far a fixed one strays."""
    ratios = study.reached(RATIOS)
    jobs = [Job(axes=(("ratio", ratios), ("tau", TAUS)))]
    return jobs + [Job(name, config, (("ratio", ratios[-1:]),)) for name, config in formats(study).items()]


def _error(a: NDArray[np.uint8], b: NDArray[np.uint8]) -> float:
    """Mean squared error of pixels in 0..255."""
    return float(np.square(a.astype(np.float64) - b).mean())


def judge(study: Study) -> Finding:
    """How far ratios stray, kept and under thresholds; the error of both less the sum of each alone."""
    ratios = study.reached(RATIOS)
    if not ratios:
        return Finding(NUMBER, TITLE, CLAIM, study.model, OPEN, "The model's frames allow none of the ratios.")
    top = ratios[-1]
    strays = max(float(abs(c["replay"]["ratio"] - r)) for r in ratios for c in study.cells(ratio=r))
    spread = {t: np.concatenate([*map(np.array, values(study.cells(tau=t), "ratio").values())]) for t in TAUS}
    near = min(spread, key=lambda t: abs(float(spread[t].mean()) - top))
    dense = [study.images(c) for c in study.cells()]
    replayed = [_error(study.images(c), d) for c, d in zip(study.cells(ratio=top), dense, strict=True)]
    rows: list[dict[str, Any]] = [_row(MAIN, study, None, replayed, None)]
    verdicts, sums = [], []
    for name in formats(study):
        alone = [_error(study.images(c, name), d) for c, d in zip(study.cells(name), dense, strict=True)]
        both = [_error(study.images(c, name), d) for c, d in zip(study.cells(name, ratio=top), dense, strict=True)]
        prompts = [c["prompt"] for c in study.cells()]
        more = [b - (a + r) for a, r, b in zip(alone, replayed, both, strict=True)]
        excess = estimate(by_prompt(zip(prompts, more, strict=True)))
        verdicts.append(FAILS if excess.above_zero else HOLDS)
        sums.append(f"{name}: both less the sum {excess.text('+.1f')}")
        rows.append(_row(name, study, alone, both, excess.mean))
    kept = strays <= KEPT_WITHIN
    verdicts.append(HOLDS if kept else FAILS)
    verdict = verdicts[0] if len(set(verdicts)) == 1 else PART
    summary = (
        f"Kept ratios stray by {strays:.3f} at most; under tau {near:g} (mean {spread[near].mean():.2f}) videos differ "
        f"by {spread[near].max() - spread[near].min():.2f}. Mean squared error at ratio {top:g}: {'; '.join(sums)}."
    )
    notes = [
        "Errors are against the dense video in full precision. Each error may draw other codes and so another "
        "video; two of them can't be farther off than videos are apart, so sums are reached from below."
    ]
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, summary, len(dense), len(study.prompts), rows,
        {"strays": strays, "fixed_tau": near}, notes,
        [Plot("errors", f"Mean squared error at ratio {top:g}", lambda figure: _draw(figure, rows))],
    )  # fmt: skip


def beside(studies: Sequence[Study], findings: Sequence[Finding]) -> None:
    """Add to the findings of later models what training for replay is worth: their quality less the first model's. Only
    where both have the same videos.
    """
    first = studies[0]
    for study, finding in zip(studies[1:], findings[1:], strict=True):
        ratios = [r for r in first.reached(RATIOS) if r in study.reached(RATIOS)]
        if not ratios or (study.prompts, study.seeds) != (first.prompts, first.seeds):
            continue
        mine, theirs = (s.cells(ratio=ratios[-1]) for s in (study, first))
        key = measure(mine)
        margin = difference(values(mine, key), values(theirs, key))
        finding.summary += (
            f" {KEYS[key]} with the own dense video at ratio {ratios[-1]:g}, less that of {first.model}: "
            f"{margin.text('+.4f')}."
        )
        finding.numbers["less_first_model"] = margin.bounds


def _row(name: str, study: Study, alone: list[float] | None, both: list[float], excess: float | None) -> dict[str, Any]:
    prompts = [c["prompt"] for c in study.cells()]
    a = estimate(by_prompt(zip(prompts, alone or [0.0] * len(both), strict=True)))
    b = estimate(by_prompt(zip(prompts, both, strict=True)))
    return {
        "format": "full precision" if name == MAIN else name, **a.row("alone"), **b.row("with_replay"),
        "more_than_sum": excess,
    }  # fmt: skip


def _draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    axes = figure.subplots()
    kinds = {"alone": ("alone", "#4477aa"), "with_replay": ("with replay", "#ee6677")}
    bars(axes, rows, [r["format"] for r in rows], kinds)
    axes.set(ylabel="mean squared error")
