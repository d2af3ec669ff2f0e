"""Decodes and writes the videos of `fastcar generate`: one run frame by frame, a list in batches.

No file of a list depends on its batch, shard or engine.
"""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from fastcar_cli.checkpoints.memory_plan import memory_errors
from fastcar_cli.cli.inputs import Job, accepted, keys_of
from fastcar_cli.cli.render import Preview, Results, columns, lacking, note, plain, progress, reported, summary
from fastcar_cli.config.lists import shard_of
from fastcar_cli.errors import Key, RequestError, RunError, Text
from fastcar_cli.media import Writer, check_target, default_name, open_writer
from fastcar_cli.media.metrics import beside, compare
from fastcar_cli.media.writer import recipe_in
from fastcar_cli.pipeline.engines import open_engine
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.pipeline.videos import Frame, Video
from fastcar_cli.sweep.names import check_names, link_name
from fastcar_cli.system.files import file_text, make_folder, numbered, sha256_of, staging, write_whole
from fastcar_cli.system.plain_data import parse_json
from fastcar_cli.system.signals import status, uninterrupted

if TYPE_CHECKING:
    from fastcar_cli.cli.options import GenerateOptions
    from fastcar_cli.config.run_config import RunConfig
    from fastcar_cli.inputs.prompt import Prompt
    from fastcar_cli.models.checkpoint import Checkpoint

LESS: Text = ("to use less memory, reduce ", Key("samples"), " or decode fewer prompts at once")
BATCH = 8
"""Videos per batch of a list; a killed run loses one batch. In a batch `mini` takes 0.31 s per video, alone 0.49 s."""


@dataclass
class Written:
    """The file of a video, possibly incomplete; with `truth` also the predicted frames."""

    writer: Writer
    images: list[Any] = field(default_factory=list)

    def compared(self, job: Job, context: int) -> dict[str, Any]:
        """The report's key `truth`, errors against the input's frames; empty without --truth."""
        if job.excerpt is None or not self.images:
            return {}
        # An interrupt may come between the two appends of a frame.
        done = min(len(self.images), self.writer.frames)
        return {"truth": compare(np.stack(self.images[:done]), job.excerpt.frames[:done], context)}


def load(run: RunConfig, videos: int, terminal: Any, checkpoint: Checkpoint | None = None) -> VideoPipeline:
    """Load the pipeline, with a progress bar for a large checkpoint."""
    with progress(terminal, "bytes") as bar:
        on_load = partial(reported(bar), "loading")
        return VideoPipeline.from_config(run, videos=videos, on_load=on_load, checkpoint=checkpoint)


def write(
    pipe: VideoPipeline, jobs: list[Job], paths: list[Path], asked: GenerateOptions, new: bool, terminal: Any
) -> tuple[dict[int, Written], KeyboardInterrupt | None]:
    """Decode and write the videos. Returns the closed files with at least one frame, by index, and the interrupt that
    stopped the run early. With `new`, taken names get a number; without `force`, a different video is renamed.
    """
    stop: KeyboardInterrupt | None = None
    preview = Preview() if asked.preview and lacking(terminal) is None else None
    with ExitStack() as stack:
        written: dict[int, Written] = {}

        def of(video: int) -> Written:
            """The file of a video, opened at its first frame."""
            if video not in written:
                recipe = pipe.recipe(jobs[video].prompt, jobs[video].seed, pipe.prompt_ids(video))
                how: Any = {"fps": pipe.fps, "scale": pipe.config.video.scale, "recipe": recipe}
                with uninterrupted():
                    writer = open_writer(paths[video], **how, new=new, aside=not new and not asked.force)
                    written[video] = Written(writer)
                    stack.callback(writer.abort)
            return written[video]

        def add(frame: Frame) -> None:
            to, excerpt, image = of(frame.video), jobs[frame.video].excerpt, frame.image
            if asked.truth and excerpt is not None:
                to.images.append(image)
                image = beside(excerpt.frames[frame.index], image)
            to.writer.add(image)
            if preview is not None:
                preview.add(image)
            if to.writer.frames == pipe.frames:
                with uninterrupted():
                    to.writer.close()

        with progress(terminal, above=preview) as bar:
            task = bar.add_task("decoding", total=pipe.frames, start=False)

            def on_step(done: int, total: int) -> None:
                bar.start_task(task)
                bar.update(task, completed=done * pipe.frames / total)

            try:
                with memory_errors(LESS):
                    for frame in pipe.stream(*_inputs(jobs), on_step, on_begin=reported(bar, in_percent=True)):
                        add(frame)
            except KeyboardInterrupt as e:
                stop = e
        if preview is not None:
            terminal.print(preview)
        with uninterrupted():
            for video in written.values():
                video.writer.close()
    return {i: video for i, video in written.items() if video.writer.frames}, stop


