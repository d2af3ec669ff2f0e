"""Claim 1 (figure 1): MLPs dominate decoding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastcar_cli.models.vila_u.checkpoint import full_spec
from fastcar_cli.profile.profiler import LAYER_PARTS, Shape, measure_step, random_shape
from fastcar_cli.system.files import write_whole
from fastcar_lab.claims.finding import FAILS, HOLDS, PART, Finding, Plot
from fastcar_lab.claims.study import Job, Study

NUMBER, TITLE = 1, "MLPs dominate decoding"
CLAIM = "At 2k, 4k and 8k tokens of context the MLPs take more of a decode step than attention does (figure 1)."
LENGTHS = (2048, 4096, 8192)
SHAPE, LAYERS_RUN = "vila-u-7b", 2
"""The shape of the paper's model; two of its layers run, with random weights, and stand for all."""
TURNS, REPEATS = 3, 5


def needs(study: Study) -> list[Job]:
    """No videos."""
    return []


def shares(shape: Shape, rows: int, seq: int) -> dict[str, list[float]]:
    """Share of a step by module (attention, mlp, rest), one number a turn."""
    by_module: dict[str, list[float]] = {"attention": [], "mlp": [], "rest": []}
    for _ in range(TURNS):
        parts = measure_step(shape, rows, seq, repeats=REPEATS).parts
        sums = {"attention": 0.0, "mlp": 0.0, "rest": 0.0}
        for name, seconds in parts.items():
            module = name.partition(".")[0]
            sums[module if module in sums else "rest"] += seconds * (shape.scale if name.startswith(LAYER_PARTS) else 1)
        for module, seconds in sums.items():
            by_module[module].append(seconds / sum(sums.values()))
    return by_module


def _kept(file: Path, lengths: tuple[int, ...], make: Any, rows: int) -> dict[int, dict[str, list[float]]]:
    """Shares by length, measured where the file does not have them."""
    measured = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    shape = None
    for seq in lengths:
        if str(seq) not in measured:
            shape = shape or make()
            measured[str(seq)] = shares(shape, rows, seq)
            write_whole(file, json.dumps(measured) + "\n")
    return {seq: measured[str(seq)] for seq in lengths}


def _seven_b() -> Shape:
    spec = full_spec()
    small = replace(spec, decoder=replace(spec.decoder, layers=LAYERS_RUN))
    return replace(random_shape(small, "float32", "cpu", LAYERS_RUN), spec=spec)


def judge(study: Study) -> Finding:
    """Shares of the paper's shape at its lengths, and of this model at half and the whole of its own."""
    network = study.pipe.model.network
    rows_of = 1 if study.pipe.settings.sampling.cfg == 1.0 else 2
    whole = study.pipe.frames * study.frame
    study.folder.mkdir(parents=True, exist_ok=True)

    def own() -> Shape:
        return Shape(network, network.spec, study.layers, False)

    measured = {SHAPE: _kept(study.folder.parent / f"shares-{SHAPE}.json", LENGTHS, _seven_b, 2)}
    if network.device.type == "cpu" and network.dtype == torch.float32:
        # So many tokens are decoded to time a step.
        behind = 2 * (2 * REPEATS + 3)
        lengths = tuple(n for n in (whole // 2, whole - behind) if n >= behind)
        measured[study.model] = _kept(study.folder / "shares.json", lengths, own, rows_of)
    rows: list[dict[str, Any]] = []
    for name, by_length in measured.items():
        for seq, by_module in by_length.items():
            row: dict[str, Any] = {"shape": name, "context": seq}
            for module, values in by_module.items():
                row |= {module: float(np.median(values)), f"{module}_low": min(values), f"{module}_high": max(values)}
            rows.append(row)
    big = [r for r in rows if r["shape"] == SHAPE]
    ahead = [r for r in big if r["mlp_low"] > r["attention_high"]]
    verdict = HOLDS if len(ahead) == len(big) else PART if ahead else FAILS
    sentence = "; ".join(
        f"{r['shape']} at {r['context']}: MLPs {r['mlp']:.0%} [{r['mlp_low']:.0%}, {r['mlp_high']:.0%}], attention "
        f"{r['attention']:.0%}"
        for r in rows
    )
    notes = [
        f"Steps in plain torch on a CPU, float32, {TURNS} turns of {REPEATS} steps; brackets are least and most of the "
        f"turns. {LAYERS_RUN} layers of the 7B shape run with random weights and stand for all 32.",
        "A small model's step is made of calls more than of products, so its shares say little of a large one's.",
    ]
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, f"{sentence}.", table=rows, notes=notes,
        numbers={"ahead": len(ahead), "lengths": len(big)},
        plots=[Plot("shares", "Where a decode step's time goes", lambda figure: _draw(figure, rows))],
    )  # fmt: skip


def _draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    axes = figure.subplots()
    bottom = np.zeros(len(rows))
    names = [f"{r['shape']}\n{r['context']}" for r in rows]
    for module, color in (("mlp", "#ee6677"), ("attention", "#4477aa"), ("rest", "#bbbbbb")):
        values = np.array([100 * r[module] for r in rows])
        axes.bar(names, values, 0.65, bottom=bottom, color=color, label=module)
        bottom += values
    axes.set(ylabel="share of a step (%)")
    axes.legend(frameon=False, bbox_to_anchor=(1.01, 1), loc="upper left")
