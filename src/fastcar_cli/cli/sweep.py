"""`fastcar sweep`: speed against quality over thresholds, prompts and seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fastcar_cli.cli.flags import one_of, refuse
from fastcar_cli.cli.options import Flags, VideoOptions, options, words
from fastcar_cli.cli.render import Results, console, note, progress
from fastcar_cli.config import choices
from fastcar_cli.config.lists import parse_seeds, parse_shard
from fastcar_cli.config.run_config import load_sources, notices, surroundings
from fastcar_cli.errors import RequestError
from fastcar_cli.pipeline.engines import check_engine
from fastcar_cli.system.signals import status

if TYPE_CHECKING:
    from fastcar_cli.pipeline.clips import ClipFiles
    from fastcar_cli.sweep.session import Request, Session
    from fastcar_cli.sweep.store import Store

BACKENDS, DRAFTS = choices.values(choices.Backend), choices.values(choices.Draft)
GATES, SCORES = choices.values(choices.Gate), choices.values(choices.Score)
METRICS = ("psnr", "ssim", "ms-ssim", "temporal", "fidelity", "lpips")
_OWN = "[default: the configuration's]"


def _list(help: str, allowed: tuple[str, ...] = ()) -> Any:
    """An option with comma-separated values."""
    return typer.Option(None, help=help, autocompletion=words(allowed) if allowed else None)


class SweepOptions(VideoOptions):
    """Options of `sweep`; None: the configuration's own values."""

    output: Path | None = typer.Option(None, "-o", "--output", help="Folder for the sweep.")
    tau: str | None = _list(f"Thresholds: off, numbers (0 to -4 is useful), -inf. {_OWN}")
    replay_ratio: str | None = _list("Target replay ratios, in addition to --tau.")
    score: str | None = _list(f"Scores: {', '.join(SCORES)}. {_OWN}", SCORES)
    axis: str | None = _list(
        "Sweep all values of score (at ratios 0.2,0.5,0.8), gate, or draft (lengths 4,8,16).",
        ("score", "gate", "draft"),
    )
    draft: str | None = _list("Drafts: off, frame, jacobi, auto. [default: off]", DRAFTS)
    draft_window: str | None = _list("Draft lengths for --draft. [default: 16]")
    seeds: str = typer.Option("0", help="Seeds, such as 0-3 or 0,5,7.")
    window: str | None = _list(f"Attention windows in tokens, or off. {_OWN}")
    gate: str | None = _list(f"Gates: {', '.join(GATES)}. {_OWN}", GATES)
    backend: str | None = _list(f"Backends: {', '.join(BACKENDS)}. {_OWN}", BACKENDS)
    repeats: int = typer.Option(3, help="Timed decodes per cell.", min=1, max=1000)
    metrics: str | None = _list(f"Metrics: {', '.join(METRICS)}. [default: all but lpips]", METRICS)
    lpips_weights: Path | None = typer.Option(None, help="State dict of torchvision's AlexNet or VGG16 for lpips.")


@options("model", "generation.frames", "input.start", "input.step", "input.key")
def sweep(ctx: typer.Context, asked: SweepOptions, flags: Flags) -> None:
    """Measure speed and quality over thresholds, prompts and seeds; the same command resumes.

    Quality compares each video with the dense video of the same prompt and seed.
    """
    from fastcar_cli.pipeline.clips import ClipFiles
    from fastcar_cli.sweep.metrics import parse_metrics
    from fastcar_cli.sweep.session import Request

    run, sources = load_sources(asked.config, asked.set_ or [], flags, surroundings())
    clips = ClipFiles(tuple(asked.inputs or ()), tuple(asked.actions or ()), run.input)
    texts, notes = _prompts(ctx, clips, asked.prompts or [], asked.prompts_file)
    check_engine(asked.engine, asked.address, asked.workers)
    one_of("--names", asked.names, ("vbench",))
    if asked.shard is not None:
        parse_shard(asked.shard)
    axes = ("tau", "replay_ratio", "score", "gate", "draft", "draft_window", "window", "backend")
    chosen = _axes(ctx, asked.axis, {name: getattr(asked, name) for name in axes})
    if asked.output is None and not asked.dry:
        raise RequestError("-o is missing: a sweep needs a folder", hint="-o DIR")
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
    (_dry_run if asked.dry else _sweep)(request, asked, notes)


