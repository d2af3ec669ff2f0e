"""`fastcar generate`: prompts to videos."""

from __future__ import annotations

import json
import secrets
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastcar_cli.cli.flags import given, prompts_of, refuse
from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.extras import pyplot
from fastcar_cli.files import write_whole
from fastcar_cli.signals import status, uninterrupted

if TYPE_CHECKING:
    from fastcar_cli.config import RunConfig
    from fastcar_cli.pipeline import TextToVideo
    from fastcar_cli.video import Writer


def generate(
    ctx: typer.Context,
    prompts: Annotated[list[str] | None, typer.Argument(metavar="[PROMPT]...", help="What the video shows.")] = None,
    prompts_file: Annotated[Path | None, typer.Option("--prompts", help="File with one prompt a line.")] = None,
    from_: Annotated[
        Path | None, typer.Option("--from", help="Make the video of an earlier file again, from its recipe.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="File (.mp4, .gif), or a name without suffix: a folder of PNGs; "
            "with several videos the folder they go to.",
        ),
    ] = None,
    tau: Annotated[
        str | None, typer.Option(help="Replay threshold: a number, 'off', or a comma-separated list, one a layer.")
    ] = None,
    replay_ratio: Annotated[
        float | None, typer.Option(help="Replay ratio to keep by moving the threshold, such as 0.8; instead of --tau.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(help="What the threshold is compared with: tas, input, attention, query, random or oracle."),
    ] = None,
    tas: Annotated[
        str | None, typer.Option(help="Definition of the temporal attention score: attention or released.")
    ] = None,
    gate: Annotated[str | None, typer.Option(help="Who decides on a replay: row or pair.")] = None,
    max_replay_age: Annotated[int | None, typer.Option(help="Times in a row one value may be replayed.")] = None,
    model: Annotated[str | None, typer.Option(help="mini, vila-u-7b[@REVISION], or a model folder.")] = None,
    frames: Annotated[int | None, typer.Option(help="Frames of the video.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed; drawn and printed where none is given.")] = None,
    samples: Annotated[int | None, typer.Option(help="Videos a prompt, with seeds counted up.")] = None,
    cfg: Annotated[float | None, typer.Option(help="Guidance scale; 1 is none.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Temperature; 0 takes the likeliest code.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Codes kept; 0 keeps all.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Probability mass kept.")] = None,
    window: Annotated[str | None, typer.Option(help="Last tokens attended to, or 'off'.")] = None,
    sinks: Annotated[int | None, typer.Option(help="First prompt tokens kept beside a window.")] = None,
    kv_dtype: Annotated[str | None, typer.Option(help="Keys and values: auto (as the model), or int8.")] = None,
    backend: Annotated[str | None, typer.Option(help="Who executes the MLPs: torch or fpga-sim.")] = None,
    fpga: Annotated[str | None, typer.Option(help="Accelerator of fpga-sim: a preset or a YAML file.")] = None,
    report_to: Annotated[
        Path | None, typer.Option("--report", help="Folder for CSVs, timeline and charts of the emulated accelerator.")
    ] = None,
    trace_to: Annotated[
        Path | None, typer.Option("--trace", help="File (.npz) for the replay decisions, for `fastcar fpga`.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="auto, float32, bfloat16, float16 or int8; a converted model has its own.")
    ] = None,
    kernels: Annotated[
        str | None,
        typer.Option(
            help="Who runs a decode step: torch, native (CPU kernels) or graph (CUDA); auto takes the fastest."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; default all, of the native kernels two for the bundled model.")
    ] = None,
    fps: Annotated[int | None, typer.Option(help="Frames a second of the file.")] = None,
    scale: Annotated[int | None, typer.Option(help="Enlargement of the written frames, 1 to 16.")] = None,
    config: Annotated[str | None, typer.Option(help="Preset name or YAML file.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override one key: section.key=value.")] = None,
    dry: Annotated[
        bool, typer.Option("--dry-run", help="Tell files, memory and the replay ceiling; load nothing.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Replay by layer and frame.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Make videos from prompts."""
    from fastcar_cli.config import load_config
    from fastcar_cli.video import check_target, default_name, read_recipe

    if verbose and (quiet or as_json):
        refuse(ctx, ("verbose",), f"with {'--quiet' if quiet else '--json'}", "leave one of them out")
    if tau is not None and replay_ratio is not None:
        raise RequestError(
            f"--tau {tau} and --replay-ratio {replay_ratio:g} exclude each other", hint="a ratio is kept by moving tau"
        )
    flags: dict[str, Any] = {
        "model": model,
        "generation.frames": frames,
        "generation.seed": seed,
        "generation.samples": samples,
        "sampling.cfg": cfg,
        "sampling.temperature": temperature,
        "sampling.top_k": top_k,
        "sampling.top_p": top_p,
        "replay.tau": tau,
        "replay.ratio": replay_ratio,
        "replay.score": score,
        "replay.tas": tas,
        "replay.gate": gate,
        "replay.max_age": max_replay_age,
        "attention.window": None if window is None else _window(window),
        "attention.sinks": sinks,
        "attention.kv_dtype": kv_dtype,
        "backend.name": backend,
        "backend.preset": fpga,
        "runtime.device": device,
        "runtime.dtype": dtype,
        "runtime.kernels": kernels,
        "runtime.threads": threads,
        "video.fps": fps,
        "video.scale": scale,
    }
    flags = {k: v for k, v in flags.items() if v is not None}
    texts = _prompts(prompts or [], prompts_file)
    notes: list[str] = []
    recipe: dict[str, Any] | None = None
    if from_ is not None:
        if config is not None:
            raise RequestError("--from and --config exclude each other", hint="change single keys with flags or --set")
        from fastcar_cli.recipe import same_weights, settings_of

        recipe = read_recipe(from_)
        taken, told = settings_of(recipe, str(from_), [*flags, *(o.partition("=")[0].strip() for o in set_ or [])])
        flags = {**taken, **flags}
        texts = texts or [recipe["prompt"]]
        notes += told
    run = load_config(config, set_ or [], flags)
    if run.backend.name != "fpga-sim":
        refuse(ctx, ("fpga", "report_to"), f"with the backend {run.backend.name}", "it needs --backend fpga-sim")
    notes += _without_effect(ctx, run)
    if report_to is not None:
        pyplot("--report")
    if trace_to is not None and (trace_to.suffix != ".npz" or not trace_to.parent.is_dir()):
        raise RequestError(f"--trace {trace_to}: needs a file name that ends in .npz, in a folder that exists")
    if not texts:
        raise RequestError("no prompt given", hint='fastcar generate "a red ball rolling to the right"')
    if run.generation.seed is not None and run.generation.seed + run.generation.samples > 2**63:
        raise RequestError(f"--seed {run.generation.seed} with {run.generation.samples} samples", hint="a smaller seed")
    first = run.generation.seed if run.generation.seed is not None else secrets.randbelow(2**31)
    jobs = [(text, first + k) for text in texts for k in range(run.generation.samples)]
    many = len(jobs) > 1
    if dry:
        from fastcar_cli.cli.dry_run import dry_run

        dry_run(run, len(jobs), as_json, quiet)
        return
    if not many and output is not None:
        check_target(Path(output))
    if many and output is not None:
        _make_folder(Path(output))

    from fastcar_cli.cli.render import console, note, summary
    from fastcar_cli.models.hub import licence, repository_of

    terminal = console(quiet)
    pipe = _load(run, len(jobs), terminal)
    if (trace_to is not None or report_to is not None) and pipe.batch_size(len(jobs)) < len(jobs):
        option = "--trace" if trace_to is not None else "--report"
        raise RequestError(
            f"{option}: {len(jobs)} videos are decoded in batches of {pipe.batch_size(len(jobs))}, one file holds one",
            hint="fewer prompts or --samples at once",
        )
    repository = repository_of(run.model)
    if repository is not None:
        notes.append(licence(run.model, repository))
    if recipe is not None:
        notes += same_weights(recipe, str(from_), run.model)
    for text in notes + pipe.notices(texts):
        note(terminal, text)
    if many or output is None:
        folder = Path(output) if output is not None else Path(".")
        paths = [default_name(text, s, folder) for text, s in jobs]
    else:
        paths = [Path(output)]
    for path in paths:
        check_target(path)
    written, stop = _write(pipe, run, jobs, paths, many or output is None, terminal)
    reports = []
    for i, writer in written.items():
        report = pipe.report(i)
        # A stop may fall between the videos of a frame that is decoded.
        report["video"] |= {"path": str(writer.path), "frames": writer.frames}
        reports.append(report)
        if many:
            write_whole(writer.path.with_suffix(".json"), json.dumps(report, indent=1) + "\n")
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
        typer.echo(json.dumps({"videos": reports} if many else reports[0]))
    for report in reports if not as_json else []:
        terminal.print(summary(report, verbose))
    if stop is not None:
        raise typer.Exit(status(stop))


def _load(run: RunConfig, videos: int, terminal: Any) -> TextToVideo:
    """The pipeline, with a bar while a large checkpoint is read."""
    from fastcar_cli.cli.render import loading
    from fastcar_cli.pipeline import TextToVideo

    with loading(terminal) as bar:
        task = None

        def on_load(done: int, total: int) -> None:
            nonlocal task
            task = bar.add_task("loading", total=total) if task is None else task
            bar.update(task, completed=min(done, total))

        return TextToVideo.from_config(run, videos=videos, on_load=on_load)


def _write(
    pipe: TextToVideo, run: RunConfig, jobs: list[tuple[str, int]], paths: list[Path], new: bool, terminal: Any
) -> tuple[dict[int, Writer], KeyboardInterrupt | None]:
    """Decode and write every video: the closed writer of each that has a frame, and what stopped the run early.

    With `new` no file is replaced. Frames that were finished before a stop are kept.
    """
    from fastcar_cli.cli.render import progress
    from fastcar_cli.models.plan import out_of_memory
    from fastcar_cli.recipe import recipe_of
    from fastcar_cli.video import open_writer

    stop: KeyboardInterrupt | None = None
    with ExitStack() as stack:
        writers: dict[int, Writer] = {}

        def writer_of(video: int) -> Writer:
            """A file is opened with its first frame and closed with its last: batches come one after another."""
            if video not in writers:
                recipe = recipe_of(pipe, *jobs[video])
                with uninterrupted():
                    writers[video] = open_writer(
                        paths[video], fps=pipe.fps, scale=run.video.scale, recipe=recipe, new=new
                    )
                    stack.callback(writers[video].abort)
            return writers[video]

        with progress(terminal) as bar:
            task = bar.add_task("decoding", total=pipe.frames)

            def on_step(done: int, total: int) -> None:
                bar.update(task, completed=done * pipe.frames / total)

            try:
                for frame in pipe.stream([t for t, _ in jobs], [s for _, s in jobs], on_step):
                    writer = writer_of(frame.video)
                    writer.add(frame.image)
                    if writer.frames == pipe.frames:
                        with uninterrupted():
                            writer.close()
            except KeyboardInterrupt as e:
                stop = e
            except (MemoryError, RuntimeError) as e:
                if out_of_memory(e):
                    raise RunError(f"out of memory: {e}", hint="fewer `samples` or prompts at once need less") from None
                raise
        with uninterrupted():
            for writer in writers.values():
                writer.close()
    return {i: writer for i, writer in writers.items() if writer.frames}, stop


def _without_effect(ctx: typer.Context, run: RunConfig) -> list[str]:
    """What to tell of options that this run has no use for: a loop over thresholds may well hold a dense run."""
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


def _prompts(given: list[str], file: Path | None) -> list[str]:
    """Prompts of the arguments and of the file, in this order."""
    texts = [*given, *(prompts_of(file, "--prompts") if file is not None else ())]
    if any(not t.strip() for t in texts):
        raise RequestError("the prompt is empty", hint="describe the video in a few words")
    return texts


def _window(text: str) -> int | str:
    if text == "off":
        return text
    try:
        return int(text)
    except ValueError:
        raise RequestError(f"--window {text}: not a number", hint="allowed: a number of tokens, or 'off'") from None


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RequestError(f"-o {folder}: several videos need a folder, and it can't be made: {e.strerror}") from None


if sys.platform == "win32":  # pragma: no cover
    # Consoles there may not be UTF-8; prompts may hold anything.
    sys.stderr.reconfigure(errors="replace")  # type: ignore[union-attr]
