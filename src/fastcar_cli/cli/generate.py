"""`fastcar generate`: prompts, or frames, to videos."""

from __future__ import annotations

import json
import secrets
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastcar_cli.cli.flags import check_file, check_made, given, one_of, refuse
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
from fastcar_cli.cli.surroundings import notices, surroundings
from fastcar_cli.config import RunConfig, load_config
from fastcar_cli.engines import check_engine
from fastcar_cli.errors import RequestError
from fastcar_cli.extras import pyplot
from fastcar_cli.files import make_folder, write_whole
from fastcar_cli.lists import MOST, parse_seeds, shard_of
from fastcar_cli.signals import status

if TYPE_CHECKING:
    from fastcar_cli.prompt import Prompt


@options()
def generate(
    ctx: typer.Context,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="What the video shows.")] = None,
    prompts_file: Annotated[
        Path | None, typer.Option("--prompts", help="File with one prompt a line, or JSON: VBench's lists, or .jsonl.")
    ] = None,
    inputs: Annotated[
        list[Path] | None,
        typer.Option(
            "--input",
            metavar="FILE",
            help="Frames to continue: a video, GIF, picture, folder of pictures, or .npz; repeat it for more videos.",
        ),
    ] = None,
    actions: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Actions of the input, a row a frame: .npz, .npy, .csv, .tsv or .json. An .npz may bring its own.",
        ),
    ] = None,
    truth: Annotated[
        bool, typer.Option("--truth", help="Show the input's own frames beside the prediction, and how far it is off.")
    ] = False,
    start: Annotated[
        int | None, typer.Option(help="First frame of the input that is used, counted from 0. [default: 0]")
    ] = None,
    step: Annotated[int | None, typer.Option(help="Frames of the input from one to the next. [default: 1]")] = None,
    key: Annotated[str | None, typer.Option(help="Array of an .npz input that holds the frames.")] = None,
    goal: Annotated[
        bool, typer.Option("--goal", help="Put the clip's last frame first (goal-conditioned models).")
    ] = False,
    example: Annotated[
        bool, typer.Option("--example", help="Begin with the bundled model's own example: a prompt, or a clip.")
    ] = False,
    seeds: Annotated[
        str | None, typer.Option(help="Seeds of every prompt: 0-3, 0,5,7 or both. [default: one seed]")
    ] = None,
    names: Annotated[
        str | None, typer.Option(help="vbench: also name videos {prompt}-{index}.mp4, in the folder vbench.")
    ] = None,
    shard: Shard = None,
    engine: EngineName = "local",
    address: Address = None,
    workers: Workers = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Leave out prompts that are refused; status 1 at the end.")
    ] = False,
    text_embedding: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A text's vectors, up to 512 rows: .npy, .npz or .safetensors (models that read a text so).",
        ),
    ] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Make the video of an earlier file again, from its recipe.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="File (.mp4, .gif), or a name without suffix: a folder of PNGs. A folder that is there, or NAME/, "
            "gets a file a video, as does NAME with several videos or a file of prompts. "
            "[default: named after the prompt]",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Write over an existing file, or another video of that name.")
    ] = False,
    preview: Annotated[
        bool, typer.Option("--preview", help="Show frames in the terminal as they are decoded.")
    ] = False,
    *,
    flags: Flags,
    report_to: Annotated[
        Path | None, typer.Option("--report", help="Folder for CSVs, timeline and charts of the emulated accelerator.")
    ] = None,
    trace_to: Annotated[
        Path | None, typer.Option("--trace", help="File (.npz) for the replay decisions, for `fastcar fpga`.")
    ] = None,
    config: ConfigFile = None,
    set_: Overrides = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Print files, memory, time and replay ceiling; write nothing.")
    ] = False,
    as_json: Json = False,
    form: Format = "table",
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Replay by layer and frame.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make videos from prompts, or from frames that they continue."""
    from fastcar_cli.cli.beginnings import ONE_RUN, Given, accepted, example_of, is_list, keys_of, texts_of
    from fastcar_cli.video import check_target, default_name, folder_named, read_recipe
    from fastcar_cli.video.embedding import read_embedding
    from fastcar_cli.video.inputs import Inputs

    if quiet or (verbose and as_json):
        refuse(ctx, ("verbose", "preview"), f"with {'--quiet' if quiet else '--json'}", "leave one of them out")
    if "replay.tau" in flags and "replay.ratio" in flags:
        raise RequestError(
            f"--tau {flags['replay.tau']} and --replay-ratio {flags['replay.ratio']:g} exclude each other",
            hint="a ratio is kept by moving tau",
        )
    listed = is_list(ctx, seeds, output)
    check_engine(engine, address, workers)
    one_of("--names", names, ("vbench",))
    chosen = None if seeds is None else parse_seeds(seeds)
    shard_of((), shard)
    texts, sources = texts_of(prompts or [], prompts_file)
    begun: Prompt | None = None
    notes: list[str] = []
    recipe: dict[str, Any] | None = None
    if from_ is not None:
        if config is not None:
            raise RequestError("--from and --config exclude each other", hint="change single keys with flags or --set")
        from fastcar_cli.recipe import prompt_of, same_weights, settings_of

        recipe = read_recipe(from_)
        taken, left = settings_of(recipe, str(from_), [*flags, *(o.partition("=")[0].strip() for o in set_ or [])])
        flags = {**taken, **flags}
        begun = None if texts or inputs else prompt_of(recipe, str(from_))
        notes += left
    # A recipe decides alone, wherever the video is made again.
    below = surroundings() if from_ is None else []
    run = load_config(config, set_ or [], flags, below)
    notes += notices(below)
    if example:
        if texts or inputs or from_ is not None:
            raise RequestError(
                "--example is what the video begins with", hint="leave the prompt, --input or --from out"
            )
        texts, inputs = example_of(run.model)
    if run.backend.name != "fpga-sim":
        refuse(ctx, ("fpga", "report_to"), f"with the backend {run.backend.name}", "it needs --backend fpga-sim")
    notes += _without_effect(ctx, run)
    if report_to is not None:
        check_made("--report", report_to)
        pyplot("--report")
    if trace_to is not None and (trace_to.suffix != ".npz" or not trace_to.parent.is_dir() or trace_to.is_dir()):
        raise RequestError(f"--trace {trace_to}: needs a file name that ends in .npz, in a folder that exists")
    if run.runtime.keep_prefill is not None:
        check_file("--keep-prefill", Path(run.runtime.keep_prefill))
    if run.generation.seed is not None and run.generation.seed + run.generation.samples > 2**63:
        raise RequestError(f"--seed {run.generation.seed} with {run.generation.samples} samples", hint="a smaller seed")
    first = run.generation.seed
    file_of_several = len(texts) > 1 and prompts_file is not None
    listed |= file_of_several and first is not None and not given(ctx).keys() & ONE_RUN
    if first is None:
        # Machines that share a list have the same seeds, and so has the command that is repeated.
        first = 0 if listed else secrets.randbelow(2**31)
    each = chosen or range(first, first + run.generation.samples)
    clips = Inputs(tuple(inputs or ()), tuple(actions or ()), start, step, key, goal)
    begin = Given(texts, sources, clips, begun, None if text_embedding is None else read_embedding(text_embedding))
    begin.check(ctx, run, needed=not dry)
    run = begin.context(run)
    count = max(begin.count, 1) * len(each)
    if count > MOST:
        raise RequestError(f"a list of {count:,} videos", allowed=f"{MOST:,}")
    if dry:
        from fastcar_cli.cli.dry_run import dry_run
        from fastcar_cli.cli.many import BATCH

        at_once = min(count, BATCH) if listed else count
        dry_run(run, len(shard_of(range(count), shard)), at_once, as_json, quiet)
        return
    folder = None if output is None else folder_named(output, count, listed=prompts_file is not None)
    if output is not None and folder is None:
        check_target(Path(output), force=force)
    if folder is not None:
        make_folder(folder)

    from fastcar_cli.cli import many, writing
    from fastcar_cli.cli.preview import Preview, lacking
    from fastcar_cli.cli.render import Results, console, note, plain, summary
    from fastcar_cli.models.loading.hub import licence, repository_of

    terminal = console(quiet)
    if preview and (why := lacking(terminal)) is not None:
        preview = False
        notes.append(f"no preview: {why}")
    pipe = writing.load(run, min(count, many.BATCH) if listed else count, terminal)
    jobs = begin.jobs(pipe, each, truth=truth)
    if (trace_to is not None or report_to is not None) and pipe.batch_size(count) < count:
        option = "--trace" if trace_to is not None else "--report"
        raise RequestError(
            f"{option}: {count} videos are decoded in batches of {pipe.batch_size(count)}, one file holds one",
            hint="fewer prompts or --samples at once",
        )
    rule = pipe.settings.rule
    if run.replay.gate == "pair" and not rule.pairs and (rule.target is not None or not rule.tau.off):
        notes.append("--gate pair has no effect, because guidance 1 makes no pairs")
    repository = repository_of(run.model)
    if repository is not None:
        notes.append(licence(run.model, repository))
    if recipe is not None:
        notes += same_weights(recipe, str(from_), run.model)
    for text in notes:
        note(terminal, text)
    if listed and (output is None or folder is not None):
        many.make(
            pipe, jobs, folder or Path("."), vbench=names is not None, shard=shard, engine=engine, address=address,
            workers=workers, keep_going=keep_going, force=force, as_json=as_json, terminal=terminal,
            results=Results(quiet),
        )  # fmt: skip
        return
    wanted, jobs = len(jobs), accepted(jobs, pipe, keep_going, partial(note, terminal))
    if output is None or folder is not None:
        paths = [default_name(job.name, job.seed, folder or Path(".")) for job in jobs]
    else:
        paths = [Path(output)]
        make_folder(paths[0].parent)
    for path in paths:
        check_target(path, pipe.fps)
    new = output is None or folder is not None
    written, stop = writing.write(
        pipe, run, jobs, paths, new=new, aside=not new and not force, truth=truth, terminal=terminal,
        preview=Preview() if preview else None,
    )  # fmt: skip
    reports = []
    for i, video in written.items():
        writer, job = video.writer, jobs[i]
        if writer.kept is not None:
            note(terminal, f"the {writer.path} that was there is now {writer.kept}; --force writes over it")
        report = pipe.report(i) | keys_of(job, pipe.context) | writing.compared(video, job, pipe.context)
        # A stop may fall between the videos of a frame that is decoded.
        size = {"width": writer.width, "height": writer.height}
        report["video"] |= {"path": str(writer.path), "frames": writer.frames, **size}
        report["recipe"] = writer.recipe
        reports.append(report)
        if folder is not None or count > 1:
            write_whole(writer.path.with_suffix(".json"), json.dumps(report, indent=1) + "\n", new=True)
    if reports and trace_to is not None:
        from fastcar_cli.backends.fpga.decisions import save

        save(trace_to, pipe.decisions())
    emulated = pipe.emulated() if report_to is not None else None
    if emulated is not None and report_to is not None:
        from fastcar_cli.backends.fpga.report import write_report

        write_report(report_to, emulated)
    if stop is not None:
        kept = f"kept {reports[0]['video']['frames']} finished frames" if reports else "no frame was finished"
        note(terminal, kept, "stopped")
    if as_json and reports:
        typer.echo(json.dumps({"videos": reports} if count > 1 else reports[0]))
    out = Results(quiet)
    for report in reports if not as_json else []:
        out.print(summary(report, verbose))
        out.fact("file", plain(report["video"]["path"]))
    if stop is not None:
        raise typer.Exit(status(stop))
    if len(jobs) < wanted:
        raise typer.Exit(1)


def _without_effect(ctx: typer.Context, run: RunConfig) -> list[str]:
    """What to say of options that this run has no use for: a loop over thresholds may well hold a dense run."""
    dense = run.replay.tau.off and run.replay.ratio is None
    idle = {
        "nothing replays: it takes --tau or --replay-ratio": (dense, ("score", "tas", "gate", "max_replay_age")),
        f"the score is {run.replay.score}": (not dense and run.replay.score != "tas", ("tas",)),
        "everything is attended to: it takes --window": (run.attention.window is None, ("sinks",)),
        "temperature 0 takes the likeliest code": (run.sampling.temperature == 0, ("top_k", "top_p")),
    }
    flags = given(ctx)
    return [
        f"{flags[name]} has no effect, because {why}"
        for why, (holds, names) in idle.items()
        for name in names
        if holds and name in flags
    ]
