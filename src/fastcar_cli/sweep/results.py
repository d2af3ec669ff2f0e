"""The document of a sweep folder: cells in the order of its axes, a summary line per setting, and the knee.

Only times and `machine` depend on interruptions and on where cells were decoded.
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastcar_cli._version import __version__
from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.replay.scores import SCORES
from fastcar_cli.errors import RequestError
from fastcar_cli.media.metrics import error_of, psnr_of
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.profile.machine import names_of
from fastcar_cli.sweep.grid import OFF, Cell
from fastcar_cli.sweep.store import Store
from fastcar_cli.system.files import csv_of, write_whole
from fastcar_cli.system.plugins import need

QUALITY = ("ssim", "ms_ssim", "psnr_db", "lpips", "temporal")  # metrics for the knee, which uses the first measured one
SETTING = ("tau", "ratio", "score", "window", "gate", "backend", "draft")  # keys of a line of the summary
PARQUET = "results.parquet"
_WORSE_IS_MORE = ("lpips", "temporal")


def build(store: Store, pipe: VideoPipeline, config: dict[str, Any], metrics: Sequence[str]) -> dict[str, Any]:
    """results.json of everything finished in a folder. `metrics` are keys of results."""
    axes = {axis: values for axis, values in vars(store.axes).items() if axis != "repeats"}
    ranks = {axis: {value: i for i, value in enumerate(values)} for axis, values in axes.items()}

    def order(document: dict[str, Any]) -> list[int]:
        cell = Cell.from_dict(document)
        values = {"prompts": cell.prompt, "seeds": cell.seed, **vars(cell)}
        group, rest = ("prompts", "seeds", "window", "backend"), ("draft", "score", "gate", "tau", "ratio")
        rank = {axis: ranks[axis].get(values[axis], -1) for axis in (*group, *rest)}
        return [*(rank[axis] for axis in group), not cell.dense, *(rank[axis] for axis in rest)]

    cells = cells_of(sorted(store.cells.values(), key=order))
    summary = summarise(cells, metrics)
    return {
        "version": __version__,
        "machine": names_of(pipe.model.network.device),
        # Earlier versions called the executor kernels.
        "config": config | {"runtime": {**config["runtime"], "kernels": config["runtime"]["executor"]}},
        "plan": store.axes.to_dict(),
        "model": {k: getattr(pipe, k) for k in ("name", "layers", "tokens_per_frame", "frames", "fps")}
        | {"grid": list(pipe.grid)},
        "metrics": list(metrics),
        "cells": cells,
        "summary": summary,
        "knee": knees(summary, metrics),
        "inert": inert(summary),
    }


def cells_of(documents: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Cells of results from the documents of a store, with speedups over the dense cells among them."""
    # Times of two executors can't be compared.
    medians = {(d["id"], d["kernels"]): statistics.median(r["decode_s"] for r in d["runs"]) for d in documents}
    digests = {d["id"]: d["digest"] for d in documents}
    cells = []
    for d in documents:
        cell, kernels, seconds = Cell.from_dict(d), d["kernels"], [r["decode_s"] for r in d["runs"]]
        median, dense_s = medians[d["id"], kernels], medians.get((cell.reference.id, kernels))
        undrafted = digests.get(replace(cell, draft=OFF).id)
        found: dict[str, Any] = {
            "id": d["id"],
            **cell.to_dict(),
            "reference": None if cell.dense else cell.reference.id,
            "video": f"cells/{d['id']}.mp4",
            "speed": {
                "decode_s": {"median": median, "min": min(seconds), "max": max(seconds), "runs": seconds},
                "tokens_per_s": statistics.median(r["tokens_per_s"] for r in d["runs"]),
                "speedup": dense_s / median if dense_s is not None and median else None,
                "kernels": kernels,
            },
            # Whether the video equals that of the cell without drafts; None if the folder lacks that cell.
            "same_video": None if cell.draft == OFF or undrafted is None else undrafted == d["digest"],
        }
        measured = ("metrics", "frames", "fidelity", "replay", "drafts", "fpga", "digest")
        cells.append(found | {key: d.get(key) for key in measured})
    return cells


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


def _all(cells: Sequence[dict[str, Any]], of: str, key: str) -> list[Any]:
    """A measured value of each cell; None if it was not measured."""
    return [None if c[of] is None else c[of][key] for c in cells]


