"""Many videos of `fastcar generate`: finished files of the same recipe stay, the others are made.

Videos are made in batches, here or on a Ray cluster, and each is on disk before the next; no file depends on its batch,
shard or engine.
"""

from __future__ import annotations

import gc
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fastcar_cli.checkpoints.memory_plan import memory_errors
from fastcar_cli.cli.inputs import Job, accepted, keys_of
from fastcar_cli.cli.render import Results, columns, note, plain, progress
from fastcar_cli.cli.writing import LESS
from fastcar_cli.config.lists import shard_of
from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.media import default_name, open_writer, read_recipe
from fastcar_cli.pipeline.engines import open_engine
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.pipeline.videos import Video
from fastcar_cli.sweep.names import check_names, link_name
from fastcar_cli.system.files import file_text, sha256_of, staging, write_whole
from fastcar_cli.system.plain_data import parse_json
from fastcar_cli.system.signals import status, uninterrupted

if TYPE_CHECKING:
    from fastcar_cli.config.run_config import RunConfig

BATCH = 8
"""Videos decoded at once, of which a kill leaves none: one of `mini` takes 0.31 seconds of a core, alone 0.49."""


class BatchMaker:
    """Decodes batches of jobs, each with its place in the list; an `engines.TaskWorker`."""

    def __init__(self, config: RunConfig, pipe: VideoPipeline | None = None) -> None:
        self.base = pipe or VideoPipeline.from_config(config, videos=BATCH)
        self.on_step: Callable[[float], None] = lambda videos: None
        """Receives how many videos' worth of the batch is decoded."""

    def again(self) -> Callable[[], BatchMaker]:
        """As `engines.TaskWorker` describes."""
        return partial(BatchMaker, self.base.config)

    def work(self, task: Sequence[tuple[int, Job]]) -> Iterator[tuple[int, Video]]:
        """The videos of a batch, with their places in the list."""
        prompts, seeds = [job.prompt for _, job in task], [job.seed for _, job in task]

        def on_step(done: int, total: int) -> None:
            self.on_step(len(task) * done / total)

        with memory_errors(LESS):
            for (place, _), video in zip(task, self.base.videos(prompts, seeds, on_step), strict=True):
                yield place, video


def named(jobs: Sequence[Job], folder: Path) -> list[Job]:
    """The jobs with the names of their files, which depend on the whole list alone: the second of a name has a 2."""
    seen: Counter[Path] = Counter()
    renamed = []
    for job in jobs:
        path = default_name(job.name, job.seed, folder)
        seen[path] += 1
        again = path if seen[path] == 1 else path.with_name(f"{path.stem}-{seen[path]}{path.suffix}")
        renamed.append(replace(job, path=again))
    return renamed


def make(
    pipe: VideoPipeline,
    jobs: Sequence[Job],
    folder: Path,
    *,
    vbench: bool,
    shard: str | None,
    engine: str,
    address: str | None,
    workers: int | None,
    keep_going: bool,
    force: bool,
    as_json: bool,
    terminal: Any,
    results: Results,
) -> None:
    """Make the missing videos of a part of a list, and print the list.

    With `vbench` each video has VBench's name too, in a folder of its own.

    Raises RequestError where another video has their name (without `force`), and typer.Exit with the status of
    a stop, or 1 where prompts are left out.
    """
    seeds = [*dict.fromkeys(job.seed for job in jobs)]
    if vbench:
        for text in check_names([job.name for job in jobs if job.seed == seeds[0]], len(seeds), pipe.fps):
            note(terminal, text)
    part = shard_of(named(jobs, folder), shard)
    if not part:
        note(terminal, f"shard {shard} has nothing to do: the list has {len(jobs)} videos")
    taken = accepted(part, pipe, keep_going, partial(note, terminal)) if part else []
    reports = _there(taken, pipe, force)
    there = len(reports)
    if there:
        note(terminal, f"{there} of {len(taken)} videos are there already, {len(taken) - there} are made")
    left = [(place, job) for place, job in enumerate(taken) if place not in reports]
    stop: KeyboardInterrupt | None = None
    try:
        if left:
            _make(pipe, left, folder, reports, engine, address, workers, terminal)
        elif any(folder.glob(".fastcar-*")):
            with staging(folder):
                pass  # a run killed at its very end leaves its hidden folder
    except KeyboardInterrupt as e:
        stop = e
        rest = len(taken) - len(reports)
        note(terminal, f"{len(reports)} videos are finished; the same command makes the other {rest}", "stopped")
    if vbench and reports:
        for place, report in reports.items():
            job = taken[place]
            link_name(Path(report["video"]["path"]), folder / "vbench", job.name, seeds.index(job.seed))
        note(terminal, f"videos by VBench's names are in {folder / 'vbench'}")
    listed = [reports[place] for place in sorted(reports)]
    if as_json:
        typer.echo(json.dumps({"videos": listed, "there": there}))
    elif listed:
        table = columns(f"{len(listed)} videos, {there} of them there before", "file", "seed", "replayed", "tokens/s")
        for report in listed:
            replayed, speed = f"{report['replay']['ratio']:.1%}", f"{report['timing']['tokens_per_s']:.0f}"
            table.add_row(plain(report["video"]["path"]), str(report["seed"]), replayed, speed)
        # As wide as its paths, which nothing cuts.
        results.print(table, width=10_000, crop=False)
    if stop is not None:
        raise typer.Exit(status(stop))
    if len(taken) < len(part):
        raise typer.Exit(1)


