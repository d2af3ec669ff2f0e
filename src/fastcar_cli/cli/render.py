"""Tables and progress that people read, on standard error."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table


def console(quiet: bool = False) -> Console:
    """The console of everything but results."""
    return Console(stderr=True, quiet=quiet)


def progress(target: Console, things: str = "frames") -> Progress:
    """A bar by frame (or other things) with time left; silent where the console is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(things),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=target,
        transient=True,
        disable=not target.is_terminal,
    )


def loading(target: Console) -> Progress:
    """A bar by bytes with speed and time left; silent where the console is no terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=target,
        transient=True,
        disable=not target.is_terminal,
    )


def summary(report: dict[str, Any], verbose: bool = False) -> Table:
    """What a run did: replay, speed, time by phase, file, seed."""
    replay, timing = report["replay"], report["timing"]
    table = Table(title=report["prompt"], title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    video = report["video"]
    table.add_row("file", video["path"])
    table.add_row("video", f"{video['frames']} frames, {video['width']} x {video['height']}, {video['fps']} fps")
    table.add_row("seed", str(report["seed"]))
    if report["reading"]["drawn"]:
        table.add_row("left open", f"{', '.join(report['reading']['drawn'])} (drawn from the seed)")
    tau = "off" if report["tau"] is None else report["tau"]
    if replay["target"] is not None:
        last = sorted({f"{t:.3g}" for t in replay["taus"] if t is not None}, key=float) or ["none yet"]
        tau = f"{last[0]} to {last[-1]}" if len(last) > 1 else last[0]
        tau = f"{tau} at the end, moved to keep {replay['target']:.1%} ({replay['controller']})"
    table.add_row("tau", f"{tau} (TAS: {replay['tas']}, gate: {replay['gate']})")
    table.add_row("replayed", f"{replay['ratio']:.1%} of all MLPs, {replay['eligible_ratio']:.1%} of eligible ones")
    if verbose:
        table.add_row("  by layer", "  ".join(f"{i}: {r:.1%}" for i, r in enumerate(replay["by_layer"])))
        table.add_row("  by frame", "  ".join(f"{i}: {r:.1%}" for i, r in enumerate(replay["by_frame"])))
    table.add_row("speed", f"{timing['tokens_per_s']:.0f} tokens/s")
    share = "" if timing["mlp_share"] is None else f", {timing['mlp_share']:.0%} of it in MLPs"
    table.add_row(
        "time",
        f"load {timing['load_s']:.2f} s, prefill {timing['prefill_s']:.2f} s, "
        f"decode {timing['decode_s']:.2f} s{share}, vision {timing['vision_s']:.2f} s",
    )
    backend = report["backend"]
    if backend["name"] == "fpga-sim":
        accelerator(table, backend)
    return table


def accelerator(table: Table, backend: dict[str, Any]) -> None:
    """Rows about a run on the emulated accelerator."""
    cores = "  ".join(f"{u:.0%}" for u in backend["utilisation_by_core"])
    energy = backend["energy"]
    table.add_row("accelerator", f"{backend['preset']} (emulated), {backend['rows']} rows on {backend['cores']} cores")
    table.add_row("  cycles", f"{backend['cycles']:,} = {backend['latency_s']:.3f} s")
    table.add_row(
        "  energy",
        f"{backend['energy_j']:.3g} J at {backend['power_w']:.3g} W (constant), "
        f"{energy['activity_j']:.3g} J (activity), {backend['energy_per_token_j'] * 1e3:.3g} mJ a token",
    )
    table.add_row("  cores at work", cores)
    table.add_row("  DRS", f"{backend['drs_cycles']:,} cycles, {backend['drs_share']:.2%} of all")
    table.add_row(
        "  speed-up",
        f"{backend['speedup_vs_dense']:.2f} against dense, {backend['speedup_vs_static']:.2f} against static mapping "
        f"(ideal: {backend['ideal_speedup_vs_dense']:.2f} against dense)",
    )
