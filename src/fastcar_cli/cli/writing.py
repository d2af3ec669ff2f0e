"""The videos of `fastcar generate` decoded and written, frame by frame."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer

from fastcar_cli.checkpoints.memory_plan import memory_errors
from fastcar_cli.cli.inputs import Job, accepted, keys_of
from fastcar_cli.cli.render import Results, loading, note, plain, progress, summary
from fastcar_cli.errors import Key, Text
from fastcar_cli.media import Writer, check_target, default_name, open_writer
from fastcar_cli.media.metrics import beside, compare
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.pipeline.videos import Frame
from fastcar_cli.system.files import make_folder, write_whole
from fastcar_cli.system.signals import status, uninterrupted

if TYPE_CHECKING:
    from fastcar_cli.cli.preview import Preview
    from fastcar_cli.config.run_config import RunConfig
    from fastcar_cli.models.checkpoint import Checkpoint

LESS: Text = ("fewer ", Key("samples"), " or prompts at once need less")


@dataclass
class Written:
    """A video that was written, at least in part, and with `truth` its frames as the model drew them."""

    writer: Writer
    images: list[Any] = field(default_factory=list)


def load(run: RunConfig, videos: int, terminal: Any, checkpoint: Checkpoint | None = None) -> VideoPipeline:
    """The pipeline, with a bar while a large checkpoint is read."""
    with loading(terminal) as bar:
        task = None

        def on_load(done: int, total: int) -> None:
            nonlocal task
            task = bar.add_task("loading", total=total) if task is None else task
            bar.update(task, completed=min(done, total))

        return VideoPipeline.from_config(run, videos=videos, on_load=on_load, checkpoint=checkpoint)


def write(
    pipe: VideoPipeline,
    jobs: list[Job],
    paths: list[Path],
    *,
    new: bool,
    aside: bool,
    truth: bool,
    terminal: Any,
    preview: Preview | None = None,
) -> tuple[dict[int, Written], KeyboardInterrupt | None]:
    """Decode and write every video: those that have a frame, closed, and what stopped the run early.

    With `new` no file is replaced, with `aside` no other video; with `truth` the frames of a job's input are shown
    beside its own. A stop leaves the frames finished so far; `preview` gets those that are written.
    """
    stop: KeyboardInterrupt | None = None
    with ExitStack() as stack:
        written: dict[int, Written] = {}

        def of(video: int) -> Written:
            """A file is opened with its first frame and closed with its last: batches come one after another."""
            if video not in written:
                job = jobs[video]
                recipe = pipe.recipe(job.prompt, job.seed, pipe.prompt_ids(video))
                with uninterrupted():
                    writer = open_writer(
                        paths[video], fps=pipe.fps, scale=pipe.config.video.scale, recipe=recipe, new=new, aside=aside
                    )
                    written[video] = Written(writer)
                    stack.callback(writer.abort)
            return written[video]

        def add(frame: Frame) -> None:
            to, excerpt = of(frame.video), jobs[frame.video].excerpt
            image = frame.image
            if truth and excerpt is not None:
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

            parts: dict[str, Any] = {}

            def on_begin(part: str, done: int, total: int) -> None:
                if part not in parts:
                    parts[part] = bar.add_task(part, total=100, things="%")
                bar.update(parts[part], completed=100 * done // total)
                if done >= total:
                    bar.remove_task(parts.pop(part))

            prompts, seeds = [j.prompt for j in jobs], [j.seed for j in jobs]
            try:
                with memory_errors(LESS):
                    for _ in pipe.videos(prompts, seeds, on_step, on_begin, on_frame=add):
                        pass
            except KeyboardInterrupt as e:
                stop = e
        if preview is not None:
            terminal.print(preview)
        with uninterrupted():
            for video in written.values():
                video.writer.close()
    return {i: video for i, video in written.items() if video.writer.frames}, stop


def make(
    pipe: VideoPipeline,
    jobs: list[Job],
    output: str | None,
    folder: Path | None,
    *,
    keep_going: bool,
    force: bool,
    truth: bool,
    preview: Preview | None,
    trace_to: Path | None,
    report_to: Path | None,
    as_json: bool,
    verbose: bool,
    terminal: Any,
    results: Results,
) -> None:
    """Make the videos of one run, side by side, and print what there is to say of each.

    The file is `output`; without one each is named after its prompt, in `folder`, with its report beside it, or here.
    Raises RequestError for a prompt that the model refuses (without `keep_going`), and typer.Exit with the status of a
    stop, or 1 where prompts are left out.
    """
    taken = accepted(jobs, pipe, keep_going, partial(note, terminal))
    if output is None:
        paths = [default_name(job.name, job.seed, folder or Path(".")) for job in taken]
    else:
        paths = [Path(output)]
        make_folder(paths[0].parent)
    for path in paths:
        check_target(path, pipe.fps)
    new, sidecars = output is None, folder is not None or len(jobs) > 1
    written, stop = write(
        pipe, taken, paths, new=new, aside=not new and not force, truth=truth, terminal=terminal, preview=preview
    )
    reports = []
    for i, video in written.items():
        writer = video.writer
        if writer.renamed is not None:
            note(terminal, f"the {writer.path} that was there is now {writer.renamed}; --force overwrites it")
        report = pipe.report(i) | keys_of(taken[i], pipe.context) | compared(video, taken[i], pipe.context)
        # A stop may fall between the videos of a frame that is decoded.
        size = {"width": writer.width, "height": writer.height}
        report["video"] |= {"path": str(writer.path), "frames": writer.frames, **size}
        report["recipe"] = writer.recipe
        reports.append(report)
        if sidecars:
            write_whole(writer.path.with_suffix(".json"), json.dumps(report, indent=1) + "\n", new=True)
    if reports and trace_to is not None:
        from fastcar_fpga import save

        save(trace_to, pipe.decisions())
    if report_to is not None and (emulated := pipe.emulated()) is not None:
        from fastcar_fpga import write_csvs

        write_csvs(report_to, emulated)
    if stop is not None:
        saved = f"{reports[0]['video']['frames']} finished frames are saved" if reports else "no frame was finished"
        note(terminal, saved, "stopped")
    if as_json and reports:
        typer.echo(json.dumps({"videos": reports} if len(jobs) > 1 else reports[0]))
    for report in reports if not as_json else []:
        results.print(summary(report, verbose))
        results.fact("file", plain(report["video"]["path"]))
    if stop is not None:
        raise typer.Exit(status(stop))
    if len(taken) < len(jobs):
        raise typer.Exit(1)


def compared(written: Written, job: Job, context: int) -> dict[str, Any]:
    """Keys of the report on how far a video is from its input's own frames; none where they are not requested."""
    if job.excerpt is None or not written.images:
        return {}
    # A stop may fall between the two appends of a frame.
    done = min(len(written.images), written.writer.frames)
    return {"truth": compare(np.stack(written.images[:done]), job.excerpt.frames[:done], context)}