def _prompts(ctx: typer.Context, clips: ClipFiles, given: list[str], file: Path | None) -> tuple[list[str], list[str]]:
    """Prompts and notices, both empty with inputs. Raises RequestError, also for options without effect."""
    from fastcar_cli.sweep.grid import join_prompts

    clips.check()
    if not clips:
        refuse(ctx, ("actions", "start", "step", "key"), "without --input", "it needs --input with frames")
        return join_prompts(given, file)
    if given or file is not None:
        raise RequestError("--input and prompts exclude each other", hint="a model takes frames or a text")
    return [], []


def _axes(ctx: typer.Context, axis: str | None, given: dict[str, str | None]) -> dict[str, Any]:
    """The axes of a `Request` from the texts of their options. Raises RequestError."""
    from fastcar_cli.sweep import grid as parse

    def read(name: str, reader: Callable[..., Any], *more: Any) -> Any:
        text = given[name]
        return None if text is None else reader(text, *more)

    ratios = read("replay_ratio", parse.parse_ratios)
    if axis is not None:
        parse.parse_names("axis", axis, tuple(parse.AXES))
        if given[axis] is not None:
            raise RequestError(f"--axis {axis} and --{axis} exclude each other", hint="leave one of them out")
        given[axis] = ",".join(parse.AXES[axis])
        if axis == "draft" and given["draft_window"] is None:
            given["draft_window"] = ",".join(map(str, parse.DRAFT_WINDOWS))
        if axis == "score" and given["tau"] is None and ratios is None:
            ratios = parse.RATIOS
    if given["draft"] is None:
        refuse(ctx, ("draft_window",), "without --draft", "it needs --draft or --axis draft")
    names = {"gate": GATES, "score": SCORES, "backend": BACKENDS}
    axes = {
        "tau": () if given["tau"] is None and ratios else read("tau", parse.parse_taus),
        "ratio": ratios,
        "draft": read("draft", parse.parse_drafts, given["draft_window"]),
        "window": read("window", parse.parse_windows),
        **{name: read(name, partial(parse.parse_names, name), allowed) for name, allowed in names.items()},
    }
    return {name: values for name, values in axes.items() if values is not None}


def _sweep(request: Request, asked: SweepOptions, notes: list[str]) -> None:
    """Run a sweep and print its results."""
    from fastcar_cli.cli.sweep_render import show
    from fastcar_cli.sweep.session import Session

    terminal, session, output = console(asked.quiet), Session.open(request), asked.output or Path(".")
    for text in [*notes, *session.notices]:
        note(terminal, text)
    with session.opened(output) as store:
        for text in store.damaged:
            note(terminal, text, "damaged cell, computed again if in the grid")
        _decode(session, store, terminal)
        results, written, notes = session.finish(store)
    for text in notes:
        note(terminal, text)
    if asked.as_json:
        typer.echo(json.dumps(results, ensure_ascii=False))
    else:
        show(Results(asked.quiet), terminal, results, output, written)


def _decode(session: Session, store: Store, terminal: Any) -> None:
    """Decode the cells that are left under a progress bar; finished ones survive Ctrl-C."""
    try:
        with progress(terminal, "decodes") as bar:
            task = bar.add_task("sweep", total=session.left(store))
            session.on_done = lambda cell: bar.advance(task)
            session.run(store)
    except KeyboardInterrupt as e:
        rest = session.left(store)
        note(terminal, f"{len(store.cells)} cells are saved; the same command runs the other {rest} decodes", "stopped")
        raise typer.Exit(status(e)) from None


def _dry_run(request: Request, asked: SweepOptions, notes: list[str]) -> None:
    from fastcar_cli.cli.sweep_render import show_plan
    from fastcar_cli.sweep.session import grid_document

    document = grid_document(request, asked.output)
    document["notes"] = [*notes, *document["notes"]]
    if asked.as_json:
        typer.echo(json.dumps(document, ensure_ascii=False))
    else:
        show_plan(Results(asked.quiet), document)
        for text in document["notes"]:
            note(console(asked.quiet), text)
