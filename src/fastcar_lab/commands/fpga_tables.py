"""`fastcar fpga --table` and `--drafts`: emulated figures beside published ones."""

from __future__ import annotations

import json
from typing import Any

import typer

from fastcar_cli.cli.render import Results, columns
from fastcar_fpga.preset import Preset
from fastcar_lab.accelerator.drafted import REPLAY, emulate_drafts
from fastcar_lab.accelerator.predicted import Point, points_of, predict
from fastcar_lab.accelerator.published import emulate_table


def _range(row: dict[str, Any]) -> str:
    if row["low_tokens_per_s"] is None:
        return "range unknown"
    return f"range {row['low_tokens_per_s']:.1f} to {row['high_tokens_per_s']:.1f}"


def _decode_speed(preset: Preset, points: list[Point], as_json: bool) -> None:
    rows = [predict(preset, point) for point in points]
    if as_json:
        typer.echo(json.dumps({"preset": preset.name, "rows": rows}))
        return
    for row in rows:
        published, error = row["published_tokens_per_s"], row["error"]
        fitted = f", fitted: {', '.join(row['fitted'])}" if row["fitted"] else ""
        typer.echo(
            f"{row['work']}, {row['model']}: {row['predicted_tokens_per_s']:.1f} tokens/s predicted, {_range(row)}, "
            + (f"{published:g} published ({row['source']}), error {error:+.0%}" if published else "held out")
            + f"; {row['share_of_peak']:.0%} of the memory's peak, {row['predicted_watts']:.1f} W"
            + (f", {row['published_watts']:g} published" if row["published_watts"] else "")
            + fitted
        )
        for first in row["first_token"]:
            typer.echo(
                f"  first token after a prompt of {first['tokens']}: {first['predicted_ms']:.1f} ms predicted, "
                f"{first['published_ms']:g} published, error {first['error']:+.0%}"
            )
        if row["missing"]:
            typer.echo(f"  note: {row['missing']}")


def table(preset: Preset, as_json: bool) -> None:
    """Print published latencies of the preset's work beside emulated ones, or its decode speed beside the published."""
    if points := points_of(preset.name):
        _decode_speed(preset, points, as_json)
        return
    rows = emulate_table(preset)
    if as_json:
        typer.echo(json.dumps({"preset": preset.name, "rows": rows}))
        return
    shown = columns(
        f"{preset.name}: published and emulated latency, speed-up and relative efficiency",
        *("method", "s", "emulated", "error", "speed-up", "emulated", "eff.", "emulated"),
    )
    keys = ("published_speedup", "emulated_speedup", "published_relative_efficiency", "emulated_relative_efficiency")
    for r in rows:
        seconds = (f"{r['published_s']:.1f}", f"{r['emulated_s']:.1f}", f"{r['error']:+.1%}")
        shown.add_row(r["method"], *seconds, *(f"{r[key]:.2f}" for key in keys))
    Results().print(shown)


def drafts(preset: Preset, rows: int, as_json: bool) -> None:
    """Print what drafts do on an accelerator, by acceptance and window."""
    lines = emulate_drafts(preset, rows)
    if as_json:
        typer.echo(json.dumps({"preset": preset.name, "rows": rows, "replay": REPLAY, "lines": lines}))
        return
    windows = sorted({line["window"] for line in lines})
    dense, replay = lines[0]["dense_s"], lines[0]["replay_s"]
    shown = columns(
        f"{preset.name}: VILA-U 7B, {rows} rows on {preset.cores} cores; a token {dense * 1e3:.1f} ms, "
        f"with {REPLAY:.0%} replayed {replay * 1e3:.1f} ms ({dense / replay:.2f} x)",
        *("acceptance", *(f"window {window}" for window in windows)),
        left=0,
        caption="Each cell: speedup of drafts, then of drafts with replay, over dense decoding.",
    )
    cells: dict[str, list[str]] = {}
    for line in lines:
        faster = (f"{line['dense_s'] / line[f'{kind}_s']:.2f}" for kind in ("drafts", "both"))
        cells.setdefault(line["acceptance"], []).append("  ".join(faster))
    for acceptance, row in cells.items():
        shown.add_row(acceptance, *row)
    Results().print(shown)
