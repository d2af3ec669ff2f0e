"""Tables of a sweep for people."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fastcar_cli.cli.render import facts, note
from fastcar_cli.config.tau import Tau
from fastcar_cli.sweep.grid import OFF
from fastcar_cli.sweep.results import SETTING, dense_line

_COLUMNS = {
    "psnr_db": ("PSNR", ".1f"),
    "ssim": ("SSIM", ".3f"),
    "ms_ssim": ("MS-SSIM", ".3f"),
    "temporal": ("temporal", ".2f"),
    "lpips": ("LPIPS", ".3f"),
}


def level(x: dict[str, Any]) -> str:
    """The threshold of a line of results, or its replay ratio."""
    return str(Tau.read(x["tau"])) if x["ratio"] is None else f"ratio {x['ratio']:g}"


def _value(value: Any, form: str, none: str = "-") -> str:
    return none if value is None else format(value, form)


def show(out: Console, terminal: Console, results: dict[str, Any], folder: Path, written: list[str]) -> None:
    """The summary with its knees, and the files."""
    knees = {tuple(k[key] for key in SETTING) for k in results["knee"]}
    summary = results["summary"]
    accelerated = any(x["cycles"] is not None for x in summary)
    judged = any(x["all_right"] is not None for x in summary)
    drafted = any(x["draft"] != OFF for x in summary)
    rows: list[dict[str, str]] = []
    for x in summary:
        dense, knee = dense_line(x), tuple(x[key] for key in SETTING) in knees
        row = {"tau": level(x) + (" *" if knee else ""), "draft": x["draft"], "score": "-" if dense else x["score"]}
        row |= {"window": _value(x["window"], "d", "off"), "gate": "-" if dense else x["gate"], "backend": x["backend"]}
        row |= {"videos": str(x["videos"]), "replayed": f"{x['replay_ratio']:.1%}", "time s": f"{x['decode_s']:.2f}"}
        row |= {"tokens/pass": _value(x["tokens_per_pass"], ".1f")} if drafted else {}
        row |= {"speed": _value(x["speedup"], ".2f")}
        row |= {_COLUMNS[k][0]: "" if dense else _value(x[k], _COLUMNS[k][1], "same") for k in results["metrics"]}
        row |= {"right": _value(x["all_right"], ".0%")} if judged else {}
        row |= {"cycles": _value(x["cycles"], ",.0f"), "J": _value(x["energy_j"], ".3g")} if accelerated else {}
        rows.append(row)
    # An axis with one value needs no column.
    axes = ("draft", "score", "window", "gate", "backend", "videos")
    single = [k for k in axes if len({row[k] for row in rows} - {"-"}) <= 1]
    table = Table(box=SIMPLE, pad_edge=False)
    names = [name for name in next(iter(rows), {}) if name not in single]
    for name in names:
        table.add_column(name, justify="left" if name in ("tau", *axes[:-1]) else "right")
    for row in rows:
        table.add_row(*(row[name] for name in names), style="bold" if row["tau"].endswith("*") else None)
    out.print(table)
    for knee in results["knee"]:
        out.print(f"* knee at {'tau ' if knee['ratio'] is None else ''}{level(knee)}: {knee['why']}")
    same = [c["same_video"] for c in results["cells"] if c["same_video"] is not None]
    if same:
        out.print(f"drafts: {sum(same)} of {len(same)} videos equal those without drafts")
    for line in results["inert"]:
        note(terminal, line["why"], "inert")
    files = ", ".join(sorted(p.name for p in folder.glob("results.*")))
    out.print(f"{len(results['cells'])} cells in {folder}: {files}", soft_wrap=True)
    for line in written:
        out.print(line, soft_wrap=True)


def show_plan(out: Console, document: dict[str, Any]) -> None:
    """The plan of a sweep."""
    table = facts("nothing was written")
    plan = document["plan"]
    for key in ("prompts", "seeds"):
        table.add_row(key, str(len(plan[key])))
    words = {
        "tau": [str(Tau.read(t)) for t in plan["tau"]],
        "ratio": [f"{r:g}" for r in plan["ratio"]],
        "score": plan["score"],
        "window": ["off" if w is None else str(w) for w in plan["window"]],
        **{key: plan[key] for key in ("gate", "backend", "draft")},
    }
    for key, values in words.items():
        if values:
            table.add_row(key, ", ".join(values))
    table.add_row("cells", f"{document['cells']}" + (f" (shard {document['shard']})" if document["shard"] else ""))
    table.add_row("decodes", f"{document['decodes']} at {plan['repeats']} a cell, {document['left']} of them left")
    seconds = document["expected_s"]
    expected = "not measured" if seconds is None else duration(sum(seconds.values()))
    more = " at most, metrics not counted (one short dense decode was measured)" if seconds else ""
    table.add_row("expected", expected + more)
    out.print(table)


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
