"""Published accelerators, predicted from their data sheets, and streams of a memory: `fastcar lab accelerators`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import csv_of, write_whole
from fastcar_fpga.device import Constant, ReadStream, load_part, share
from fastcar_fpga.preset import load_preset
from fastcar_lab.accelerator.predicted import POINTS, points_of, predict
from fastcar_lab.common import markdown

Next = Literal["groups", "rows", "bank", "apart", "meet"]
"""Where the next burst lies; records.md describes the orders."""

_REQUEST, _FAR = 512, 2**10  # bytes of a request of one of two streams, and rows of a bank between them

STREAMS: dict[str, tuple[Next, ...]] = {
    "DDR4-1600": ("bank", "rows", "groups"),
    "DDR4-1866": ("bank", "rows", "groups"),
    "DDR4-2133": ("rows", "groups"),
    "DDR4-2400": ("bank", "rows", "groups", "apart", "meet"),
    "DDR4-2666": ("bank", "rows", "groups"),
    "HBM2-1800": ("rows", "groups", "apart", "meet"),
}
PUBLISHED: dict[tuple[str, Next], tuple[float, str]] = {
    ("DDR4-2400", "groups"): (0.9375, "36 of 38.4 GB/s, Shuhai on a U280 (FCCM 20)"),
    ("DDR4-2666", "rows"): (0.54, "simple row-bank-column mapping (AMD PG313)"),
    ("DDR4-2666", "groups"): (0.95, "mapping with bank groups in turn (AMD PG313)"),
    ("HBM2-1800", "groups"): (425 / 460.8, "425 of 460.8 GB/s, Shuhai on a U280 (FCCM 20)"),
}
"""Shares of the peak, with their sources."""


def closed(name: str, order: Next) -> float:
    """The share by formula: bursts apart by tCCD, all quiet for tRFC and until a row is open again. Rows are opened
    meanwhile, as enough requests are under way; those of one bank between the last read of one and the first of the
    next.
    """
    part, t = load_part(name), load_part(name).timing
    clock, columns = 2e3 / part.rate, part.row * 8 // (part.width * part.burst)
    turns = order not in ("rows", "bank") and part.groups > 1
    apart = max(part.burst / 2, t.tCCD_S if turns else t.tCCD_L) * clock
    turn = t.tRTP + t.tRP + t.tRCD - apart if order == "bank" else 0
    each = apart + turn / columns
    if order == "meet":
        bursts = _REQUEST // part.burst_bytes
        last = (bursts // part.groups - 1) * part.groups * apart
        each = max(each, (max(t.tRAS, t.tRCD + last + t.tRTP) + t.tRP) / bursts)
    return part.burst / 2 * clock / each * (1 - (t.tRFC + t.tRP + t.tRCD) / t.tREFI)


def stream_share(name: str, order: Next) -> float:
    """The share of the peak that endless streams reach with 64 bursts under way, by the timing."""
    part = load_part(name)
    columns, banks = part.row // part.burst_bytes, part.bank_bursts
    if order == "bank":
        return share(ReadStream(part, "rows", 1, 64, columns, banks * part.banks))
    if order in ("apart", "meet"):
        other = _FAR * banks * part.banks + (banks if order == "apart" else 0)
        return share(ReadStream(part, "groups", 1, 64, streams=2, turn=_REQUEST // part.burst_bytes, apart=other))
    return share(ReadStream(part, "rows" if order == "rows" else "groups", 1, 64))


def streams() -> Iterator[list[Any]]:
    """Rows of the memory's table: part, order, emulated share, by formula, published, source."""
    for name, orders in STREAMS.items():
        for order in orders:
            published = PUBLISHED.get((name, order), (None, ""))
            yield [name, order, stream_share(name, order), closed(name, order), *published]


def _number(value: float | None, form: str = ".1f") -> str:
    return "-" if value is None else f"{value:{form}}"


