"""`fastcar lab curves SWEEP [SWEEP ...] -o DIR`: quality over the replay ratio, sweeps side by side.

`fastcar lab replay-plot before.json after.json -o plot.png`: what training for replay buys, of two files that
`fastcar lab evaluate --tau "off;..."` printed.

The first writes `curves.csv` and `curves.md`, a line a setting with 95 % intervals, and a plot, a curve a sweep and
window.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastcar_cli.config.tau import Tau
from fastcar_cli.sweep.report.build import read_results
from fastcar_cli.sweep.results import SETTING, dense_line
from fastcar_cli.system.files import csv_of, write_whole
from fastcar_lab.claims.quality import EQUAL, KEYS, values
from fastcar_lab.claims.stats import Estimate, estimate
from fastcar_lab.common import drawn, pyplot

FORMS = {"replayed": ".3f", "psnr_db": ".1f", "temporal": ".2f", "right": ".2f"}
"""How numbers are printed; others have three digits behind the point."""


def compare(sweeps: Sequence[Path], output: Path) -> tuple[str, Path]:
    """Write tables and plot of sweeps to a folder; the table as Markdown, and the plot's file. Raises RequestError for
    a folder without results.
    """
    lines = [line for sweep in sweeps for line in lines_of(read_results(sweep / "results.json"))]
    output.mkdir(parents=True, exist_ok=True)
    rows = [_flat(line) for line in lines]
    write_whole(output / "curves.csv", csv_of(list(rows[0]), [list(row.values()) for row in rows]))
    write_whole(output / "curves.md", markdown(lines))
    for suffix, content in drawn(lambda figure: _draw(figure, lines), (11.0, 4.4)).items():
        write_whole(output / f"curves.{suffix}", content)
    return markdown(lines), output / "curves.png"


def lines_of(results: dict[str, Any]) -> list[dict[str, Any]]:
    """One line a setting of a sweep: model, setting, videos, and an estimate of every number that was measured."""
    settings: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in results["cells"]:
        settings.setdefault(tuple(cell.get(k) for k in SETTING), []).append(cell)
    lines = []
    for setting, cells in settings.items():
        line: dict[str, Any] = {"model": results["model"]["name"], **dict(zip(SETTING, setting, strict=True))}
        line |= {"replayed": estimate(values(cells, "ratio")), **{k: estimate(values(cells, k)) for k in KEYS}}
        lines.append(line)

    return sorted(lines, key=lambda x: (x["window"] or 0, not dense_line(x), x["replayed"].mean))


def _equal(line: dict[str, Any], key: str) -> bool:
    """Whether all videos equal the dense ones, so that they have no PSNR: 60 dB only stand for it."""
    return key == "psnr_db" and line[key].mean == EQUAL


def _flat(line: dict[str, Any]) -> dict[str, Any]:
    """A line as a row of CSV."""
    row: dict[str, Any] = {}
    for key, value in line.items():
        if _equal(line, key):
            row |= {key: None, f"{key}_low": None, f"{key}_high": None, "videos": value.videos}
        elif isinstance(value, Estimate):
            row |= value.row(key) | {"videos": value.videos}
        else:
            row[key] = value
    return row


def _name(line: dict[str, Any]) -> str:
    """Sweep and window, as a curve is called."""
    return line["model"] + (f", window {line['window']}" if line["window"] else "")


def _setting(line: dict[str, Any]) -> str:
    if dense_line(line):
        return "off"
    return str(Tau.read(line["tau"])) if line["ratio"] is None else f"ratio {line['ratio']:g}"


def markdown(lines: Sequence[dict[str, Any]]) -> str:
    """The lines as tables, one a curve."""
    keys = [k for k in KEYS if any(x[k].videos for x in lines)]
    out: list[str] = []
    for name in dict.fromkeys(_name(x) for x in lines):
        mine = [x for x in lines if _name(x) == name]
        out += [f"**{name}** ({mine[0]['replayed'].videos} videos of {mine[0]['replayed'].prompts} prompts)", ""]
        out += ["| tau | " + " | ".join(["replay ratio", *(KEYS[k] for k in keys)]) + " |"]
        out += ["|" + "---|" * (2 + len(keys))]
        for line in mine:
            cells = ["equal" if _equal(line, k) else line[k].text(FORMS.get(k, ".3f")) for k in ("replayed", *keys)]
            out.append(f"| {_setting(line)} | " + " | ".join(cells) + " |")
        out.append("")
    return "\n".join(out)


def _draw(figure: Any, lines: Sequence[dict[str, Any]]) -> None:
    keys = [k for k in ("psnr_db", "ssim", "right") if any(x[k].videos for x in lines)]
    grid = figure.subplots(1, len(keys), squeeze=False)[0]
    colors = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")
    for axes, key in zip(grid, keys, strict=True):
        for i, name in enumerate(dict.fromkeys(_name(x) for x in lines)):
            # A dense video equals itself: decibels begin behind it.
            mine = [x for x in lines if _name(x) == name and not (key == "psnr_db" and dense_line(x))]
            mine.sort(key=lambda x: x["replayed"].mean)
            x, color = [m["replayed"].mean for m in mine], colors[i % len(colors)]
            axes.plot(x, [m[key].mean for m in mine], marker="o", markersize=3, color=color, label=name)
            axes.fill_between(x, [m[key].low for m in mine], [m[key].high for m in mine], color=color, alpha=0.15)
        axes.set(xlabel="replay ratio", ylabel=KEYS[key])
    grid[-1].set_ylim(bottom=0)
    grid[0].legend(frameon=False, fontsize=8)


IDENTICAL = 80.0  # height in dB at which videos without any difference are drawn


def draw_plot(file: Path, before: dict[str, Any], after: dict[str, Any]) -> None:
    """Draw both curves, a point a threshold."""
    plt = pyplot("a plot")

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for document, label, color in ((before, "before", "#ee6677"), (after, "after the replay stage", "#4477aa")):
        rows = sorted(document["fidelity"], key=lambda r: r["replay"]["eligible_ratio"])
        ratio = [100 * r["replay"]["eligible_ratio"] for r in rows]
        left.plot(ratio, [100 * r["right"]["all"] for r in rows], marker="o", color=color, label=label)
        replayed = [(x, r.get("psnr_db")) for x, r in zip(ratio, rows, strict=True) if r["tau"] != "off"]
        right.plot(
            [x for x, _ in replayed],
            [IDENTICAL if db is None else db for _, db in replayed],
            marker="o",
            color=color,
            label=label,
        )
        for i, (x, r) in enumerate(zip(ratio, rows, strict=True)):
            # Neighbours may lie close together: their labels take turns above and below.
            offset = (-3, 6) if i % 2 else (-3, -14)
            left.annotate(r["tau"], (x, 100 * r["right"]["all"]), textcoords="offset points", xytext=offset, fontsize=8)
    left.set(xlabel="eligible MLPs replayed (%)", ylabel="videos all right (%)", ylim=(0, 108))
    right.set(xlabel="eligible MLPs replayed (%)", ylabel="PSNR against the dense video (dB)", xlim=left.get_xlim())
    ticks = [20, 30, 40, 50, 60, 70, IDENTICAL]
    right.set_yticks(ticks, [*map(str, ticks[:-1]), "identical"])
    left.legend(frameon=False, loc="lower left")
    figure.suptitle("Fidelity and similarity to the dense video over replay; labels: tau")
    figure.savefig(file, dpi=120)
    plt.close(figure)
