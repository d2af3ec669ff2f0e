"""`fastcar profile`: time of a decode step by module, and the possible speedup from replay and drafts."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

import typer
from rich.table import Table
from rich.text import Text

from fastcar_cli.cli.flags import check_file, refuse
from fastcar_cli.cli.options import Accelerator, Flags, Json, options
from fastcar_cli.cli.render import Results, add_memory, columns, console, facts, note, progress
from fastcar_cli.config import choices
from fastcar_cli.config.run_config import RunConfig, load_config, surroundings
from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import read_text, write_whole


@options("model", "runtime.device", "runtime.threads", "runtime.executor")
def profile(
    ctx: typer.Context,
    seq: str | None = typer.Option(None, help="Context lengths in tokens, such as 2k,8192. [default: 2k,4k,8k]"),
    rows: int | None = typer.Option(
        None, help="Rows (sequences) per batch; a video with guidance has two. [default: one video's]", min=1, max=256
    ),
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = typer.Option(
        "auto", help="Format of the weights: auto, float32, bfloat16 or float16."
    ),
    *,
    flags: Flags,
    repeats: int = typer.Option(5, help="Number of timed steps per measurement.", min=1, max=10**6),
    replay_ratio: float = typer.Option(0.8, help="Compare drafts with replay alone at this ratio.", min=0, max=1),
    backend: choices.Backend = typer.Option("torch", help="torch measures times; fpga-sim emulates an FPGA."),
    fpga: Accelerator = None,
    decode: str | None = typer.Option(None, metavar="PROMPT", help="Profile a whole video of this prompt."),
    tau: str = typer.Option("-2", help="Replay threshold for --decode."),
    seed: int = typer.Option(0, help="Seed of the video for --decode.", min=0, max=2**63 - 1),
    save: Path | None = typer.Option(None, help="Save the result to this JSON file."),
    compare: Path | None = typer.Option(None, help="Compare with the times in this file, which --save wrote."),
    dry: bool = typer.Option(False, "--dry-run", help="Print the memory that a measurement needs; do not measure."),
    as_json: Json = False,
) -> None:
    """Time each module of a decode step; --decode times a whole video.

    Published models such as vila-u-7b run with random weights of their shapes, without a download.
    """
    from fastcar_cli.checkpoints.open import spec_of
    from fastcar_cli.pipeline.pipeline import VideoPipeline
    from fastcar_cli.profile.profile_report import emulated_lengths, profile_decode, profile_steps, ratios
    from fastcar_cli.profile.profiler import parse_lengths

    run = load_config(None, (), flags, surroundings())
    model = run.model
    _refuse(ctx, backend, decode, seq, dry, model)
    spec = spec_of(model)
    # Models that continue frames are measured at their full length.
    usual = "2k,4k,8k" if spec.layout.prefix is None else str(spec.decoder.max_positions)
    if spec.layout.rolls and spec.layout.prompt is not None:
        usual = str(spec.layout.prompt + (spec.frames - spec.layout.context) * spec.layout.stride)
    lengths = [] if decode is not None and seq is None else parse_lengths(seq or usual)
    earlier = _read(compare) if compare is not None else None
    check_file("--save", save)
    measured = run.changed({"runtime.dtype": dtype})
    if dry:
        return _dry_run(measured, lengths, rows, repeats, as_json)
    if backend == "fpga-sim":
        document = emulated_lengths(spec, model, lengths, rows or (2 if spec.layout.guided else 1), fpga)
    else:
        with progress(console(), "lengths") as bar:
            task = bar.add_task("measuring", total=len(lengths), visible=bool(lengths))
            document = profile_steps(measured, lengths, rows, repeats, replay_ratio, partial(bar.advance, task))
    if decode is not None:
        keys = {"model": model, "replay.tau": tau, "draft.kind": "off", "runtime.dtype": dtype}
        pipe = VideoPipeline.from_config(load_config(None, (), keys | {"runtime.device": run.runtime.device}))
        pipe.notices([decode])
        document["decode"] = profile_decode(pipe, decode, seed)
    if save is not None:
        write_whole(save, json.dumps(document, indent=1) + "\n")
    if earlier is not None:
        document["compared"] = ratios(document, earlier)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        show(document)


def _refuse(ctx: typer.Context, backend: str, decode: str | None, seq: str | None, dry: bool, model: str) -> None:
    from fastcar_cli.checkpoints.architectures import published

    if decode is None:
        refuse(ctx, ("tau", "seed"), "without --decode", "it needs --decode PROMPT")
    elif seq is None:
        measured = ("rows", "repeats", "replay_ratio", "compare")
        refuse(ctx, measured, "with --decode alone", "add --seq, which also times single steps")
    if backend == "torch":
        refuse(ctx, ("fpga",), "with the backend torch", "it needs --backend fpga-sim")
    else:
        of_torch = ("dtype", "device", "threads", "executor", "repeats", "replay_ratio", "decode", "dry")
        refuse(ctx, of_torch, "with an emulated accelerator", "leave it out, or leave out --backend fpga-sim")
    if dry:
        refuse(ctx, ("decode", "save", "compare"), "with --dry-run", "leave it out; generate --dry-run plans a video")
    if decode is not None and published(model) is not None:
        said = f"--decode needs real weights; profile runs {model} with random ones"
        raise RequestError(said, hint="use --model mini or the folder of a model")


def _dry_run(run: RunConfig, lengths: list[int], rows: int | None, repeats: int, as_json: bool) -> None:
    from fastcar_cli.profile.profile_report import plan_profile

    _, rows, layers, plan = plan_profile(run, lengths, rows, repeats)
    if as_json:
        return typer.echo(json.dumps({"model": run.model, "rows": rows, "layers": layers, **plan.to_dict()}))
    table = facts(f"plan for {run.model} (nothing was measured)")
    table.add_row("layers", f"{layers['measured']} of {layers['scaled_to']} would run; rows in the batch: {rows}")
    add_memory(table, plan)
    Results().print(table)


def _read(file: Path) -> dict[str, Any]:
    from fastcar_cli.system.plain_data import parse_json

    text = read_text(file, f"--compare {file}")
    try:
        data = parse_json(text, finite=True)
        for length in data["lengths"]:
            seq, step, modules = int(length["seq"]), float(length["step_ms"]), length["modules"].values()
            if seq < 1 or step <= 0 or min((float(m["ms"]) for m in modules), default=0) < 0:
                raise ValueError(f"seq {seq} has invalid times")
        return data
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise RequestError(f"--compare {file} is not a saved profile: {type(e).__name__} {e}") from None


_COLUMNS = {
    "Mcycles": ("cycles", 1e6, 3),
    "MB": ("bytes", 1e6, 1),
    "GB/s": ("gb_s", 1, 1),
    "GFLOP/s": ("gflop_s", 1, 1),
    "floor ms": ("floor_ms", 1, 3),
}
"""By column: key of a module's number, unit, decimals."""


