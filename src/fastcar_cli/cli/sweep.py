"""`fastcar sweep`: speed against quality over thresholds, prompts and seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastcar_cli.cli.complete import words
from fastcar_cli.cli.flags import one_of, refuse
from fastcar_cli.cli.options import (
    Address,
    ConfigFile,
    Debug,
    EngineName,
    Flags,
    Format,
    Overrides,
    Quiet,
    Shard,
    Workers,
    options,
)
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


def _list(flag: str, help: str, allowed: tuple[str, ...] = ()) -> Any:
    """An option that takes values with commas between them."""
    return typer.Option(flag, help=help, autocompletion=words(allowed) if allowed else None)


Prompts = Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="What the videos show.")]
PromptsFile = Annotated[
    Path | None, typer.Option("--prompts", help="File with one prompt a line, or JSON: VBench's lists, or .jsonl.")
]
InputFiles = Annotated[
    list[Path] | None, typer.Option("--input", metavar="FILE", help="Clips to continue, instead of prompts; repeat it.")
]
Actions = Annotated[
    list[Path] | None, typer.Option(metavar="FILE", help="Actions of the inputs: one file for all, or one each.")
]
Output = Annotated[Path | None, typer.Option("-o", "--output", help="Folder of the sweep.")]
_OWN = "[default: the configuration's]"
Taus = Annotated[str | None, _list("--tau", f"Thresholds: off, numbers (0 to -4 is useful), -inf. {_OWN}")]
Ratios = Annotated[str | None, _list("--replay-ratio", "Replay ratios that a controller holds, beside --tau.")]
Scores = Annotated[str | None, _list("--score", f"Scores: {', '.join(SCORES)}. {_OWN}", SCORES)]
Axis = Annotated[
    str | None,
    _list(
        "--axis",
        "An axis with all its values: score (at ratios 0.2,0.5,0.8), gate, or draft (lengths 4,8,16).",
        ("score", "gate", "draft"),
    ),
]
Drafts = Annotated[str | None, _list("--draft", "Drafts: off, frame, jacobi, auto. [default: off]", DRAFTS)]
DraftLengths = Annotated[str | None, _list("--draft-window", "Draft lengths of --draft. [default: 16]")]
Seeds = Annotated[str, typer.Option(help="Seeds: 0-3, 0,5,7 or both.")]
Windows = Annotated[str | None, _list("--window", f"Attention windows in tokens, or off. {_OWN}")]
Gates = Annotated[str | None, _list("--gate", f"Gates: {', '.join(GATES)}. {_OWN}", GATES)]
Backends = Annotated[str | None, _list("--backend", f"Backends: {', '.join(BACKENDS)}. {_OWN}", BACKENDS)]
Repeats = Annotated[int, typer.Option(help="Timed decodes a cell.", min=1, max=1000)]
Metrics = Annotated[
    str | None, _list("--metrics", f"Of {', '.join(METRICS)}. [default: all that need no weights]", METRICS)
]
LpipsWeights = Annotated[
    Path | None, typer.Option(help="State dict of torchvision's AlexNet or VGG16, for the metric lpips.")
]
Names = Annotated[str | None, typer.Option(help="vbench: also name videos {prompt}-{index}.mp4.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print grid and expected time; write nothing.")]
Json = Annotated[bool, typer.Option("--json", help="Print results.json on standard output.")]


@options("model", "generation.frames", "input.start", "input.step", "input.key")
def sweep(
    ctx: typer.Context,
    prompts: Prompts = None,
    prompts_file: PromptsFile = None,
    inputs: InputFiles = None,
    actions: Actions = None,
    output: Output = None,
    tau: Taus = None,
    replay_ratio: Ratios = None,
    score: Scores = None,
    axis: Axis = None,
    draft: Drafts = None,
    draft_window: DraftLengths = None,
    seeds: Seeds = "0",
    window: Windows = None,
    gate: Gates = None,
    backend: Backends = None,
    repeats: Repeats = 3,
    metrics: Metrics = None,
    lpips_weights: LpipsWeights = None,
    names: Names = None,
    shard: Shard = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    *,
    flags: Flags,
    config: ConfigFile = None,
    set_: Overrides = None,
    dry: DryRun = False,
    as_json: Json = False,
    form: Format = "table",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Speed against quality over thresholds, prompts and seeds; started again it resumes.

    Every cell is compared with the dense video of its prompt and seed.
    """
    from fastcar_cli.pipeline.clips import ClipFiles
    from fastcar_cli.sweep.metrics import parse_metrics
    from fastcar_cli.sweep.session import Request

    run, sources = load_sources(config, set_ or [], flags, surroundings())
    clips = ClipFiles(tuple(inputs or ()), tuple(actions or ()), run.input)
    texts, notes = _prompts(ctx, clips, prompts or [], prompts_file)
    check_engine(engine, address, workers)
    one_of("--names", names, ("vbench",))
    if shard is not None:
        parse_shard(shard)
    given = {"tau": tau, "replay_ratio": replay_ratio, "score": score, "gate": gate, "draft": draft}
    chosen = _axes(ctx, axis, {**given, "draft_window": draft_window, "window": window, "backend": backend})
    if output is None and not dry:
        raise RequestError("-o is missing: a sweep needs a folder", hint="-o DIR")
    request = Request(
        config=run,
        prompts=tuple(texts),
        seeds=parse_seeds(seeds),
        axes=chosen,
        repeats=repeats,
        metrics=parse_metrics(metrics, lpips_weights),
        lpips=lpips_weights,
        vbench=names == "vbench",
        shard=shard,
        engine=engine,
        address=address,
        workers=workers,
        inputs=clips,
    )
    notes += notices({key: source for key, source in sources.items() if key != "replay.tau" or tau is None})
    if dry or output is None:
        _dry_run(request, output, as_json, quiet, notes)
    else:
        _sweep(request, output, notes, quiet, as_json)


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


