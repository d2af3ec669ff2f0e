"""Tables of the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from fastcar_cli.cli.render import Results, columns, console, progress

WIDEST = 1000  # characters of a table in a file


def clip_table(out: Console, result: dict[str, Any]) -> None:
    """Print what a predicted clip took, see `bench.clip.measure`."""
    out.print(f"{result['cpu']}, {result['threads']} threads, torch {result['torch']}")
    table = columns(
        f"{result['parameters'] / 1e6:.0f} M parameters, {result['prompt']} tokens of context, "
        f"{result['tokens']} predicted, {result['ratio']:.0%} of all MLPs replayed: median of {result['turns']} turns",
        *("", "seconds", "least to most", "tokens/s", "against transformers", "speed-up", "of its ceiling"),
    )
    for name, line in result["lines"].items():
        low, high = line["spread_s"]
        cells = [f"{line['seconds']:.2f}", f"{low:.2f} to {high:.2f}", f"{line['tokens_per_s']:.0f}"]
        cells.append(f"{line['vs_transformers']:.2f} x")
        if "speedup" in line:
            cells += [f"{line['speedup']:.2f} of {line['ceiling']:.2f}", f"{line['of_ceiling']:.0%}"]
        table.add_row(name, *cells)
    print_whole(out, table)


def neighbour_table(out: Console, result: dict[str, Any]) -> None:
    """Print what passes took beside busy processes, see `bench.neighbour.measure`."""
    out.print(f"{result['cpu']}, busy processes beside it: {result['busy']}, torch {result['torch']}")
    threads = f"{result['threads']} threads"
    table = columns(
        f"{result['shape']}, context {result['context']}, {result['rows']} rows, dense: "
        f"median of {result['turns']} turns of {result['passes']} passes",
        *("", "one thread, ms a pass", f"{threads}, ms a pass", f"{threads} over one"),
    )
    for form, line in result["lines"].items():
        cells = [f"{line['one_thread_ms']:.3f}", f"{line['threads_ms']:.3f}", f"{line['threads_over_one']:.2f}"]
        table.add_row(form, *cells)
    print_whole(out, table)


def rates_text(result: dict[str, Any]) -> str:
    """The multiply-adds a second of the cores, see `bench.window.measure`."""
    rates = result["multiply_adds_g_s"]
    return f"{rates['32']:.0f}, {rates['16']:.0f} and {rates['8']:.0f} G multiply-adds/s of 32, 16 and 8 bits"


def window_table(out: Console, result: dict[str, Any]) -> None:
    """Print what passes of several tokens took, see `bench.window.measure`."""
    out.print(
        f"{result['cpu']}, {result['threads']} threads, {result['instruction_set']}, torch {result['torch']}; memory "
        f"gives {result['bandwidth_gb_s']:.1f} GB/s, the cores {rates_text(result)}"
        + "".join(f"; {name} {version}" for name, version in result["rivals"].items())
    )
    table = columns(
        f"{result['shape']}, {result['layers']} layers, context {result['context']}, {result['rows']} rows, keys and "
        f"values {result['kv_dtype']}: least of {result['turns']} turns of {result['passes']} passes",
        *("", "tokens a pass", "ms a pass", "times the first", "GB/s", "of bandwidth", "G multiply-adds/s"),
        *("of the cores", "bound by", "floor, ms", "draw, ms"),
        *(("final", "speed-up") if "accept" in result else ()),
        caption=f"speed-up of whole steps with drafts right with probability {result['accept']:g}"
        if "accept" in result
        else None,
    )
    for form, by_window in result["lines"].items():
        for window, line in by_window.items():
            cells = [form, str(window), f"{line['ms']:.3f}", f"{line['times']:.2f}"]
            cells += [f"{line['gb_s']:.1f}", f"{line['of_bandwidth']:.0%}", f"{line['multiply_adds_g_s']:.0f}"]
            cells += [f"{line['of_arithmetic']:.0%}", line["bound"], f"{line['floor_ms']:.3f}"]
            cells += [f"{line['draw_ms']:.3f}" if "draw_ms" in line else ""]
            cells += [f"{line[k]:.2f}" for k in ("tokens_per_pass", "speedup") if k in line]
            table.add_row(*cells)
    print_whole(out, table)


def print_whole(target: Console, table: Table) -> None:
    """Print a table as --format says; in a file, where no line is too long, with nothing cut."""
    if not target.is_terminal and Results.form == "table":
        target = Console(file=target.file, width=WIDEST, markup=False, emoji=False)
    target.print(table)


def watched(things: str, name: str, work: Callable[[Callable[[int, int], None]], dict[str, Any]]) -> dict[str, Any]:
    """What `work(on_progress)` gives, with a bar of the things done."""
    with progress(console(), things) as bar:
        task = bar.add_task(name, total=None)
        return work(lambda done, total: bar.update(task, completed=done, total=total))
