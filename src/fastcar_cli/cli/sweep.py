"""`fastcar sweep`: speed against quality over thresholds, prompts and seeds."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from fastcar_cli.cli.flags import one_of, refuse
from fastcar_cli.cli.options import Flags, VideoOptions, options, words
from fastcar_cli.cli.render import Results, console, facts, note, progress
from fastcar_cli.config.choices import AXES
from fastcar_cli.config.lists import parse_seeds, parse_shard
from fastcar_cli.config.run_config import load_sources, notices, surroundings
from fastcar_cli.config.tau import Tau
from fastcar_cli.errors import RequestError
from fastcar_cli.pipeline.engines import check_engine
from fastcar_cli.system.signals import status

METRICS = ("psnr", "ssim", "ms-ssim", "temporal", "fidelity", "lpips")
_OWN = "[default: the configuration's value]"


def _list(help: str, allowed: tuple[str, ...] = ()) -> Any:
    """An option with comma-separated values."""
    help = help.format(", ".join(allowed))
    return typer.Option(None, help=help, autocompletion=words(allowed) if allowed else None)


class SweepOptions(VideoOptions):
    """Options of `sweep`; for None the sweep uses the configuration's values."""

    output: Path | None = typer.Option(None, "-o", "--output", help="Folder for the results and the videos.")
    tau: str | None = _list(f"Replay thresholds: off, numbers (0 to -4 is useful), -inf (all MLPs replay). {_OWN}")
    replay_ratio: str | None = _list("Target replay ratios to measure, in addition to the thresholds of --tau.")
    score: str | None = _list(f"Scores that decide on replay: {{}}. {_OWN}", AXES["score"])
    axis: str | None = _list(
        "Measure all values of one option: score (at replay ratios 0.2,0.5,0.8), gate, or draft (lengths 4,8,16).",
        ("score", "gate", "draft"),
    )
    draft: str | None = _list("Kinds of drafts (speculative decoding): {}. [default: off]", AXES["draft"])
    draft_window: str | None = _list("Draft lengths (input tokens per pass) for --draft. [default: 16]")
    seeds: str = typer.Option("0", help="Seeds of the videos, such as 0-3 or 0,5,7.")
    window: str | None = _list(f"Attention windows in tokens, or off for full attention. {_OWN}")
    gate: str | None = _list(f"Rows of a guided video decide on replay singly (row) or as a pair. {_OWN}", AXES["gate"])
    backend: str | None = _list(f"Backends for MLPs: {{}}. {_OWN}", AXES["backend"])
    repeats: int = typer.Option(3, help="Number of timed decodes per video and setting.", min=1, max=1000)
    metrics: str | None = _list("Metrics: {}. [default: all but lpips]", METRICS)
    lpips_weights: Path | None = typer.Option(None, help="State dict file of torchvision's AlexNet or VGG16 for lpips.")


@options("model", "generation.frames", "input.start", "input.step", "input.key")
def sweep(ctx: typer.Context, asked: SweepOptions, flags: Flags) -> None:
    """Measure speed and quality of videos at several replay thresholds; rerun to resume.

    Quality compares each video with the dense video of the same prompt and seed.
    """
    from fastcar_cli.pipeline.clips import ClipFiles
    from fastcar_cli.sweep.grid import join_prompts
    from fastcar_cli.sweep.metrics import parse_metrics
    from fastcar_cli.sweep.session import Request, Session, grid_document

    run, sources = load_sources(asked.config, asked.set_ or [], flags, surroundings())
    clips = ClipFiles(tuple(asked.inputs or ()), tuple(asked.actions or ()), run.input)
    clips.check()
    texts, notes = list[str](), list[str]()
    if not clips:
        refuse(ctx, ("actions", "start", "step", "key"), "without --input", "it needs --input FILE")
        texts, notes = join_prompts(asked.prompts or [], asked.prompts_file)
    elif asked.prompts or asked.prompts_file is not None:
        raise RequestError("--input and prompts can't be used together", hint="leave out --input or the prompts")
    check_engine(asked.engine, asked.address, asked.workers)
    one_of("--names", asked.names, ("vbench",))
    if asked.shard is not None:
        parse_shard(asked.shard)
    axes = ("tau", "replay_ratio", "score", "gate", "draft", "draft_window", "window", "backend")
    chosen = _axes(ctx, asked.axis, {name: getattr(asked, name) for name in axes})
    if asked.output is None and not asked.dry:
        raise RequestError("-o is missing: a sweep needs a folder", hint="add -o DIR")
    request = Request(
        config=run,
        prompts=tuple(texts),
        seeds=parse_seeds(asked.seeds),
        axes=chosen,
        metrics=parse_metrics(asked.metrics, asked.lpips_weights),
        lpips=asked.lpips_weights,
        vbench=asked.names == "vbench",
        inputs=clips,
        **{name: getattr(asked, name) for name in ("repeats", "shard", "engine", "address", "workers")},
    )
    notes += notices({key: source for key, source in sources.items() if key != "replay.tau" or asked.tau is None})
    terminal, out, output = console(asked.quiet), Results(asked.quiet), asked.output or Path()
    if asked.dry:
        document = grid_document(request, asked.output)
        document["notes"] = notes = [*notes, *document["notes"]]
        if asked.as_json:
            return typer.echo(json.dumps(document, ensure_ascii=False))
        show_plan(out, document)
        for text in notes:
            note(terminal, text)
        return None
    session = Session(request)
    for text in [*notes, *session.notices]:
        note(terminal, text)
    with session.opened(output) as store:
        for text in store.damaged:
            note(terminal, text, "damaged cell, decoded again if this sweep needs it")
        try:
            with progress(terminal, "decodes") as bar:
                session.run(store, partial(bar.advance, bar.add_task("sweep", total=session.left(store))))
        except KeyboardInterrupt as e:
            done, rest = len(store.cells), session.left(store)
            note(terminal, f"{done} cells are saved; rerun the command to resume ({rest} decodes are left)", "stopped")
            raise typer.Exit(status(e)) from None
        results, written, notes = session.finish(store)
    for text in notes:
        note(terminal, text)
    if asked.as_json:
        return typer.echo(json.dumps(results, ensure_ascii=False))
    return show(out, terminal, results, output, written)