def _sweep(request: Request, output: Path, notes: list[str], quiet: bool, as_json: bool) -> None:
    """Run a sweep and print its results."""
    from fastcar_cli.cli.render import Results, console, note
    from fastcar_cli.cli.sweep_render import show
    from fastcar_cli.sweep.session import Session

    terminal, session = console(quiet), Session.open(request)
    for text in [*notes, *session.notices]:
        note(terminal, text)
    with session.opened(output) as store:
        for text in store.damaged:
            note(terminal, text, "damaged cell, made again where the grid has it")
        _decode(session, store, terminal)
        results, written, notes = session.finish(store)
    for text in notes:
        note(terminal, text)
    if as_json:
        typer.echo(json.dumps(results, ensure_ascii=False))
    else:
        show(Results(quiet), terminal, results, output, written)


def _decode(session: Session, store: Store, terminal: Any) -> None:
    """Decode the cells that are left under a progress bar; finished ones survive Ctrl-C."""
    from fastcar_cli.cli.render import note, progress

    try:
        with progress(terminal, "decodes") as bar:
            task = bar.add_task("sweep", total=session.left(store))
            session.on_done = lambda cell: bar.advance(task)
            session.run(store)
    except KeyboardInterrupt as e:
        rest = session.left(store)
        note(terminal, f"{len(store.cells)} cells are saved; the same command does the {rest} decodes left", "stopped")
        raise typer.Exit(status(e)) from None


def _dry_run(request: Request, output: Path | None, as_json: bool, quiet: bool, notes: list[str]) -> None:
    from fastcar_cli.cli.render import Results, console, note
    from fastcar_cli.cli.sweep_render import show_plan
    from fastcar_cli.sweep.session import grid_document

    document = grid_document(request, output)
    document["notes"] = [*notes, *document["notes"]]
    if as_json:
        typer.echo(json.dumps(document, ensure_ascii=False))
    else:
        show_plan(Results(quiet), document)
        for text in document["notes"]:
            note(console(quiet), text)
