"""The inputs of `fastcar generate` (texts or clips), and its output names."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fastcar_cli.cli.flags import given, refuse
from fastcar_cli.config.run_config import shown
from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import make_folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastcar_cli.cli.options import GenerateOptions
    from fastcar_cli.config.run_config import RunConfig
    from fastcar_cli.inputs.clip import Excerpt
    from fastcar_cli.inputs.prompt import Prompt
    from fastcar_cli.models.network import Spec
    from fastcar_cli.pipeline.clips import ClipFiles
    from fastcar_cli.pipeline.pipeline import VideoPipeline


BUNDLED_EXAMPLES = {
    "mini": "a red ball rolling to the right on the grass",
    "table": "a red metal ball rolls to the right and hits a blue cube",
    "table-dense": "a red metal ball rolls to the right and hits a blue cube",
    "table-actions": "example.npz",
}
"""Examples of bundled models: a prompt, or a file in the model's folder with frames and actions."""

ONE_RUN = {"trace_to", "report_to", "truth", "preview", "verbose"}
"""Options that apply to a single run, not to a list that several runs may share."""

_FILE = re.compile(r"\.(?:mp4|mov|mkv|webm|avi|gif|a?png|jpe?g|webp|avif|heic|npz|npy|txt)$", re.I)


@dataclass(frozen=True)
class Job:
    """One video to make; `source` is the line of its prompt, `path` its file if known in advance."""

    prompt: Prompt
    seed: int
    excerpt: Excerpt | None = None
    source: str | None = None
    path: Path | None = None

    @property
    def name(self) -> str:
        """The text for the file name."""
        return str(self.prompt) if isinstance(self.prompt, str) else Path(str(self.prompt)).stem


@dataclass(frozen=True)
class Given:
    """The user's inputs, not yet read: texts with their lines, clips, or the prompt of an earlier video."""

    texts: list[tuple[str, str | None]]
    inputs: ClipFiles
    recipe: Prompt | None = None
    embedding: NDArray[np.float32] | None = None

    @classmethod
    def of(cls, asked: GenerateOptions, run: RunConfig, recipe: dict[str, Any] | None) -> Given:
        """The inputs that the options name; `recipe` belongs to an earlier video. Raises RequestError."""
        from fastcar_cli.checkpoints.open import folder_of
        from fastcar_cli.inputs.clip import read_embedding
        from fastcar_cli.pipeline.clips import ClipFiles
        from fastcar_cli.pipeline.recipe import prompt_of

        texts, files = _texts_of(asked.prompts or [], asked.prompts_file), asked.inputs or []
        if asked.example:
            if texts or files or recipe is not None:
                hint = "leave out the prompt, --input or --from"
                raise RequestError("--example can't be used with other inputs", hint=hint)
            if run.model not in BUNDLED_EXAMPLES:
                raise RequestError(f"--example: the model {run.model!r} has none", allowed=", ".join(BUNDLED_EXAMPLES))
            example = BUNDLED_EXAMPLES[run.model]
            texts, files = ([], [folder_of(run.model) / example]) if _FILE.search(example) else ([(example, None)], [])
        return cls(
            texts,
            ClipFiles(tuple(files), tuple((asked.continued is None and asked.actions) or ()), run.input),
            None if recipe is None or texts or files else prompt_of(recipe, str(asked.earlier)),
            None if asked.text_embedding is None else read_embedding(asked.text_embedding),
        )

    @property
    def count(self) -> int:
        """Number of inputs."""
        return len(self.inputs.files or self.texts) or (self.recipe is not None)

    def check(self, ctx: typer.Context, run: RunConfig, spec: Spec, *, needed: bool) -> None:
        """Raise RequestError for inputs of the wrong kind, and if an input is `needed` but none is given."""
        from fastcar_cli.checkpoints.names import BUNDLED

        if not self.inputs:
            continued = self.recipe is not None and given(ctx).get("continued")
            names = ("truth", "start", "step", "key", "goal", *(() if continued else ("actions",)))
            refuse(ctx, names, "without --input", "it needs --input FILE")
        self.inputs.check()
        model = run.model
        context = spec.frames_of(spec.continuing(run.generation.context).layout.context)
        frames = "a frame" if context == 1 else f"{context} frames"
        if context and (self.texts or isinstance(self.recipe, str)):
            first = self.texts[0][0] if self.texts else str(self.recipe)
            raise RequestError(
                f"the prompt {shown(first)!r}: the model {model!r} takes no text, but needs {frames} as input",
                hint="give --input with a video, an image or a folder of images instead",
            )
        text = 'fastcar generate "a red ball rolling to the right"'
        if not context and (self.inputs or (self.recipe is not None and not isinstance(self.recipe, str))):
            raise RequestError(f"--input: the model {model!r} takes text, not frames", hint=text)
        if self.count or not needed:
            return
        if not context:
            raise RequestError("no prompt given", hint=text)
        hint = "add --input clip.mp4" + (", or --example for a bundled clip" if model in BUNDLED else "")
        raise RequestError(f"no input given: the model {model!r} needs {frames} as input", hint=hint)

    def context(self, run: RunConfig, spec: Spec) -> RunConfig:
        """The run, with one context frame if every input is a single image. Raises as `check` does."""
        if not self.inputs or run.generation.context is not None or 1 not in spec.contexts:
            return run
        return run.changed({"generation.context": 1}) if self.inputs.single() else run

    def jobs(self, pipe: VideoPipeline, seeds: Sequence[int], *, truth: bool) -> list[Job]:
        """The videos, grouped by input. Raises RequestError for clips that do not fit; `truth` needs all frames."""
        if self.inputs:
            excerpts = self.inputs.read(pipe.spec, pipe.name, pipe.frames, whole=truth)
            clips = [replace(e.clip, frames=e.clip.frames[: pipe.context], text=self.embedding) for e in excerpts]
            return [Job(clip, seed, e) for clip, e in zip(clips, excerpts, strict=True) for seed in seeds]
        if (begun := self.recipe) is None:
            return [Job(text, seed, source=source) for text, source in self.texts for seed in seeds]
        if self.embedding is not None and not isinstance(begun, str):
            begun = replace(begun, text=self.embedding)
        return [Job(begun, seed) for seed in seeds]


