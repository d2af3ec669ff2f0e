"""Published accelerators, predicted from their data sheets, and streams of a memory: `fastcar lab accelerators`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from fastcar_cli.backends.fpga.memory import Order, Stream, load_part, share
from fastcar_cli.backends.fpga.predicted import POINTS, predict
from fastcar_cli.backends.fpga.preset import load_preset
from fastcar_cli.files import csv_of, write_whole

STREAMS: tuple[tuple[str, Order, float | None, str], ...] = (
    ("DDR4-1600", "rows", None, ""),
    ("DDR4-1600", "groups", None, ""),
    ("DDR4-2400", "rows", None, ""),
    ("DDR4-2400", "groups", 0.9375, "36 of 38.4 GB/s, Shuhai on a U280 (FCCM 20)"),
    ("DDR4-2666", "rows", 0.54, "simple row-bank-column mapping (AMD PG313)"),
    ("DDR4-2666", "groups", 0.95, "mapping with bank groups in turn (AMD PG313)"),
    ("HBM2-1800", "rows", None, ""),
    ("HBM2-1800", "groups", 425 / 460.8, "425 of 460.8 GB/s, Shuhai on a U280 (FCCM 20)"),
)


def closed(name: str, order: Order) -> float:
    """The share by formula: bursts apart by tCCD, all quiet for tRFC and until a row is open again.

    Rows are opened meanwhile, as enough requests are under way.
    """
    part, t = load_part(name), load_part(name).timing
    apart = max(part.burst / 2, t.tCCD_L if order == "rows" or part.groups == 1 else t.tCCD_S)
    return part.burst / 2 / apart * (1 - (t.tRFC + t.tRP + t.tRCD) / t.tREFI)


def streams() -> Iterator[list[Any]]:
    """Rows of the memory's table: part, order, emulated share, by formula, published, source."""
    for name, order, published, source in STREAMS:
        yield [name, order, share(Stream(load_part(name), order, 1, 64)), closed(name, order), published, source]


def _share(value: float | None, form: str = ".1%") -> str:
    return "-" if value is None else f"{value:{form}}"


def _number(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else f"{value:{form}}"


def _cell(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def page(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of docs/data/accelerators.md."""
    yield "# Records: other accelerators, predicted"
    yield ""
    yield "Written by `fastcar lab accelerators docs/data`; [the emulated FPGA accelerator](../fpga.md) summarises it."
    yield "Held out: the published figure is not used, and is left to be filled in. Where a constant is fitted to the"
    yield "speed, the row has no error. The idle power of U280 and KV260, and the KV260's energy of a bit, are fitted"
    yield "to the watts that are published here."
    yield ""
    yield "## Decode speed and power"
    yield ""
    yield (
        "| work | preset | model | context | tok/s predicted | published | error | of peak | W predicted | published | "
        "error | fitted |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for r in rows:
        held = "held out" if r["held_out"] else None
        speed = (r["predicted_tokens_per_s"], r["published_tokens_per_s"], r["error"])
        fits = ", ".join(f"`{name}`" for name in r["fitted"]) or "-"
        watts = (r["predicted_watts"], r["published_watts"], r["watts_error"])
        cells = [r["work"], f"`{r['preset']}`", r["model"], r["context"]]
        cells += [_number(speed[0]), held or _number(speed[1], "g")]
        cells += [_share(speed[2], "+.0%") if not r["fitted"] else "-", f"{r['share_of_peak']:.0%}"]
        cells += [_number(watts[0]), held or _number(watts[1], "g"), _share(watts[2], "+.0%")]
        yield f"| {' | '.join(str(cell) for cell in [*cells, fits])} |"
    yield ""
    errors = [abs(r["error"]) for r in rows if r["error"] is not None and not r["fitted"]]
    yield (
        f"Of {len(errors)} published speeds that nothing is fitted to, the median error is {median(errors):.0%}. "
        "Missing: "
        + "; ".join(f"{r['work']}: {r['missing']}" for r in rows if r["missing"]) + "."
    )  # fmt: skip
    yield ""
    yield "## Time to the first token"
    yield ""
    yield "| work | tokens in | ms predicted | published | error |"
    yield "|---|---|---|---|---|"
    for r in rows:
        for f in r["first_token"]:
            yield (
                f"| {r['work']} | {f['tokens']} | {f['predicted_ms']:.1f} | {_number(f['published_ms'])} | "
                f"{_share(f['error'], '+.0%')} |"
            )
    yield ""
    yield "## Streams of one channel"
    yield ""
    yield "| part | next burst | share of the peak | by formula | published | source |"
    yield "|---|---|---|---|---|---|"
    for name, order, emulated, formula, published, source in streams():
        yield f"| {name} | {order} | {emulated:.1%} | {formula:.1%} | {_share(published)} | {source} |"


def write(folder: Path) -> list[Path]:
    """Write accelerators.md and accelerators.csv; returns their paths. Raises RunError where one can't be written."""
    rows = [predict(load_preset(point.preset), point) for point in POINTS]
    text, table = folder / "accelerators.md", folder / "accelerators.csv"
    write_whole(text, "\n".join(page(rows)) + "\n")
    names = [name for name in rows[0] if name not in ("first_token", "fitted")]
    write_whole(
        table,
        csv_of([*names, "fitted"], [[*(_cell(r[name]) for name in names), " ".join(r["fitted"])] for r in rows]),
    )
    return [text, table]