def _inputs(jobs: Sequence[Job]) -> tuple[list[Prompt], list[int]]:
    return [job.prompt for job in jobs], [job.seed for job in jobs]


def make(pipe: VideoPipeline, jobs: list[Job], folder: Path | None, asked: GenerateOptions, terminal: Any) -> None:
    """Decode the videos of one run together, write them and their reports to `folder`, or one video to `-o`, and print
    each. Raises RequestError for an invalid prompt (without `keep_going`), typer.Exit if interrupted or incomplete.
    """
    taken = accepted(jobs, pipe, asked.keep_going, partial(note, terminal))
    new = folder is not None or asked.output is None
    if folder is not None or asked.output is None:
        paths = [default_name(job.name, job.seed, folder or Path(".")) for job in taken]
    else:
        paths = [Path(asked.output)]
        make_folder(paths[0].parent)
    for path in paths:
        check_target(path, pipe.fps)
    written, stop = write(pipe, taken, paths, asked, new, terminal)
    reports = []
    for i, video in written.items():
        writer = video.writer
        if writer.renamed is not None:
            note(terminal, f"renamed the existing {writer.path} to {writer.renamed}; --force overwrites it instead")
        report = pipe.report(i) | keys_of(taken[i], pipe.context) | video.compared(taken[i], pipe.context)
        # After an interrupt some of the videos may lack the newest frame.
        size = {"width": writer.width, "height": writer.height}
        report["video"] |= {"path": str(writer.path), "frames": writer.frames, **size}
        report["recipe"] = writer.recipe
        reports.append(report)
        if folder is not None or len(jobs) > 1:
            write_whole(writer.path.with_suffix(".json"), json.dumps(report, indent=1) + "\n", new=True)
    if reports and asked.trace_to is not None:
        from fastcar_fpga import save

        save(asked.trace_to, pipe.decisions())
    if asked.report_to is not None and (emulated := pipe.emulated()) is not None:
        from fastcar_fpga import write_csvs

        write_csvs(asked.report_to, emulated)
    if stop is not None:
        saved = f"{reports[0]['video']['frames']} finished frames are saved" if reports else "no frame was finished"
        note(terminal, saved, "stopped")
    if asked.as_json and reports:
        typer.echo(json.dumps({"videos": reports} if len(jobs) > 1 else reports[0]))
    results = Results(asked.quiet)
    for report in reports if not asked.as_json else []:
        results.print(summary(report, asked.verbose))
        results.fact("file", plain(report["video"]["path"]))
    _end(stop, len(taken) == len(jobs))


def _end(stop: KeyboardInterrupt | None, complete: bool) -> None:
    if stop is not None or not complete:
        raise typer.Exit(1 if stop is None else status(stop))


class BatchMaker:
    """Decodes batches of jobs, each with its index in the list; an `engines.TaskWorker`."""

    def __init__(self, config: RunConfig, pipe: VideoPipeline | None = None) -> None:
        self.base = pipe or VideoPipeline.from_config(config, videos=BATCH)
        self.on_step: Callable[[float], None] = lambda videos: None
        """Progress callback: receives the decoded part of the batch, in videos."""

    def again(self) -> Callable[[], BatchMaker]:
        """See `engines.TaskWorker`."""
        return partial(BatchMaker, self.base.config)

    def work(self, task: Sequence[tuple[int, Job]]) -> Iterator[tuple[int, Video]]:
        """The videos of a batch, with their indices in the list."""

        def on_step(done: int, total: int) -> None:
            self.on_step(len(task) * done / total)

        with memory_errors(LESS):
            for (index, _), video in zip(task, self.base.videos(*_inputs([j for _, j in task]), on_step), strict=True):
                yield index, video