def _axes(ctx: typer.Context, axis: str | None, given: dict[str, str | None]) -> dict[str, Any]:
    """Parse the values of options into the axes of a `Request`. Raises RequestError."""
    from fastcar_cli.sweep.grid import OFF, WHOLE, parse_axis, parse_names

    if axis is not None:
        parse_names("axis", axis, tuple(WHOLE))
        if given[axis] is not None:
            raise RequestError(f"--axis {axis} and --{axis} can't be used together", hint="leave one of them out")
        given[axis] = ",".join(WHOLE[axis])
        if axis == "draft" and given["draft_window"] is None:
            given["draft_window"] = "4,8,16"
        if axis == "score" and given["tau"] is given["replay_ratio"] is None:
            given["replay_ratio"] = "0.2,0.5,0.8"
    if given["draft"] is None:
        refuse(ctx, ("draft_window",), "without --draft", "it needs --draft or --axis draft")
    axes = {name: parse_axis(name, text) for name, text in given.items() if text is not None}
    if "replay_ratio" in axes:
        axes = {"tau": (), "ratio": axes.pop("replay_ratio"), **axes}
    lengths = axes.pop("draft_window", (16,))
    if "draft" in axes:
        kinds = ([OFF] if kind == OFF else [f"{kind}-{size}" for size in lengths] for kind in axes["draft"])
        axes["draft"] = tuple(draft for several in kinds for draft in several)
    return axes


_COLUMNS = {
    "psnr_db": ("PSNR", ".1f"),
    "ssim": ("SSIM", ".3f"),
    "ms_ssim": ("MS-SSIM", ".3f"),
    "temporal": ("temporal", ".2f"),
    "lpips": ("LPIPS", ".3f"),
}


def level(x: dict[str, Any]) -> str:
    """The threshold or replay ratio of a line of results."""
    return str(Tau.read(x["tau"])) if x["ratio"] is None else f"ratio {x['ratio']:g}"


def _value(value: Any, form: str, none: str = "-") -> str:
    return none if value is None else format(value, form)


def show(out: Console, terminal: Console, results: dict[str, Any], folder: Path, written: list[str]) -> None:
    """Print the summary with its knees, and the names of the files."""
    from fastcar_cli.sweep.grid import OFF
    from fastcar_cli.sweep.results import SETTING, dense_line

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
        row |= {"speedup": _value(x["speedup"], ".2f")}
        row |= {_COLUMNS[k][0]: "" if dense else _value(x[k], _COLUMNS[k][1], "same") for k in results["metrics"]}
        row |= {"all right": _value(x["all_right"], ".0%")} if judged else {}
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
    """Print the plan of a sweep."""
    table = facts("plan of the sweep (nothing was written)")
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
    table.add_row("decodes", f"{document['decodes']} ({plan['repeats']} per cell), {document['left']} of them left")
    seconds = document["expected_s"]
    expected = "not measured" if seconds is None else f"at most {duration(sum(seconds.values()))}"
    more = ", without the time for metrics (extrapolated from one short dense decode)" if seconds else ""
    table.add_row("expected", expected + more)
    out.print(table)


def duration(seconds: float) -> str:
    """A time in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
