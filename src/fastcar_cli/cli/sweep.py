"""`fastcar sweep`: speed against quality over thresholds, prompts and seeds."""

from __future__ import annotations

import json
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
    Json,
    Overrides,
    Quiet,
    Shard,
    Workers,
    options,
)
from fastcar_cli.config import choices
from fastcar_cli.config.environment import notices, surroundings
from fastcar_cli.config.lists import parse_seeds, parse_shard
from fastcar_cli.config.run_config import load_config
from fastcar_cli.errors import RequestError
from fastcar_cli.pipeline.engines import check_engine
from fastcar_cli.system.signals import status

if TYPE_CHECKING:
    from fastcar_cli.sweep.session import Request, Session
    from fastcar_cli.sweep.store import Store

BACKENDS, DRAFTS = choices.values(choices.Backend), choices.values(choices.Draft)
GATES, SCORES = choices.values(choices.Gate), choices.values(choices.Score)


@options("model", "generation.frames")
def sweep(
    ctx: typer.Context,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="What the videos show.")] = None,
    prompts_file: Annotated[
        Path | None, typer.Option("--prompts", help="File with one prompt a line, or JSON: VBench's lists, or .jsonl.")
    ] = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option("--input", metavar="FILE", help="Clips to continue, instead of prompts; repeat it."),
    ] = None,
    actions: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Actions of the inputs, as of generate: one file for all, or one each."),
    ] = None,
    start: Annotated[
        int | None, typer.Option(help="First frame of an input that is used, counted from 0. [default: 0]")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Frames of an input from one to the next. [default: 1]")] = None,
    key: Annotated[str | None, typer.Option(help="Array of an .npz input that holds the frames.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Folder of the sweep.")] = None,
    tau: Annotated[
        str | None,
        typer.Option(
            help="Thresholds with commas between them: 'off', numbers (0 to -4 is useful), -inf. "
            "[default: the configuration's]",
        ),
    ] = None,
    replay_ratio: Annotated[
        str | None, typer.Option(help="Replay ratios with commas between them, kept by a controller; beside --tau.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            help=f"Scores with commas between them: {', '.join(SCORES)}. [default: the configuration's]",
            autocompletion=words(SCORES),
        ),
    ] = None,
    axis: Annotated[
        str | None,
        typer.Option(
            help="An axis with all its values: score (at ratios 0.2,0.5,0.8), gate, or draft (windows 4,8,16).",
            autocompletion=words(("score", "gate", "draft")),
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            help="Drafts with commas between them: off, frame, jacobi, auto. [default: off]",
            autocompletion=words(DRAFTS),
        ),
    ] = None,
    draft_window: Annotated[
        str | None, typer.Option(help="Windows of --draft with commas between them. [default: 16]")
    ] = None,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Keep what every token was scored and really changed: tokens.html.")
    ] = False,
    seeds: Annotated[str, typer.Option(help="Seeds: 0-3, 0,5,7 or both.")] = "0",
    window: Annotated[
        str | None,
        typer.Option(
            help="Windows with commas between them: 'off' and numbers of tokens. [default: the configuration's]"
        ),
    ] = None,
    gate: Annotated[
        str | None,
        typer.Option(
            help=f"Gates with commas between them: {', '.join(GATES)}. [default: the configuration's]",
            autocompletion=words(GATES),
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help=f"Backends with commas between them: {', '.join(BACKENDS)}. [default: the configuration's]",
            autocompletion=words(BACKENDS),
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(help="Timed decodes a cell; a search times what it tries once.", min=1, max=1000)
    ] = 3,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Of psnr, ssim, ms-ssim, temporal, fidelity, lpips. [default: all that need no weights]",
            autocompletion=words(("psnr", "ssim", "ms-ssim", "temporal", "fidelity", "lpips")),
        ),
    ] = None,
    lpips_weights: Annotated[
        Path | None, typer.Option(help="State dict of torchvision's AlexNet or VGG16, for lpips.")
    ] = None,
    find: Annotated[
        str | None,
        typer.Option(
            help="Search the threshold of a target, such as 'replay=0.8', 'ssim>=0.9', 'fidelity-drop<=0.02'."
        ),
    ] = None,
    names: Annotated[str | None, typer.Option(help="vbench: also name videos {prompt}-{index}.mp4.")] = None,
    shard: Shard = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    *,
    flags: Flags,
    config: ConfigFile = None,
    set_: Overrides = None,
    dry: Annotated[bool, typer.Option("--dry-run", help="Print grid and expected time; write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print results.json on standard output.")] = False,
    form: Format = "table",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Speed against quality over thresholds, prompts and seeds; started again it resumes.

    Every cell is compared with the dense video of its prompt and seed. `fastcar sweep vbench-score DIR` is another
    command: VBench's total from its result files.
    """
    from fastcar_cli.cli.render import Results, console, note
    from fastcar_cli.pipeline.clips import Inputs
    from fastcar_cli.sweep import grid as parse
    from fastcar_cli.sweep.metrics import parse_metrics
    from fastcar_cli.sweep.session import Request, Session
    from fastcar_cli.sweep.target import parse_target

    clips = Inputs(tuple(inputs or ()), tuple(actions or ()), start, step, key)
    clips.check()
    if not clips:
        refuse(ctx, ("actions", "start", "step", "key"), "without --input", "it needs --input with frames")
    elif prompts or prompts_file is not None:
        raise RequestError("--input and prompts exclude each other", hint="a model takes frames or a text")
    texts, notes = ([], []) if clips else parse.join_prompts(prompts or [], prompts_file)
    check_engine(engine, address, workers)
    one_of("--names", names, ("vbench",))
    if shard is not None:
        parse_shard(shard)
    if axis is not None:
        parse.parse_names("axis", axis, tuple(parse.AXES))
        if {"score": score, "gate": gate, "draft": draft}[axis] is not None:
            raise RequestError(f"--axis {axis} and --{axis} exclude each other", hint="leave one of them out")
    names_of = {"score": score, "gate": gate, "draft": draft}
    names_of |= {} if axis is None else {axis: ",".join(parse.AXES[axis])}
    if axis == "draft" and draft_window is None:
        draft_window = ",".join(map(str, parse.DRAFT_WINDOWS))
    if names_of["draft"] is None:
        refuse(ctx, ("draft_window",), "without --draft", "it needs --draft or --axis draft")
    ratios = None if replay_ratio is None else parse.parse_ratios(replay_ratio)
    if axis == "score" and tau is None and ratios is None:
        ratios = parse.RATIOS
    if output is None and not dry:
        raise RequestError("-o is missing: a sweep needs a folder", hint="-o DIR")
    below = surroundings()
    notes += notices(
        below, [*flags, *(["replay.tau"] if tau else []), *(o.partition("=")[0].strip() for o in set_ or [])]
    )
    request = Request(
        config=load_config(config, set_ or [], flags, below),
        prompts=tuple(texts),
        seeds=parse_seeds(seeds),
        taus=() if tau is None and ratios else None if tau is None else parse.parse_taus(tau),
        windows=None if window is None else parse.parse_windows(window),
        gates=None if names_of["gate"] is None else parse.parse_names("gate", names_of["gate"], GATES),
        backends=None if backend is None else parse.parse_names("backend", backend, BACKENDS),
        repeats=repeats,
        metrics=parse_metrics(metrics, lpips_weights),
        lpips=lpips_weights,
        vbench=names == "vbench",
        shard=shard,
        engine=engine,
        address=address,
        workers=workers,
        searches=find is not None,
        scores=None if names_of["score"] is None else parse.parse_names("score", names_of["score"], SCORES),
        ratios=ratios,
        drafts=None if names_of["draft"] is None else parse.parse_drafts(names_of["draft"], draft_window),
        tokens="all" if tokens else None,
        inputs=clips,
    )
    target = None if find is None else parse_target(find, request)
    terminal = console(quiet)
    if dry:
        _dry_run(request, output, as_json, quiet, notes)
        return
    session = Session.open(request)
    for text in [*notes, *session.notices]:
        note(terminal, text)
    assert output is not None
    with session.opened(output) as store:
        for text in store.damaged:
            note(terminal, text, "damaged cell, made again where the grid has it")
        results, written = _work(session, store, target, terminal)
    if as_json:
        typer.echo(json.dumps(results, ensure_ascii=False))
    else:
        from fastcar_cli.cli.sweep_render import show

        show(Results(quiet), terminal, results, output, written)
    if target is not None:
        target.verdict(results["find"])


def _work(session: Session, store: Store, target: Any, terminal: Any) -> tuple[dict[str, Any], list[str]]:
    """Decode what is left under a bar, and write the tables; Ctrl-C keeps what is finished."""
    from fastcar_cli.cli.render import note, progress
    from fastcar_cli.sweep.find import find_threshold

    try:
        with session.engine() as engine, progress(terminal, "decodes") as bar:
            task = bar.add_task("sweep", total=None)
            session.on_done = lambda cell: bar.advance(task)
            first = session if target is None else session.with_grid(repeats=1)
            bar.update(task, total=first.left(store))
            first.run(store, engine)
            search = None
            if target is not None:

                def on_evaluate(label: str, decodes: int) -> None:
                    bar.update(task, description=label, total=(bar.tasks[0].total or 0) + decodes)

                search = find_threshold(session, store, engine, target, on_evaluate)
    except KeyboardInterrupt as e:
        rest = session.left(store)
        note(terminal, f"{len(store.cells)} cells are kept; the same command does the {rest} decodes left", "stopped")
        raise typer.Exit(status(e)) from None
    results, written, notes = session.finish(store, search)
    for text in notes:
        note(terminal, text)
    return results, written


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


def vbench_score(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of VBench's *_eval_results.json.")],
    as_json: Json = False,
    form: Format = "table",
    debug: Debug = False,
) -> None:
    """VBench's published total from its result files, without vbench installed."""
    from fastcar_cli.cli.sweep_render import show_scores
    from fastcar_cli.sweep.vbench import score

    scores = score(folder)
    if as_json:
        typer.echo(json.dumps(scores))
    else:
        show_scores(scores)
