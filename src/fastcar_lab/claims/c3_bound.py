"""Claim 3 (theorem 4.7): TAS bounds the change of the MLP's output.

|Y_j - Y_j-| <= C (|X_j - X_j-| + sqrt(1 - s) + gamma M), with j- the aligned token, X the block's input and Y the MLP's
output. The paper's page says no more of the constants, so this reading is ours:

- s = TAS / S, with S the largest mean |q| |k| / sqrt(d) of the layer, so that s <= 1 (Cauchy and Schwarz).
- M = the largest attention output A of the layer, and gamma the least number with
  |A_j - A_j-| <= sqrt(1 - s) + gamma M at every token seen: what TAS does not explain of attention.
- C = L_mlp L_norm. L_norm = max |w| sqrt(width) / least length of the residual stream: RMS norm maps onto an ellipsoid.
  L_mlp = |W_D| (|W_U| S_G + 1.0998 |W_G| S_U): operator norms, the largest numbers of silu(W_G x) and W_U x seen, and
  silu's steepest slope. The residual stream is X + A, so |X_j + A_j - X_j- - A_j-| is at most the bracket.

Each number of the right side is in claims.json, so that anybody can compute both sides again from `trace`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fastcar_cli.models.decoder import Block
from fastcar_cli.system.plugins import need
from fastcar_lab.claims.finding import FAILS, HOLDS, PART, Finding, Plot, bars
from fastcar_lab.claims.stats import Estimate, by_kind, by_prompt, estimate, over_layers, rank_correlation
from fastcar_lab.claims.study import Arrays, Job, Study

NUMBER, TITLE = 3, "TAS bounds the change of the MLP's output"
CLAIM = (
    "|Y_j - Y_j-| <= C (|X_j - X_j-| + sqrt(1 - s) + gamma M): the higher the score, the less the MLP's output changed."
)
STEEPEST = 1.0998  # largest slope of silu
LARGEST = ("gate_max", "up_max", "tas_max", "attention_max")


def needs(study: Study) -> list[Job]:
    """Dense videos."""
    return [Job(observe=True)]


def operator_norm(linear: nn.Module, width: int) -> float:
    """Largest singular value of a linear map of vectors of this width, packed or not."""
    norm = next(linear.parameters(), torch.empty(0))
    eye = torch.eye(width, dtype=norm.dtype if norm.is_floating_point() else torch.float32, device=norm.device)
    with torch.inference_mode():
        matrix = linear(eye).float().cpu().numpy()
    linalg = need("scipy.sparse.linalg", "the bound of claim 3")
    # A start of its own would be random.
    return float(linalg.svds(matrix, k=1, v0=np.ones(min(matrix.shape)), return_singular_vectors=False)[0])


def constants(block: Block, seen: dict[str, float]) -> dict[str, float]:
    """The constants of one layer, from its weights and the extremes seen (`observed.BY_LAYER`)."""
    mlp, norm = block.mlp, block.post_attention_layernorm
    width, inner = norm.weight.shape[0], mlp.gate_proj.out_features
    gate, up, down = operator_norm(mlp.gate_proj, width), operator_norm(mlp.up_proj, width), operator_norm(
        mlp.down_proj, inner
    )  # fmt: skip
    l_mlp = down * (up * seen["gate_max"] + STEEPEST * gate * seen["up_max"])
    l_norm = float(norm.weight.abs().max()) * width**0.5 / seen["residual_min"]
    return {
        "C": l_mlp * l_norm, "L_mlp": l_mlp, "L_norm": l_norm, "W_G": gate, "W_U": up, "W_D": down,
        "S_G": seen["gate_max"], "S_U": seen["up_max"], "S": seen["tas_max"], "M": seen["attention_max"],
    }  # fmt: skip


def _flat(tokens: Arrays, name: str, layer: int, frame: int) -> NDArray[np.float64]:
    source = tokens["scores"][0] if name == "tas" else tokens[name]
    return source[layer, :, frame:].astype(np.float64).reshape(-1)


def judge(study: Study) -> Finding:
    """Both sides by layer, how loose the bound is, and whether tokens that score higher changed less."""
    cells = study.cells()
    videos = [(c["prompt"], study.observed(c)) for c in cells]
    blocks, rows, kept = study.pipe.model.network.llm.blocks, [], []
    absolute: list[list[tuple[str, float]]] = []
    relative: list[list[tuple[str, float]]] = []
    violated, total = 0, 0
    for layer in range(study.layers):
        seen = {k: float(max(t[k][layer] for _, t in videos)) for k in LARGEST}
        seen["residual_min"] = float(min(t["residual_min"][layer] for _, t in videos))
        of = constants(blocks[layer], seen)

        def all_of(name: str, layer: int = layer) -> NDArray[np.float64]:
            return np.concatenate([_flat(t, name, layer, study.frame) for _, t in videos])

        left, attention, tas = all_of("change"), all_of("attention"), all_of("tas")
        term = np.sqrt(np.maximum(1 - tas / of["S"], 0))
        of["gamma"] = float(max(0.0, ((attention - term) / of["M"]).max()))
        inputs = all_of("input")
        right = of["C"] * (inputs + term + of["gamma"] * of["M"])
        violated += int((left > right).sum())
        total += left.size
        changed = left > 1e-6 * all_of("output").mean()
        plain = of["C"] * all_of("residual")
        absolute.append([(p, rank_correlation(*_pair(t, layer, study.frame, False))) for p, t in videos])
        relative.append([(p, rank_correlation(*_pair(t, layer, study.frame, True))) for p, t in videos])
        a, r = estimate(by_prompt(absolute[-1])), estimate(by_prompt(relative[-1]))
        rows.append({
            "layer": layer + 1, "left_median": float(np.median(left)), "left_max": float(left.max()),
            "right_median": float(np.median(right)), "right_least": float(right.min()),
            "looseness_median": float(np.median(right[changed] / left[changed])),
            "looseness_least": float((right[changed] / left[changed]).min()),
            "looseness_of_C_alone": float(np.median(plain[changed] / left[changed])),
            "share_input": float(np.median(inputs * of["C"] / right)),
            "share_tas": float(np.median(term * of["C"] / right)),
            **a.row("rank_correlation"), **r.row("rank_correlation_relative"), **of,
        })  # fmt: skip
        kept.append((left, right))
    pooled = estimate(by_prompt([(p, _pooled(t, study.layers, study.frame)) for p, t in videos]))
    return _finding(study, rows, kept, absolute, relative, pooled, (violated, total))


def _pooled(tokens: Arrays, layers: int, frame: int) -> float:
    """Rank correlation of TAS with less relative change over the tokens of all layers, as one threshold orders them."""
    pairs = [_pair(tokens, layer, frame, True) for layer in range(layers)]
    return rank_correlation(np.concatenate([a for a, _ in pairs]), np.concatenate([b for _, b in pairs]))


def _pair(tokens: Arrays, layer: int, frame: int, relative: bool) -> tuple[NDArray[Any], NDArray[Any]]:
    """TAS, and minus the change, of one layer of one video."""
    change = _flat(tokens, "change", layer, frame)
    return _flat(tokens, "tas", layer, frame), -(change / _flat(tokens, "output", layer, frame) if relative else change)


def _finding(
    study: Study,
    rows: list[dict[str, Any]],
    kept: list[tuple[NDArray[Any], NDArray[Any]]],
    absolute: list[list[tuple[str, float]]],
    relative: list[list[tuple[str, float]]],
    pooled: Estimate,
    counts: tuple[int, int],
) -> Finding:
    by_video = over_layers(absolute, np.nanmean)
    correlation, scaled = estimate(by_video), estimate(over_layers(relative, np.nanmean))
    means = [row["rank_correlation"] for row in rows]
    with_sign = sum(row["rank_correlation_low"] > 0 for row in rows)
    against = sum(row["rank_correlation_high"] < 0 for row in rows)
    violated, total = counts
    looseness = float(np.median([row["looseness_median"] for row in rows]))
    verdict = FAILS if violated or correlation.high < 0 else HOLDS if with_sign == study.layers else PART
    summary = (
        f"The inequality holds at {total - violated:,} of {total:,} tokens, the right side {looseness:,.0f} times "
        f"the left in the median. Rank correlation of TAS with less change {correlation.text()} (of relative change "
        f"{scaled.text()}, of all layers together {pooled.text()}), by layer {min(means):.2f} to "
        f"{max(means):.2f}, clearly above zero in {with_sign} of {study.layers} layers, clearly below in {against}."
    )
    notes = [
        "The paper's page names the terms and not the constants: s, gamma, M and C are our reading, written in "
        "claims/c3_bound.py. gamma is the least number with which the attention part holds at every token, so "
        "the inequality can fail only by C.",
        f"Of the right side, |X_j - X_j-| is {np.median([r['share_input'] for r in rows]):.0%} and sqrt(1 - s) "
        f"{np.median([r['share_tas'] for r in rows]):.1%} in the median: the score's own part.",
        *study.notes_on_kinds("Rank correlation", by_video),
    ]
    if verdict is not HOLDS:
        notes.append(
            "Where TAS and change are not ordered, the score of a place says more of its position than of its content: "
            "what q and k share whatever is shown there (place vectors, rotation) moves TAS and not the output."
        )
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, summary, correlation.videos, correlation.prompts, rows,
        {"violated": violated, "tokens": total, "looseness": looseness, "rank_correlation": correlation.mean,
         "rank_correlation_by_kind": {k: e.bounds for k, e in by_kind(by_video, study.kinds).items()},
         "rank_correlation_relative": scaled.mean, "rank_correlation_pooled": pooled.mean, "layers": [{k: r[k] for k in
         ("layer", "C", "L_mlp", "L_norm", "W_G", "W_U", "W_D", "S_G", "S_U", "S", "M", "gamma")} for r in rows]},
        notes, [Plot("bound", "Both sides of the inequality, by layer", lambda figure: _draw(figure, kept)),
                Plot("correlation", "Rank correlation of TAS with less change", lambda figure: _bars(figure, rows))],
    )  # fmt: skip


def _draw(figure: Any, kept: list[tuple[NDArray[Any], NDArray[Any]]]) -> None:
    axes, handles = figure.subplots(), []
    for i, color in ((0, "#4477aa"), (1, "#ee6677")):
        boxes = axes.boxplot(
            [np.maximum(pair[i], 1e-6) for pair in kept], positions=np.arange(1, len(kept) + 1) + (i - 0.5) * 0.36,
            widths=0.3, whis=(1, 99), showfliers=False, patch_artist=True, manage_ticks=False,
        )  # fmt: skip
        for box in boxes["boxes"]:
            box.set(facecolor=color, alpha=0.6)
        handles.append(boxes["boxes"][0])
    axes.set(xlabel="layer", ylabel="norm (log)", yscale="log")
    axes.set_xticks(range(1, len(kept) + 1))
    axes.legend(handles, ["left: |Y_j - Y_j-|", "right"], frameon=False, loc="center left")


def _bars(figure: Any, rows: list[dict[str, Any]]) -> None:
    axes, names = figure.subplots(), [str(row["layer"]) for row in rows]
    kinds = {"rank_correlation": ("change", "C0"), "rank_correlation_relative": ("relative change", "C1")}
    bars(axes, rows, names, kinds)
    axes.axhline(0, color="0.4", linewidth=1)
    axes.set(xlabel="layer", ylabel="Spearman's rank correlation")
