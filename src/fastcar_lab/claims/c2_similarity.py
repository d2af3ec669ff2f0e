"""Claim 2 (figure 2): MLP outputs of one place in neighbouring frames are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_lab.claims.finding import FAILS, HOLDS, PART, Finding, Plot
from fastcar_lab.claims.stats import Estimate, by_prompt, estimate, over_layers
from fastcar_lab.claims.study import Job, Study

NUMBER, TITLE = 2, "Neighbouring frames' MLP outputs are alike"
CLAIM = "MLP outputs of one place in neighbouring frames have a cosine of about 0.4 to above 0.8, by layer (figure 2)."
LEAST = 0.4
MOVES = 8.0  # mean absolute change of a place's pixels, in 0..255, from which on it counts as moving


def needs(study: Study) -> list[Job]:
    """Dense videos."""
    return [Job(observe=True)]


def moving(images: NDArray[np.uint8], grid: tuple[int, int]) -> NDArray[np.bool_]:
    """Which places of frames uint8 [T, H, W, 3] changed since the frame before, bool [T, N]; none of the first."""
    t, height, width, _ = images.shape
    h, w = grid
    change = np.zeros((t, height, width))
    change[1:] = np.abs(np.diff(images.astype(np.int16), axis=0)).mean(-1)
    places = change.reshape(t, h, height // h, w, width // w).mean((2, 4))
    return places.reshape(t, h * w) >= MOVES


def judge(study: Study) -> Finding:
    """Mean cosine by layer, still and moving places apart, beside that of two places half a frame apart."""
    kinds = ("all", "still", "moving", "elsewhere")
    similarities: dict[str, list[list[tuple[str, float]]]] = {k: [[] for _ in range(study.layers)] for k in kinds}
    cells = study.cells()
    share = []
    for cell in cells:
        tokens = study.observed(cell)
        moves = moving(study.images(cell), study.pipe.grid).reshape(-1)[study.frame : tokens["cosine"].shape[2]]
        share.append((cell["prompt"], float(moves.mean())))
        for layer in range(study.layers):
            cosine = tokens["cosine"][layer, :, study.frame :]
            parts = {"all": cosine, "still": cosine[:, ~moves], "moving": cosine[:, moves]}
            parts["elsewhere"] = tokens["elsewhere"][layer, :, study.frame :]
            for kind, values in parts.items():
                similarities[kind][layer].append((cell["prompt"], float(values.mean()) if values.size else np.nan))
    by_layer = {kind: [estimate(by_prompt(videos)) for videos in layers] for kind, layers in similarities.items()}
    means = [e.mean for e in by_layer["all"]]
    high = sum(e.low >= LEAST for e in by_layer["all"])
    mean = estimate(over_layers(similarities["all"]))
    verdict = HOLDS if high == study.layers else PART if mean.mean >= LEAST or high else FAILS
    still, moved = (estimate(over_layers(similarities[k])) for k in ("still", "moving"))
    other = estimate(over_layers(similarities["elsewhere"]))
    moves_share = estimate(by_prompt(share))
    summary = (
        f"Mean cosine similarity {mean.text()} over layers, {min(means):.3f} to {max(means):.3f} by layer; "
        f"still places {still.text()}, moving ones {moved.text()}. Above {LEAST} in {high} of {study.layers} layers."
    )
    notes = [
        f"A place moves where its pixels change by {MOVES:g} of 255 in the mean; {moves_share.mean:.1%} of them do.",
        f"Two places half a frame apart have {other.text()}: so much of it is the layer's, not the place's.",
        *study.notes_on_kinds("Similarity", over_layers(similarities["all"])),
    ]
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, summary, mean.videos, mean.prompts,
        [_row(layer, {k: by_layer[k][layer] for k in kinds}) for layer in range(study.layers)],
        {"mean": mean.mean, "still": still.mean, "moving": moved.mean, "elsewhere": other.mean, "by_layer": means},
        notes,
        [Plot("similarity", "Cosine similarity of MLP outputs by layer", lambda figure: _draw(figure, by_layer))],
    )  # fmt: skip


def _row(layer: int, kinds: dict[str, Estimate]) -> dict[str, Any]:
    row: dict[str, Any] = {"layer": layer + 1}
    for kind, e in kinds.items():
        row |= e.row(kind)
    return row


def _draw(figure: Any, by_layer: dict[str, list[Estimate]]) -> None:
    axes = figure.subplots()
    for kind, color in (("still", "#4477aa"), ("moving", "#ee6677"), ("elsewhere", "#999999")):
        layers = range(1, len(by_layer[kind]) + 1)
        axes.plot(layers, [e.mean for e in by_layer[kind]], marker="o", color=color, label=kind)
        low, high = [e.low for e in by_layer[kind]], [e.high for e in by_layer[kind]]
        axes.fill_between(layers, low, high, color=color, alpha=0.2)
    axes.set_xticks(range(1, len(by_layer["all"]) + 1))
    axes.axhline(LEAST, color="0.5", linewidth=1, linestyle="--")
    axes.set(xlabel="layer", ylabel="cosine similarity", ylim=(min(0.0, axes.get_ylim()[0]), 1.02))
    axes.legend(frameon=False)