def show(document: dict[str, Any]) -> None:
    """Print the document."""
    out = Results()
    machine = document["machine"]
    threads = f", {machine['threads']} threads" if "threads" in machine else ""
    out.print(Text.assemble((machine["device"], "bold"), threads))
    if "copy_gb_s" in machine:
        out.print(
            f"measured: copies {machine['copy_gb_s']:.1f} GB/s (read + write), reads {machine['read_gb_s']:.1f} GB/s, "
            f"{machine['dtype']} matrix products {machine['matrix_gflop_s']:,.0f} GFLOP/s; torch {machine['torch']}, "
            f"timer {machine['clock']}"
        )
    if "executor" in document:
        out.print(f"the steps ran in {document['executor']['why']}")
    layers = document.get("layers")
    if layers and layers["measured"] != layers["scaled_to"]:
        out.print(
            f"measured with {layers['measured']} layers of full width and random weights; the times of attention, MLP "
            f"and TAS are scaled to {layers['scaled_to']} layers, other times are not",
            style="yellow",
        )
    for length in document["lengths"]:
        out.print(_length(document["model"], length))
        if method := length.get("method"):
            out.print(
                f"  {method['rows']} rows, median of {method['repeats']} steps after warm-up, "
                f"range {method['spread']:.0%} of the median; "
                f"the modules' times add up to {method['sum_over_whole']:.1%} of a step timed as a whole "
                f"({method['whole_step_ms']:.2f} ms with {method['layers_run']} layers)"
            )
    for replay in document["replay"].get("lengths", []):
        out.print(_replay(replay, document["replay"]["rows"]))
    for drafts in document.get("drafts", []):
        out.print(_drafts(drafts))
    if "decode" in document:
        _decode(document["decode"])
    if "compared" in document:
        table = columns("time now / time in the saved result (above 1: slower now)", "line", "context", "ratio")
        for row in document["compared"]:
            table.add_row(row["name"], f"{row['seq']:,}", f"{row['ratio']:.2f}")
        out.print(table)