def _range(row: dict[str, Any]) -> str:
    low, high = row["low_tokens_per_s"], row["high_tokens_per_s"]
    return "unknown" if low is None else f"{low:.1f} to {high:.1f}"


def _inside(row: dict[str, Any]) -> str:
    low, high, published = row["low_tokens_per_s"], row["high_tokens_per_s"], row["published_tokens_per_s"]
    most = row["published_most"] or published
    return "-" if None in (low, published) else "yes" if low <= most and published <= high else "no"


def _published(row: dict[str, Any]) -> str:
    least, most = row["published_tokens_per_s"], row["published_most"]
    return _number(least, "g") if most is None else f"{least:g} to {most:g}"


def _known(rows: list[dict[str, Any]]) -> Iterator[list[Any]]:
    """Cells on speeds that nothing is fitted to, read before the prediction and after it."""
    for held_out, when in ((False, "before"), (True, "after")):
        free = [r for r in rows if r["error"] is not None and not r["fitted"] and r["held_out"] == held_out]
        error, inside = median(abs(r["error"]) for r in free), [_inside(r) for r in free if _inside(r) != "-"]
        yield [f"read {when} the prediction", len(free), f"{error:.0%}", f"{inside.count('yes')} of {len(inside)}"]


def _speeds(rows: list[dict[str, Any]]) -> Iterator[list[Any]]:
    """Cells of the table of speeds."""
    for r in rows:
        error = _number(r["error"], "+.0%") if r["beyond"] or not r["fitted"] else "-"
        yield [
            *(r["work"], f"`{r['preset']}`", r["model"], r["context"], _number(r["predicted_tokens_per_s"])),
            *(_range(r), _published(r), error, _inside(r), f"{r['share_of_peak']:.0%}"),
            *("yes" if r["fitted"] else "-", "yes" if r["held_out"] else "-", r["source"]),
        ]


def _watts(rows: list[dict[str, Any]]) -> Iterator[list[str]]:
    """Cells of the table of power: published powers of boards, and of Zynq chips too."""
    for r in rows:
        for way, key, error in (("chip", "chip_watts", "chip_error"), ("board", "predicted_watts", "watts_error")):
            if r[key] and r["published_watts"]:
                cells = [_number(r[key]), _number(r["published_watts"], "g"), _number(r[error], "+.0%")]
                yield [r["work"], f"`{r['preset']}`", way, *cells]


def _said(rows: list[dict[str, Any]], key: str) -> dict[str, str]:
    """What rows have to say of a design, once each."""
    return {r["work"].split(",")[0]: r[key] for r in rows if r[key]}


def _cell(value: Any) -> Any:
    return float(f"{value:.5g}") if isinstance(value, float) else value


def page(rows: list[dict[str, Any]]) -> str:
    """The text of docs/data/accelerators.md."""
    first = [
        (r["work"], f["tokens"], f"{f['predicted_ms']:.1f}", _number(f["published_ms"]), _number(f["error"], "+.0%"))
        for r in rows
        for f in r["first_token"]
    ]
    shares = (
        (name, order, f"{emulated:.1%}", f"{formula:.1%}", _number(published, ".1%"), source or "-")
        for name, order, emulated, formula, published, source in streams()
    )
    names = "work | preset | model | context | tok/s predicted | range | tok/s published | error | in range | "
    names += "share of peak | fitted | held out | source"
    power = "work | preset | prediction for | watts predicted | watts published | error"
    tables = {
        "speeds": (names, _speeds(rows)),
        "known": ("published speeds | how many | median error of predictions | in the predicted range", _known(rows)),
        "watts": (power, _watts(rows)),
        "unknown": ("work | unpublished parameters", _said(rows, "unknown").items()),
        "changed": ("work | change | tok/s predicted | error", changed()),
        "first": ("work | tokens in the prompt | ms predicted | ms published | error", first),
        "streams": ("memory | next burst | emulated share | share by formula | published share | source", shares),
    }
    lines = Path(__file__).with_name("records.md").read_text(encoding="utf-8").splitlines()
    text = "\n\n".join(lines).replace("|\n\n|", "|\n|")
    return text.replace("\n\n- ", "\n- ").format(
        **{key: "\n".join(markdown(header.split(" | "), cells)) for key, (header, cells) in tables.items()},
        missing="\n".join(f"- {work}: {missing}" for work, missing in _said(rows, "missing").items()),
    )


