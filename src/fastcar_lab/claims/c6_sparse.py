"""Claim 6: replay beats sparse attention at equal time, and mends its drift when combined (tables 1 and 2)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.errors import RequestError
from fastcar_lab.claims.accelerator import PRESETS, batches, latency
from fastcar_lab.claims.finding import FAILS, HOLDS, OPEN, PART, Finding, Plot
from fastcar_lab.claims.quality import KEYS
from fastcar_lab.claims.stats import Values, by_prompt, difference, estimate
from fastcar_lab.claims.study import MAIN, RATIOS, WINDOWED, Job, Study

NUMBER, TITLE = 6, "Replay beats sparse attention at equal time, and mends its drift when combined"
CLAIM = (
    "A window of 16 tokens has 13.30 dB at 1.04 x, 80 % replay 17.71 dB at 1.76 x (table 1); with replay it has "
    "17.27 dB at 2.13 x, so replay alleviates the drift of sparse attention (table 2)."
)
WINDOWS = (16, 64, 256)
Curves = dict[tuple[int, int | None, float | None], NDArray[np.float64]]
"""Quality by frame, by number of frames, window and ratio."""
LONG = (16, 64)  # frames of longer videos
LONG_PROMPTS = 4  # prompts of longer videos, at most: 64 frames take eight times as long as 16


def _windows(study: Study, frames: int | None = None) -> tuple[int, ...]:
    whole = (frames or study.pipe.frames) * study.frame
    return tuple(w for w in WINDOWS if w < whole)


def _longer(study: Study) -> dict[int, str]:
    """Folders of longer videos, by their frames, that this model has positions for."""
    folders = {}
    for frames in LONG:
        if frames <= study.pipe.frames:
            continue
        try:
            study.with_frames(frames)
        except RequestError:
            continue
        folders[frames] = f"frames-{frames}"
    return folders


def needs(study: Study) -> list[Job]:
    """Windows with and without replay, at the model's own length and at longer ones."""
    ratios = study.reached(RATIOS)
    jobs = [Job(axes=(("ratio", ratios),))]
    if windows := _windows(study):
        jobs.append(Job(WINDOWED, axes=(("window", windows), ("ratio", ratios[-1:]))))
    for frames, folder in _longer(study).items():
        axes = (("window", (None, *_windows(study, frames))), ("ratio", ratios[-1:]))
        jobs.append(Job(folder, (("generation.frames", frames),), axes, LONG_PROMPTS))
    return jobs


def _against(
    study: Study, cells: list[dict[str, Any]], dense: list[NDArray[np.uint8]], folder: str, key: str
) -> tuple[Values, Values, NDArray[np.float64]]:
    """Quality against full attention, dense: by prompt, of the last frame by prompt, and by frame, mean over videos."""
    scorer, whole, last, frames = study.scorer(), [], [], []
    for cell, reference in zip(cells, dense, strict=True):
        means, by_frame = scorer.score(study.images(cell, folder), reference)
        value = means[key]
        whole.append((cell["prompt"], 60.0 if value is None else float(value)))
        frames.append([60.0 if v is None else float(v) for v in by_frame[key]])
        last.append((cell["prompt"], frames[-1][-1]))
    return by_prompt(whole), by_prompt(last), np.array(frames, float).mean(0)