def named(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """The jobs with file names, which depend only on the whole list; repeated names get a number, from 2."""
    names: dict[Path, Iterator[Path]] = {}
    paths = (default_name(job.name, job.seed, folder) for job in jobs)
    return [replace(job, path=next(names.setdefault(p, numbered(p)))) for job, p in zip(jobs, paths, strict=True)]


def make_list(pipe: VideoPipeline, jobs: Sequence[Job], folder: Path, asked: GenerateOptions, terminal: Any) -> None:
    """Make the missing videos of a list or its shard, and print the list. Raises RequestError if a different video has
    the name of one (without `force`), and typer.Exit as `make` does.
    """
    seeds = [*dict.fromkeys(job.seed for job in jobs)]
    if asked.names is not None:
        for text in check_names([job.name for job in jobs if job.seed == seeds[0]], len(seeds), pipe.fps):
            note(terminal, text)
    part = shard_of(named(jobs, folder), asked.shard)
    if not part:
        note(terminal, f"shard {asked.shard} has nothing to do: the list has only {len(jobs)} videos")
    taken = accepted(part, pipe, asked.keep_going, partial(note, terminal))
    reports = _there(taken, pipe, asked.force)
    there = len(reports)
    if there:
        note(terminal, f"{there} of {len(taken)} videos exist already; making the other {len(taken) - there}")
    left = [(index, job) for index, job in enumerate(taken) if index not in reports]
    stop: KeyboardInterrupt | None = None
    try:
        if left:
            _make_left(pipe, left, folder, reports, asked, terminal)
        else:
            with staging(folder):
                pass  # removes the hidden folder of a run that was killed at its very end
    except KeyboardInterrupt as e:
        stop = e
        rest = len(taken) - len(reports)
        note(terminal, f"{len(reports)} videos are finished; rerun the command for the other {rest}", "stopped")
    if asked.names is not None and reports:
        for index, report in reports.items():
            job = taken[index]
            link_name(Path(report["video"]["path"]), folder / "vbench", job.name, seeds.index(job.seed))
        note(terminal, f"links to the videos, named as VBench requires: {folder / 'vbench'}")
    listed = [reports[index] for index in sorted(reports)]
    if asked.as_json:
        typer.echo(json.dumps({"videos": listed, "there": there}))
    elif listed:
        title = f"{len(listed)} videos, {there} of them from earlier runs"
        table = columns(title, "file", "seed", "replayed", "tokens/s")
        for report in listed:
            replayed, speed = f"{report['replay']['ratio']:.1%}", f"{report['timing']['tokens_per_s']:.0f}"
            table.add_row(plain(report["video"]["path"]), str(report["seed"]), replayed, speed)
        # The width is unlimited, because paths must not be cut.
        Results(asked.quiet).print(table, width=10_000, crop=False)
    _end(stop, len(taken) == len(part))


def _there(jobs: Sequence[Job], pipe: VideoPipeline, force: bool) -> dict[int, dict[str, Any]]:
    """Reports of finished videos, by index. Raises RequestError if a file has a different recipe, unless `force`."""
    reports: dict[int, dict[str, Any]] = {}
    for index, job in enumerate(jobs):
        if job.path is None or not job.path.exists():
            continue
        ids = () if isinstance(job.prompt, str) else pipe.model.tokenizer.read(job.prompt).ids
        recipe = json.loads(json.dumps(pipe.recipe(job.prompt, job.seed, ids)))
        report = _report(job.path)
        if report is not None and report["recipe"] == recipe:
            if report["video"].get("sha256") == sha256_of(job.path):
                reports[index] = report
        elif not force and recipe_in(job.path) != recipe:
            hint = "name another folder with -o, or add --force to overwrite the file"
            raise RequestError(f"{job.path} already exists and was made with a different recipe", hint=hint)
    return reports


def _report(path: Path) -> dict[str, Any] | None:
    """The report beside a video, which is written last; None if damaged or missing."""
    try:
        report: dict[str, Any] = parse_json(file_text(path.with_suffix(".json")))
        report["video"]["path"] = str(path)
        # A report without the values that the list prints is damaged.
        float(report["replay"]["ratio"]), float(report["timing"]["tokens_per_s"]), report["seed"], report["recipe"]
        return report
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _make_left(
    pipe: VideoPipeline,
    left: Sequence[tuple[int, Job]],
    folder: Path,
    reports: dict[int, dict[str, Any]],
    asked: GenerateOptions,
    terminal: Any,
) -> None:
    """Decode and write the remaining videos; adds their reports to `reports`."""
    gc.freeze()
    maker, jobs, before, written = BatchMaker(pipe.config, pipe), dict(left), len(reports), 0
    with (
        open_engine(maker, asked.engine, asked.address, asked.workers) as (run, workers),
        staging(folder) as hidden,
        progress(terminal, "videos") as bar,
    ):
        task = bar.add_task("videos", total=len(left))
        maker.on_step = lambda videos: bar.update(task, completed=written + videos)
        size = min(pipe.batch_size(BATCH), -(-len(left) // workers))
        for index, video in run(left[i : i + size] for i in range(0, len(left), size)):
            job, scale = jobs[index], pipe.config.video.scale
            report, path = video.report | keys_of(job, pipe.context) | {"recipe": video.recipe}, job.path
            assert path is not None
            try:
                with open_writer(hidden / path.name, fps=pipe.fps, scale=scale, recipe=video.recipe) as writer:
                    for image in video.frames:
                        writer.add(image)
                report["video"] |= {"path": str(path), "width": writer.width, "height": writer.height}
                report["video"]["sha256"] = sha256_of(hidden / path.name)
                with uninterrupted():
                    os.replace(hidden / path.name, path)
                    write_whole(path.with_suffix(".json"), json.dumps(report, indent=1) + "\n")
                    reports[index] = report
            except (OSError, RunError) as e:
                why = e.strerror if isinstance(e, OSError) else str(e).rpartition(": ")[2]
                raise RunError(f"{path} could not be written: {why}", hint=f"finished videos are in {folder}") from None
            bar.update(task, completed=len(reports) - before)