def summarise(cells: Sequence[dict[str, Any]], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """One line per setting (tau or ratio, score, window, gate, backend), with means over its videos.

    Two values are not means: `psnr_db` is that of the mean squared error over all videos (None if all are identical),
    and `speedup` is the dense time of the same videos over this time (None if another executor decoded those).
    """
    by_id = {c["id"]: c for c in cells}
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:
        settings.setdefault(tuple(cell[k] for k in SETTING), []).append(cell)
    lines = []
    for setting, videos in settings.items():
        dense = [by_id[name] for c in videos if (name := c["reference"] or c["id"]) in by_id]
        seconds, dense_seconds = (sum(c["speed"]["decode_s"]["median"] for c in some) for some in (videos, dense))
        beside = len(dense) == len(videos) and all(c["speed"]["speedup"] is not None for c in videos)
        line: dict[str, Any] = {
            **dict(zip(SETTING, setting, strict=True)),
            "videos": len(videos),
            "replay_ratio": _mean(_all(videos, "replay", "ratio")),
            "eligible_ratio": _mean(_all(videos, "replay", "eligible_ratio")),
            "tokens_per_pass": _mean(_all(videos, "drafts", "tokens_per_pass")),
            "decode_s": seconds / len(videos),
            "speedup": dense_seconds / seconds if beside and seconds else None,
        }
        compared = [c for c in videos if c["metrics"] is not None]
        for key in metrics:
            values = _all(compared, "metrics", key)
            line[key] = psnr_of(_mean(map(error_of, values)) or 0.0) if key == "psnr_db" else _mean(values)
        share, dense_share = (_mean(_all(some, "fidelity", "all_right")) for some in (videos, dense))
        line["all_right"] = share
        line["fidelity_drop"] = None if share is None or dense_share is None else dense_share - share
        line |= {key: _mean(_all(videos, "fpga", key)) for key in ("cycles", "energy_j")}
        lines.append(line)
    key_of = {k: i for i, k in enumerate(dict.fromkeys((str(x["window"]), x["backend"]) for x in lines))}
    return sorted(
        lines,
        key=lambda x: (
            key_of[str(x["window"]), x["backend"]],
            not dense_line(x),
            list(SCORES).index(x["score"]),
            x["draft"] != OFF,
            x["draft"].partition("-")[0],
            int(x["draft"].partition("-")[2] or 1),
            x["gate"],
            0.0 if x["tau"] is None else -float(x["tau"]),
            x["ratio"] or 0.0,
        ),
    )


def dense_line(line: dict[str, Any]) -> bool:
    """Whether a line or cell of results is dense."""
    return line["tau"] is None and line["ratio"] is None and line.get("draft", OFF) == OFF


def _goodness(line: dict[str, Any], key: str, worst_error: float) -> float:
    """Quality of a line of the summary, which grows with similarity; a dense line has the maximum."""
    if dense_line(line):
        return 0.0 if key in ("psnr_db", *_WORSE_IS_MORE) else 1.0
    if key == "psnr_db":
        # Decibels are infinite at the dense end, so the root of the mean squared error replaces them.
        return -((error_of(line[key]) / worst_error) ** 0.5) if worst_error else 0.0
    return -line[key] if key in _WORSE_IS_MORE else line[key]


def knees(summary: Sequence[dict[str, Any]], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """The knee of each curve of quality over replay ratio, one curve per window, gate, backend and score.

    With both axes scaled to 0..1, the knee is the point farthest above the line from dense to most replay (Kneedle,
    Satopaa et al. 2011). A curve with fewer than three points, or never above that line, has no knee.
    """
    quality = next((k for k in QUALITY if k in metrics), None)
    if quality is None:
        return []
    bends = []
    dense = [x for x in summary if dense_line(x)]
    # Drafts do not change the quality, so one kind is enough.
    others = [x for x in summary if not dense_line(x)]
    curves: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for x in others:
        if x["draft"] == others[0]["draft"]:
            curves.setdefault(tuple(x[k] for k in ("window", "backend", "gate", "score")), []).append(x)
    for curve_of, replaying in curves.items():
        if quality != "psnr_db" and any(x[quality] is None for x in replaying):
            continue
        worst = max(error_of(x[quality]) for x in replaying) if quality == "psnr_db" else 0.0
        ends = [x for x in dense if (x["window"], x["backend"]) == curve_of[:2]]
        points = ((x["replay_ratio"], _goodness(x, quality, worst), x) for x in [*ends, *replaying])
        curve = sorted(points, key=lambda p: p[0])
        (x0, y0, _), (x1, y1, _) = curve[0], curve[-1]
        if len(curve) < 3 or x1 <= x0 or y0 <= y1:
            continue
        above = (((x - x0) / (x1 - x0) + (y - y1) / (y0 - y1) - 1.0, line) for x, y, line in curve)
        height, best = max((p for p in above if not dense_line(p[1])), key=lambda p: p[0])
        if height <= 1e-9:
            continue
        value = "identical" if best[quality] is None else f"{best[quality]:.3g}"
        why = (
            f"replay ratio {best['replay_ratio']:.1%}, {quality} {value}: of all points, the farthest above the line "
            f"from no replay to most replay (by {height:.2f} if both axes are scaled to 0..1)"
        )
        bends.append({**{k: best[k] for k in SETTING}, "why": why})
    return bends


def inert(summary: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Thresholds without effect: nothing replays, or everything that can replays, as with -inf."""
    lines = []
    for x in summary:
        if x["tau"] is None or x["tau"] == "-inf" or x["eligible_ratio"] not in (0.0, 1.0):
            continue
        did = "nothing replays" if x["eligible_ratio"] == 0.0 else "every eligible MLP replays"
        setting = {k: x[k] for k in SETTING}
        lines.append({**setting, "why": f"tau {Tau.read(x['tau'])}: {did}"})
    return lines


_TYPES = {
    "string": {"id", "prompt", "score", "gate", "backend", "draft", "reference", "video", "kernels"},
    "int64": {"seed", "window", "runs", "fpga_cycles"},
    "bool_": {"dense", "same_video"},
}
"""Columns by type in Parquet; all others are floats, except those of fidelity, which are bool."""


def rows(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One flat row per cell. `tau` is a number (possibly -inf), or empty for a dense cell, which `dense` marks."""
    table = []
    judged = next((list(c["fidelity"]) for c in results["cells"] if c["fidelity"]), [])
    for c in results["cells"]:
        decode, tau = c["speed"]["decode_s"], None if c["tau"] is None else float(c["tau"])
        row: dict[str, Any] = {k: c[k] for k in ("id", "prompt", "seed")}
        row |= {"dense": c["reference"] is None, "tau": tau, "kept_ratio": c["ratio"], "score": c["score"]}
        row |= {k: c[k] for k in ("window", "gate", "backend", "draft", "reference", "video")}
        row |= {k: c["replay"][k] for k in ("ratio", "eligible_ratio")}
        row |= {"tokens_per_pass": (c["drafts"] or {}).get("tokens_per_pass"), "same_video": c["same_video"]}
        row |= {f"decode_s_{k}": decode[k] for k in ("median", "min", "max")}
        row |= {"kernels": c["speed"]["kernels"], "runs": len(decode["runs"])}
        row |= {k: c["speed"][k] for k in ("tokens_per_s", "speedup")}
        row |= {key: None if c["metrics"] is None else c["metrics"][key] for key in results["metrics"]}
        row |= {f"right_{k.removesuffix('_right')}": (c["fidelity"] or {}).get(k) for k in judged}
        row |= {f"fpga_{k}": (c["fpga"] or {}).get(k) for k in ("cycles", "latency_s", "energy_j")}
        table.append(row)
    return table


def _parquet(table: Sequence[dict[str, Any]]) -> bytes:
    pyarrow, parquet = (need(name, PARQUET) for name in ("pyarrow", "pyarrow.parquet"))
    kinds = {name: kind for kind, names in _TYPES.items() for name in names}
    others = {name: "bool_" if name.startswith("right_") else "float64" for name in table[0]}
    schema = pyarrow.schema([(name, getattr(pyarrow, kinds.get(name, other))()) for name, other in others.items()])
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(table), schema=schema), out)
    return out.getvalue()


def write_tables(folder: Path, results: dict[str, Any]) -> list[str]:
    """Write the files, each atomically; returns notes on files that need a missing package. Raises RunError."""
    table, notes = rows(results), []
    if table:
        cells = ([str(v).lower() if isinstance(v, bool) else v for v in row.values()] for row in table)
        write_whole(folder / "results.csv", csv_of(list(table[0]), cells))
        try:
            write_whole(folder / PARQUET, _parquet(table))
        except RequestError as e:
            # The file of an earlier run has other values.
            (folder / PARQUET).unlink(missing_ok=True)
            notes.append(f"{e}; {e.hint}")
    write_whole(folder / "results.json", json.dumps(results, ensure_ascii=False, allow_nan=False) + "\n")
    return notes