def judge(study: Study) -> Finding:
    """Each window against the least replay that is as fast; each window against itself with replay."""
    ratios = study.reached(RATIOS)
    if not ratios or not _windows(study):
        return Finding(NUMBER, TITLE, CLAIM, study.model, OPEN, "The videos are too short for ratios or windows.")
    key = "ssim" if "ssim" in study.scorer().keys else "psnr_db"
    rows: list[dict[str, Any]] = []
    beats: list[bool | None] = []
    mends: list[bool | None] = []
    margins: list[str] = []
    curves: Curves = {}
    for frames, folder in {study.pipe.frames: MAIN, **_longer(study)}.items():
        own = folder == MAIN
        dense = [study.images(c, folder) for c in study.cells(folder)]
        at: dict[tuple[float | None, int | None], tuple[Values, Values, float]] = {}
        for window in (None, *_windows(study, frames)):
            for ratio in (None, *(ratios if own and window is None else ratios[-1:])):
                place = WINDOWED if own and window else folder
                cells = study.cells(place, ratio=ratio, window=window)
                if ratio is None and window is None:
                    continue
                quality, last, by_frame = _against(study, cells, dense, place, key)
                curves[frames, window, ratio] = by_frame
                seconds = _seconds(study, cells, place, window) if own else math.nan
                at[ratio, window] = quality, last, seconds
                e = estimate(quality)
                rows.append({
                    "frames": frames, "window": window or "off", "ratio": ratio or 0.0,
                    **e.row(key), f"{key}_last_frame": float(by_frame[-1]), "u280_s": seconds,
                })  # fmt: skip
        for window in _windows(study, frames):
            alone = at[None, window]
            fast = [r for r in ratios if own and at[r, None][2] <= alone[2]]
            if fast:
                margin = difference(at[min(fast), None][0], alone[0])
                beats.append(margin.above_zero if margin.above_zero or margin.below_zero else None)
                margins.append(f"replay {min(fast):g} less window {window}: {margin.text('+.3f')}")
            both = difference(at[ratios[-1], window][0], alone[0])
            mends.append(both.above_zero if both.above_zero or both.below_zero else None)
            margins.append(
                f"window {window} with replay {ratios[-1]:g} less without ({frames} frames): {both.text('+.3f')}"
            )
            if not own:
                end = difference(at[ratios[-1], window][1], alone[1])
                margins[-1] += f", in the last frame {end.text('+.3f')}"
        if own:
            counted = estimate(at[ratios[-1], None][0])
    parts = [_part(beats), _part(mends)]
    verdict = parts[0] if parts[0] == parts[1] else PART
    notes = [
        "Compared is with the dense video under full attention. Time is the emulated U280's at the 7B model's size, "
        "from these decisions; equal time: the least of the ratios that is as fast as the window."
    ]
    notes += [
        f"Videos of {frames} frames: {len(study.cells(folder))}, the first {LONG_PROMPTS} prompts at most."
        for frames, folder in _longer(study).items()
    ]
    if not _longer(study):
        notes.append(
            f"The model has no positions beyond {study.pipe.frames} frames, so longer videos, and with them the drift "
            "that the paper speaks of, were not measured."
        )
    if verdict is not HOLDS:
        notes.append(
            "Replay adds an error of its own. Where a window hardly changes the video, as in short ones whose frames "
            "say all there is to know, there is no drift to mend and that error is what remains."
        )
    return Finding(
        NUMBER, TITLE, CLAIM, study.model, verdict, f"{KEYS[key]}: {'; '.join(margins)}.",
        counted.videos, counted.prompts, rows,
        {"beats": beats, "mends": mends, "parts": parts}, notes,
        [Plot("drift", f"{KEYS[key]} against dense with full attention, by frame", lambda f: _draw(f, curves, key))],
    )  # fmt: skip


def _seconds(study: Study, cells: list[dict[str, Any]], folder: str, window: int | None) -> float:
    latencies = [latency(study, PRESETS[0], bits, window) for bits in batches(study, cells, folder).values()]
    return float(np.mean(latencies))


def _part(distinguished: list[bool | None]) -> str:
    known = [t for t in distinguished if t is not None]
    if not known:
        return PART
    return HOLDS if all(known) and len(known) == len(distinguished) else FAILS if not any(known) else PART


def _draw(figure: Any, curves: Curves, key: str) -> None:
    """One panel per length; colours show the window, lines the ratio."""
    lengths, windows, ratios = ([*dict.fromkeys(k[i] for k in curves)] for i in range(3))
    windows, ratios = sorted(windows, key=lambda w: w or math.inf), sorted(ratios, key=lambda r: r or 0.0)
    panels = figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0]
    for axes, length in zip(panels, lengths, strict=True):
        for (frames, window, ratio), values in curves.items():
            if frames == length:
                style = {"color": f"C{windows.index(window)}", "linestyle": ("-", "--", "-.", ":")[ratios.index(ratio)]}
                axes.plot(range(1, frames + 1), values, linewidth=1.2, **style)
        axes.set(xlabel="frame", title=f"{length} frames")
    panels[0].set(ylabel=KEYS[key])
    shown = [(f"window {w or 'off'}", {"color": f"C{i}"}) for i, w in enumerate(windows)]
    shown += [
        (f"ratio {r:g}" if r else "no replay", {"color": "black", "linestyle": style})
        for r, style in zip(ratios, ("-", "--", "-.", ":"), strict=False)
    ]
    for name, style in shown:
        panels[-1].plot([], [], label=name, **style)
    panels[-1].legend(frameon=False, fontsize=8, bbox_to_anchor=(1.01, 1), loc="upper left")