def _mhz(value: float, source: str) -> dict[str, Constant]:
    return {"port_clock": Constant(value=value, unit="MHz", source=source, kind="assumption")}


_FOUR = Constant(value=4, unit="requests", source="the other end of the range", kind="assumption")
CHANGED: tuple[tuple[str, str, int, dict[str, dict[str, Any] | None]], ...] = (
    ("kv260-llama", "a context of 1,024 instead of 512 tokens", 1024, {}),
    ("flightllm-u280", "a context of 128 instead of 512 tokens", 128, {}),
    ("flightllm-u280", "3.5 instead of 4.153 bits per weight", 512, {"format": {"weight_bits": 3.5}}),
    ("flightllm-u280", "keys and values of 16 instead of 8 bits", 512, {"format": {"kv_bits": 16}}),
    ("flightllm-u280", "no `chain`", 512, {"chain": None}),
    ("flightllm-u280", "4 instead of 16 requests in flight per port", 512, {"hbm": {"requests": _FOUR}}),
    ("flightllm-u280", "successive bursts in the same bank group", 512, {"hbm": {"order": "rows"}}),
    ("flightllm-u280", "ports at 300 instead of 450 MHz", 512, {"hbm": _mhz(300, "the platform's clock of kernels")}),
    ("flightllm-u280", "channels at 70 % of their peak bandwidth", 512, {"hbm": _mhz(315, "0.7 x 450")}),
    ("flightllm-u280", "channels at 56 % of their peak bandwidth", 512, {"hbm": _mhz(252, "0.7 x 0.8 x 450")}),
    ("flexllm-u280", "attention on the whole MAC array, no separate scales and no `chain`", 1536,
     {"core": {"attention_array": None}, "hbm": {"scales": None}, "chain": None}),
    ("flexllm-u280", "no separate scales and no `chain`", 1536, {"hbm": {"scales": None}, "chain": None}),
    ("flexllm-u280", "no separate scales", 1536, {"hbm": {"scales": None}}),
    ("flexllm-u280", "no `chain`", 1536, {"chain": None}),
)  # fmt: skip
"""Predictions with one thing changed, or two: preset, what, context, its keys."""


def changed() -> Iterator[list[str]]:
    """Cells of a table: what is changed, tokens a second, error."""
    for name, what, context, sections in CHANGED:
        preset, point = load_preset(name), points_of(name)[0]
        update = {part: keys and getattr(preset, part).model_copy(update=keys) for part, keys in sections.items()}
        row = predict(preset.model_copy(update=update), replace(point, context=context))
        yield [point.work, what, _number(row["predicted_tokens_per_s"]), _number(row["error"], "+.0%")]


def write(folder: Path) -> list[Path]:
    """Write accelerators.md and accelerators.csv; returns their paths. Raises RequestError for a folder that does not
    exist, RunError where a file can't be written.
    """
    if not folder.is_dir():
        raise RequestError(f"the folder {folder} does not exist")
    rows = [predict(load_preset(point.preset), point) for point in POINTS]
    text, table = folder / "accelerators.md", folder / "accelerators.csv"
    write_whole(text, page(rows) + "\n")
    names = [name for name in rows[0] if name not in ("first_token", "fitted")]
    write_whole(
        table, csv_of([*names, "fitted"], [[*(_cell(r[name]) for name in names), " ".join(r["fitted"])] for r in rows])
    )
    return [text, table]