def _there(jobs: Sequence[Job], pipe: VideoPipeline, force: bool) -> dict[int, dict[str, Any]]:
    """Reports of finished videos, by place. Raises RequestError for another video, unless `force`."""
    alike = pipe.recipe("", 0)
    reports: dict[int, dict[str, Any]] = {}
    for place, job in enumerate(jobs):
        if job.path is None or not job.path.exists():
            continue
        recipe = {**alike, "prompt": job.prompt, "seed": job.seed}
        if not isinstance(job.prompt, str):
            ids = pipe.model.tokenizer.read(job.prompt).ids
            recipe = pipe.recipe(job.prompt, job.seed, ids)
        recipe = json.loads(json.dumps(recipe))
        report, digest = _report(job.path)
        if report is not None and report["recipe"] == recipe:
            if digest == sha256_of(job.path):
                reports[place] = report
        elif not force and not _carries(job.path, recipe):
            raise RequestError(
                f"{job.path} is there already, made otherwise", hint="name another folder, or --force writes over it"
            )
    return reports


def _report(path: Path) -> tuple[dict[str, Any] | None, str | None]:
    """The report beside a video, written last, and the hash of the video; None of one that is damaged or not there."""
    try:
        report: dict[str, Any] = parse_json(file_text(path.with_suffix(".json")))
        report["video"]["path"] = str(path)
        # A report without what the list prints of it is a damaged one.
        float(report["replay"]["ratio"]), float(report["timing"]["tokens_per_s"]), report["seed"], report["recipe"]
        return report, report["video"].get("sha256")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None, None


def _carries(path: Path, recipe: dict[str, Any]) -> bool:
    try:
        return read_recipe(path) == recipe
    except RequestError:
        return False


def _make(
    pipe: VideoPipeline,
    left: Sequence[tuple[int, Job]],
    folder: Path,
    reports: dict[int, dict[str, Any]],
    engine: str,
    address: str | None,
    workers: int | None,
    terminal: Any,
) -> None:
    """Decode and write videos; the reports of those on disk join the others."""
    # As in `writing.write`.
    gc.freeze()
    maker, jobs, before = BatchMaker(pipe.config, pipe), dict(left), len(reports)
    with (
        open_engine(maker, engine, address, workers) as run,
        staging(folder) as hidden,
        progress(terminal, "videos") as bar,
    ):
        task = bar.add_task("videos", total=len(left))
        maker.on_step = lambda videos: bar.update(task, completed=written + videos)
        size = min(pipe.batch_size(BATCH), -(-len(left) // run.workers))
        written = 0
        for place, video in run(left[i : i + size] for i in range(0, len(left), size)):
            job, scale = jobs[place], pipe.config.video.scale
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
                    reports[place] = report
            except (OSError, RunError) as e:
                why = e.strerror if isinstance(e, OSError) else str(e).rpartition(": ")[2]
                raise RunError(f"{path} could not be written: {why}", hint="finished videos stay") from None
            written = len(reports) - before
            bar.update(task, completed=written)
