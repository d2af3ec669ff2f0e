"""Claim 10: the same redundancy without loss: drafts of the last frame, verified, against replay, and both."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fastcar_cli.kernels.native import instruction_set
from fastcar_cli.profile.machine import processor
from fastcar_fpga.decisions import Decisions
from fastcar_lab.claims.accelerator import PRESETS, per_token
from fastcar_lab.claims.finding import FAILS, HOLDS, PART, Finding, Plot, bars
from fastcar_lab.claims.study import Job, Study

NUMBER, TITLE = 10, "The same redundancy without loss"
CLAIM = (
    "None of the paper's: drafts from the last frame, verified exactly, make decoding at least as fast as replay of "
    "about 80 % of the MLPs does, with the same video."
)
TAUS, KEPT = (-2.0, -8.0, -math.inf), 0.8  # thresholds, and a ratio that a controller keeps
FOLDER, REPEATS = "drafts", 3
WINDOWS = (4, 8, 16)
EMULATED = 4  # videos that are emulated
OFF = "off"


def drafts_of(study: Study) -> tuple[str, ...]:
    """Drafts in windows that the model's frames hold."""
    return tuple(f"jacobi-{window}" for window in WINDOWS if window <= study.frame)


def needs(study: Study) -> list[Job]:
    """Thresholds, and the kept ratio, with and without drafts; cells of a video are timed in turn."""
    drafts = ("draft", (OFF, *drafts_of(study)))
    return [Job(FOLDER, axes=(("tau", TAUS), ("ratio", study.reached((KEPT,))), drafts, ("repeats", REPEATS)))]


def _levels(study: Study) -> list[dict[str, float]]:
    """Fields of the cells of each level, the dense one first."""
    return [{}, *({"tau": tau} for tau in TAUS), *({"ratio": ratio} for ratio in study.reached((KEPT,)))]


def _said(level: dict[str, float]) -> str:
    return next((f"{key} {value:g}" for key, value in level.items()), OFF)


def _on_cpu(study: Study) -> list[dict[str, Any]]:
    """A row for each level and draft: speed-up over dense by the least times, quality, tokens a pass."""

    def seconds(cells: list[dict[str, Any]]) -> float:
        return sum(c["speed"]["decode_s"]["min"] for c in cells)

    dense, rows = seconds(study.cells(FOLDER)), []
    for level in _levels(study):
        for draft in (OFF, *drafts_of(study)):
            cells = study.cells(FOLDER, **level, draft=draft)
            quality = [1.0 if c["metrics"] is None else c["metrics"].get("ssim") for c in cells]
            rows.append({
                "machine": f"{processor()}, {instruction_set()}", "level": _said(level), "draft": draft,
                "speedup": dense / seconds(cells), "ratio": float(np.mean([c["replay"]["ratio"] for c in cells])),
                "ssim": None if None in quality else float(np.mean(quality)),
                "tokens_per_pass": float(np.mean([c["drafts"]["tokens_per_pass"] for c in cells])),
            })  # fmt: skip
    return rows


def _decided(study: Study, prompt: str, seed: int, tau: float | None, draft: str) -> Decisions:
    """Decisions of a video and of the drafts in its passes."""
    kind, _, window = draft.partition("-")
    level = OFF if tau is None else tau
    keys = {"replay.ratio": None, "replay.tau": level, "draft.kind": kind, "draft.window": int(window)}
    pipe = study.pipe.with_config(study.base.changed(keys))
    pipe.run([prompt], [seed])
    return pipe.decisions()