def _length(model: str, length: dict[str, Any]) -> Table:
    names = [name for name in _COLUMNS if (name == "Mcycles") == ("step_cycles" in length)]
    title = f"{model}, one step at {length['seq']:,} tokens of context: {length['step_ms']:.2f} ms"
    table = columns(title, "module", "ms", "share", *names, caption="floor ms: least possible time" * (len(names) > 1))
    for name, module in length["modules"].items():
        row = [name.replace("_", " "), f"{module['ms']:,.3f}", f"{module['share']:.1%}"]
        for key, unit, digits in map(_COLUMNS.__getitem__, names):
            number = module.get(key)
            row.append("" if number is None else f"{number / unit:,.{digits}f}")
        table.add_row(*row, style="bold")
        if len(module["parts"]) > 1:
            for part, ms in sorted(module["parts"].items(), key=lambda p: -p[1]):
                share = f"{ms / length['step_ms']:.1%}"
                table.add_row(f"  {part.replace('_', ' ')}", f"{ms:,.3f}", share, style="dim")
    return table


def _replay(replay: dict[str, Any], rows: int) -> Table:
    measured = f"Measured speedup if every MLP replays: {replay['measured_all_replayed']:.2f}x."
    table = columns(
        f"replay at {replay['seq']:,} tokens of context: MLPs take {replay['mlp_share']:.0%} of a step, so the "
        f"speedup is at most {replay['ceiling']:.2f}x; TAS takes {replay['tas_ms']:.3f} ms",
        *("replayed", "rows alone", "in pairs", "together"),
        caption=f"replayed: replay ratio. Others: speedup if {rows} rows replay alone, in pairs, together. {measured}",
    )
    for row in replay["expected"]:
        table.add_row(f"{row['ratio']:.1%}", *(f"{row[k]:.2f}x" for k in ("rows_alone", "in_pairs", "together")))
    return table


def _drafts(drafts: dict[str, Any]) -> Table:
    table = columns(
        f"drafts at {drafts['seq']:,} tokens of context: passes with W input tokens per video, {drafts['kernels']}",
        *("W", "ms", "times one", "pay from", "beat replay from"),
        caption="times one: time of the pass / time for W = 1. pay from: lowest share of accepted drafts at which "
        "decoding with W is faster than with W = 1. beat replay from: lowest share at which it is faster than "
        f"replay of {drafts['replay_ratio']:.0%} of the MLPs (speedup {drafts['replay_speedup']:.2f}x).",
    )
    for line in drafts["windows"]:
        shares = ["" if line["window"] == 1 else "never" if (a := line[k]) is None else f"{a:.0%}"
                  for k in ("pays_from", "beats_replay_from")]  # fmt: skip
        table.add_row(str(line["window"]), f"{line['ms']:.3f}", f"{line['cost']:.2f}", *shares)
    return table


def _decode(profile: dict[str, Any]) -> None:
    out = Results()
    replay = profile["replay"]
    table = columns(
        f"{profile['prompt']!r}, seed {profile['seed']}, tau {profile['tau']} (TAS: {profile['tas']}): "
        f"{replay['eligible_ratio']:.1%} of the eligible MLPs replayed",
        *("layer", "replayed", "TAS 5 %", "median", "95 %", "above tau", "similarity"),
        caption="TAS 5 %, median and 95 %: percentiles of TAS without replay. above tau: share of TAS above tau. "
        "similarity: mean cosine between an MLP's outputs in consecutive frames",
    )
    for i, percentiles in enumerate(profile["tas_percentiles"]):
        above = "" if profile["above_tau"] is None else f"{profile['above_tau'][i]:.0%}"
        alike = "" if (cosine := profile["mlp_similarity"][i]) is None else f"{cosine:.3f}"
        scores = (f"{percentiles[k]:.2f}" for k in ("p5", "p50", "p95"))
        table.add_row(str(i), f"{replay['by_layer'][i]:.1%}", *scores, above, alike)
    out.print(table)
    times = profile["times"]
    line = f"  decoding, one token per pass ({times['executor']}): {times['dense_s']:.2f} s without replay"
    if "tau_s" in times:
        line += f", {times['tau_s']:.2f} s at tau {profile['tau']}, {times['speedup']:.2f} times as fast"
    out.print(line)
    out.print("  replayed by frame: " + "  ".join(f"{i}: {r:.1%}" for i, r in enumerate(replay["by_frame"])))
    if profile["warning"]:
        note(console(), profile["warning"], "warning")