def is_list(ctx: typer.Context, asked: GenerateOptions) -> bool:
    """Whether the options ask for a list of videos. Raises RequestError for options that contradict it."""
    flags = given(ctx)
    of_list = [flags[name] for name in ("seeds", "names", "shard", "engine") if name in flags]
    if not of_list:
        return False
    for name in ("seed", "samples") if asked.seeds is not None else ():
        if name in flags:
            raise RequestError(f"{flags[name]} and --seeds can't be used together", hint="leave one of them out")
    refuse(ctx, ONE_RUN, f"with {of_list[0]}", "leave one of them out")
    if asked.output is not None and _names_file(asked.output):
        raise RequestError(
            f"-o {asked.output}: is a single file, but {of_list[0]} makes a folder of videos",
            hint=f"name a folder, such as -o {Path(asked.output).stem}",
        )
    return True


def _names_file(output: str) -> bool:
    """Whether a name has a file's suffix and is not a folder."""
    return _FILE.search(output) is not None and not os.path.isdir(output)


def folder_for(asked: GenerateOptions, videos: int) -> Path | None:
    """Make and return the folder for the videos; None for a single file, and for the current folder without `-o`.

    `-o` names a folder for several videos, with a trailing slash, if that folder exists, and without suffix for a
    prompt file. Raises RequestError for one file for several videos, and for a name that can't be written.
    """
    from fastcar_cli.media import check_target

    output = asked.output
    if output is None:
        make_folder(Path("."))
        return None
    if output == "-":
        raise RequestError("-o -: fastcar can't write videos to standard output", hint="give -o the name of a file")
    path = Path(output)
    if videos > 1 and _names_file(output):
        raise RequestError(f"-o {output}: names one file for {videos} videos", hint=f"name a folder: -o {path.stem}")
    listed = asked.prompts_file is not None and not path.suffix
    if videos > 1 or output.endswith("/") or os.path.isdir(path) or listed:
        make_folder(path)
        return path
    check_target(path, force=asked.force)
    return None


def _texts_of(typed: list[str], file: Path | None) -> list[tuple[str, str | None]]:
    """Prompts of the arguments, then of the file, with their lines. Raises RequestError, also for names of files."""
    from fastcar_cli.inputs.prompt import prompts_in

    for text in typed:
        if not text.strip():
            raise RequestError("the prompt is empty", hint="describe the video in a few words")
        if _FILE.search(text) or (" " not in text and os.path.exists(text)):
            option = "--prompts" if text.endswith(".txt") else "--input"
            raise RequestError(f"the prompt {shown(text)!r} names a file", hint=f"did you mean {option} {text}?")
    lines, unit, _ = ({}, "line", 0) if file is None else prompts_in(file, f"--prompts {file}")
    return [(text, None) for text in typed] + [(lines[n], f"--prompts {file}, {unit} {n}") for n in lines]


def accepted(jobs: list[Job], pipe: VideoPipeline, keep_going: bool, say: Callable[[str], None]) -> list[Job]:
    """The jobs with valid prompts. Raises RequestError for an invalid one; with `keep_going`, if all are invalid."""
    from fastcar_cli.inputs.prompt import first_of

    words = {job.prompt for job in jobs if isinstance(job.prompt, str) and job.source is None}
    bare = len(words) > 1 and not any(" " in word for word in words)
    good, refused, notices = list[Job](), dict[str, RequestError](), dict[str, None]()
    if bare:
        notices[f"each of the {len(words)} words is a prompt and makes a video: did you forget the quotes?"] = None
    for job in jobs:
        if job.excerpt is not None and not pipe.spec.contexts:
            height, width = job.excerpt.source_size
            if abs(height * pipe.width / (width * pipe.height) - 1) > 0.02:
                notices[f"{job.prompt}: {width}x{height} frames are stretched to {pipe.width}x{pipe.height}"] = None
        try:
            notices |= dict.fromkeys(pipe.notices([job.prompt]))
            good.append(job)
        except RequestError as e:
            e.where = job.source or e.where
            if bare:
                e.way_out = "did you forget the quotes?"
            if not keep_going:
                raise
            refused[f"left out: {e}"] = e
    for note in (*first_of([*notices]), *refused):
        say(note)
    if refused and not good:
        raise [*refused.values()][-1]
    return good


def keys_of(job: Job, context: int) -> dict[str, Any]:
    """The report's keys about a video's input; a recipe stores neither its size nor its frame indices."""
    if isinstance(job.prompt, str):
        return {}
    keys: dict[str, Any] = {"name": str(job.prompt), "context": context, "frames": None, "height": None, "width": None}
    if job.excerpt is not None:
        keys["frames"] = list(job.excerpt.indices)
        keys["height"], keys["width"] = job.excerpt.source_size
    return {"input": keys}