def _emulated(study: Study) -> list[dict[str, Any]]:
    """The same on emulated accelerators at the 7B model's size, one video at a time: cycles of a final token."""
    rows = []
    videos = [(p, s) for s in study.seeds for p in study.prompts][:EMULATED]
    for tau in (None, *TAUS):
        for draft in drafts_of(study):
            cycles: dict[str, dict[str, float]] = {preset: {} for preset in PRESETS}
            ratios = []
            for prompt, seed in videos:
                decided = _decided(study, prompt, seed, tau, draft)
                ratios.append(float(decided.replayed.mean()))
                for preset, by_kind in per_token(study, decided).items():
                    for kind, costs in by_kind.items():
                        cycles[preset][kind] = cycles[preset].get(kind, 0.0) + costs["cycles"]
            level = {} if tau is None else {"tau": tau}
            for preset, of in cycles.items():
                kinds = {"drafts": draft} if tau is None else {"replay": OFF, "both": draft}
                rows += [
                    {"machine": preset, "level": _said(level), "draft": drafts, "speedup": of["dense"] / of[kind],
                     "ratio": float(np.mean(ratios))}
                    for kind, drafts in kinds.items()
                ]  # fmt: skip
    # Replay alone is the same beside every window.
    return list({(r["machine"], r["level"], r["draft"]): r for r in rows}.values())


def judge(study: Study) -> Finding:
    """Which is the fastest on each machine where replay is nearest 80 %, and what it costs in quality."""
    rows = [*_on_cpu(study), *_emulated(study)]
    replaying = [r for r in rows if r["level"].startswith("tau") and r["draft"] == OFF]
    top = min(replaying, key=lambda r: abs(r["ratio"] - KEPT))["level"]
    said, verdicts, best = [], [], {}
    for machine in dict.fromkeys(r["machine"] for r in rows):
        here = [r for r in rows if r["machine"] == machine]
        replay = next(r for r in here if r["level"] == top and r["draft"] == OFF)
        drafts = max((r for r in here if r["level"] == OFF and r["draft"] != OFF), key=lambda r: r["speedup"])
        both = max((r for r in here if r["level"] == top and r["draft"] != OFF), key=lambda r: r["speedup"])
        verdicts.append(drafts["speedup"] >= replay["speedup"])
        best[machine] = {"replay": replay, "drafts": drafts, "both": both}
        loss = "" if replay.get("ssim") is None else f" (SSIM {replay['ssim']:.3f})"
        said.append(
            f"{machine}: replay {replay['speedup']:.2f} x{loss}, drafts {drafts['speedup']:.2f} x "
            f"({drafts['draft']}, same video), both {both['speedup']:.2f} x ({both['draft']})"
        )
    same = _same(study)
    verdict = FAILS if not all(same) or not any(verdicts) else HOLDS if all(verdicts) else PART
    summary = (
        f"At {top}, {best[rows[0]['machine']]['replay']['ratio']:.0%} replayed. {'; '.join(said)}. "
        f"{sum(same)} of {len(same)} videos with drafts equal those without."
    )
    cells = study.cells(FOLDER)
    notes = [
        f"CPU: least of {REPEATS} decodes of each video, all its settings in turn in one run. Accelerators: decisions "
        f"and passes of the first {min(EMULATED, len(cells))} videos at the 7B model's size, one video at a time.",
        "In a window of W tokens the weights of an MLP are spared only if all its rows replay: r^W where they decide "
        "alone. So replay and drafts compete where reading weights bounds a pass, and add where arithmetic does.",
        "A kept ratio moves its threshold every few tokens, and a pass takes no more tokens than one threshold is for: "
        f"see tokens a pass at ratio {KEPT:g}.",
    ]
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, summary, len(cells), len({c["prompt"] for c in cells}), rows,
        {"level": top, "best": best}, notes, [Plot("speed", "Speed-up over dense", lambda figure: _draw(figure, best))],
    )  # fmt: skip


def _same(study: Study) -> list[bool]:
    """Whether each video with drafts is the one without."""
    return [
        drafted["digest"] == plain["digest"]
        for level in _levels(study)
        for draft in drafts_of(study)
        for drafted, plain in zip(study.cells(FOLDER, **level, draft=draft), study.cells(FOLDER, **level), strict=True)
    ]


def _draw(figure: Any, best: dict[str, dict[str, Any]]) -> None:
    axes, colors = figure.subplots(), {"replay": "#ee6677", "drafts": "#4477aa", "both": "#aa3377"}
    rows = [{kind: of[kind]["speedup"] for kind in colors} for of in best.values()]
    bars(axes, rows, list(best), {kind: (kind, color) for kind, color in colors.items()})
    axes.set(ylabel="speed-up over dense")
