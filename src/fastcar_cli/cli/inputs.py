"""The inputs of `fastcar generate`: texts, or parts of the user's clips."""

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
from fastcar_cli.inputs.prompt_list import prompts_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from fastcar_cli.config.run_config import RunConfig
    from fastcar_cli.inputs.clip import Excerpt
    from fastcar_cli.inputs.prompt import Prompt
    from fastcar_cli.models.network import Spec
    from fastcar_cli.pipeline.clips import ClipFiles
    from fastcar_cli.pipeline.pipeline import VideoPipeline


_EXAMPLES = {
    "mini": "a red ball rolling to the right on the grass",
    "table": "a red metal ball rolls to the right and hits a blue cube",
    "table-dense": "a red metal ball rolls to the right and hits a blue cube",
    "mini-actions": "example.npz",
}
"""Examples of bundled models: a prompt, or a file of the model with frames and actions."""


def example_of(model: str) -> tuple[list[str], list[Path]]:
    """Texts and inputs of a bundled model's example. Raises RequestError for another model."""
    from fastcar_cli.checkpoints.open import folder_of

    if model not in _EXAMPLES:
        raise RequestError(f"--example: there is none for the model {model!r}", allowed=", ".join(_EXAMPLES))
    example = _EXAMPLES[model]
    return ([], [folder_of(model) / example]) if example.endswith(".npz") else ([example], [])


ONE_RUN = {"trace_to", "report_to", "truth", "preview", "verbose"}
"""Options that show one run, and nothing of a list that several runs may share."""


@dataclass(frozen=True)
class Job:
    """One video to make: its input, its seed, and the part of the user's clip that the input is from.

    `source` names the line of a prompt that is from a file, `path` the video's own file where that is known before.
    """

    prompt: Prompt
    seed: int
    excerpt: Excerpt | None = None
    source: str | None = None
    path: Path | None = None

    @property
    def name(self) -> str:
        """The text in its file name."""
        return str(self.prompt) if isinstance(self.prompt, str) else Path(str(self.prompt)).stem


@dataclass(frozen=True)
class Given:
    """The user's inputs, not yet read; `recipe` is the prompt of an earlier video, `embedding` a text as vectors.
    `sources` names the origin of each text.
    """

    texts: list[str]
    sources: list[str | None]
    inputs: ClipFiles
    recipe: Prompt | None = None
    embedding: NDArray[np.float32] | None = None

    @property
    def count(self) -> int:
        """Number of inputs."""
        return len(self.inputs.files or self.texts) or (self.recipe is not None)

    def check(self, ctx: typer.Context, run: RunConfig, spec: Spec, *, needed: bool) -> None:
        """Refuse, before anything is loaded, what can't be, and what the model does not take. Raises RequestError.

        `needed`: whether an input is required.
        """
        if not self.inputs:
            names = ("actions", "truth", "start", "step", "key", "goal")
            refuse(ctx, names, "without --input", "it needs --input with frames")
        self.inputs.check()
        self._check_kind(run, spec, needed)

    def context(self, run: RunConfig, spec: Spec) -> RunConfig:
        """The run, continuing from one picture where that is all that every input has. Raises as `check` does."""
        if not self.inputs or run.generation.context is not None or 1 not in spec.contexts:
            return run
        return run.changed({"generation.context": 1}) if self.inputs.single() else run

    def _check_kind(self, run: RunConfig, spec: Spec, needed: bool) -> None:
        from fastcar_cli.checkpoints.names import BUNDLED

        model = run.model
        context = spec.pictures(spec.continuing(run.generation.context).layout.context)
        if context and (self.texts or isinstance(self.recipe, str)):
            first = self.texts[0] if self.texts else str(self.recipe)
            raise RequestError(
                f"the prompt {shown(first)!r}: the model {model!r} takes no text, it continues from {_frames(context)}",
                hint="give --input with a video, a picture or a folder of pictures instead",
            )
        if not context and (self.inputs or (self.recipe is not None and not isinstance(self.recipe, str))):
            raise RequestError(
                f"--input: the model {model!r} takes a text, no frames",
                hint='fastcar generate "a red ball rolling to the right"',
            )
        if self.count or not needed:
            return
        if context:
            hint = "fastcar generate --input clip.mp4"
            if model in BUNDLED:
                hint = "--example brings one"
            raise RequestError(f"no input given: the model {model!r} continues from {_frames(context)}", hint=hint)
        raise RequestError("no prompt given", hint='fastcar generate "a red ball rolling to the right"')

    def jobs(self, pipe: VideoPipeline, seeds: Sequence[int], *, truth: bool) -> list[Job]:
        """The videos to make, those of one input side by side. Raises RequestError for what can't be read.

        With `truth` every frame of the videos has to be among the input's.
        """
        if self.inputs:
            excerpts = self.inputs.read(pipe.spec, pipe.name, pipe.frames, whole=truth)
            clips = [replace(e.clip, frames=e.clip.frames[: pipe.context], text=self.embedding) for e in excerpts]
            return [Job(clip, seed, e) for clip, e in zip(clips, excerpts, strict=True) for seed in seeds]
        prompts: list[Prompt] = [*self.texts] if self.recipe is None else [self.recipe]
        if self.embedding is not None:
            prompts = [p if isinstance(p, str) else replace(p, text=self.embedding) for p in prompts]
        sources = self.sources or [None] * len(prompts)
        return [Job(p, seed, source=source) for p, source in zip(prompts, sources, strict=True) for seed in seeds]


def is_list(ctx: typer.Context, seeds: str | None, output: str | None) -> bool:
    """Whether options of a list are given; refuses what contradicts them. Raises RequestError."""
    from fastcar_cli.cli.output import names_file

    flags = given(ctx)
    of_list = [flags[name] for name in ("seeds", "names", "shard", "engine") if name in flags]
    if not of_list:
        return False
    for name in ("seed", "samples") if seeds is not None else ():
        if name in flags:
            raise RequestError(f"{flags[name]} and --seeds exclude each other", hint="leave one of them out")
    refuse(ctx, ONE_RUN, f"with {of_list[0]}", "leave one of them out")
    if output is not None and names_file(output):
        raise RequestError(
            f"-o {output}: a single file, {of_list[0]} makes a folder of videos", hint=f"-o {Path(output).stem}"
        )
    return True


def texts_of(typed: list[str], file: Path | None) -> tuple[list[str], list[str | None]]:
    """Prompts of the arguments and of the file, in this order, and the lines of those that are from the file.

    Raises RequestError also for one that names a file.
    """
    for text in typed:
        if not text.strip():
            raise RequestError("the prompt is empty", hint="describe the video in a few words")
        if _FILE.search(text) or (" " not in text and os.path.exists(text)):
            option = "--prompts" if text.endswith(".txt") else "--input"
            raise RequestError(f"the prompt {shown(text)!r} names a file", hint=f"did you mean {option} {text}?")
    lines, unit, _ = ({}, "line", 0) if file is None else prompts_in(file, f"--prompts {file}")
    return [*typed, *lines.values()], [*[None] * len(typed), *(f"--prompts {file}, {unit} {n}" for n in lines)]


def accepted(jobs: list[Job], pipe: VideoPipeline, keep_going: bool, say: Callable[[str], None]) -> list[Job]:
    """The jobs whose prompt the model takes; what a user should know of them goes to `say`, each once.

    Without `keep_going` the first that it refuses ends the run. Raises RequestError, in the end if all are refused.
    """
    from fastcar_cli.inputs.prompt import first_of

    words = {job.prompt for job in jobs if isinstance(job.prompt, str) and job.source is None}
    bare = len(words) > 1 and not any(" " in word for word in words)
    good: list[Job] = []
    refused: dict[str, None] = {}
    notices: dict[str, None] = {}
    if bare:
        notices[f"{len(words)} prompts of one word each, a video for each: did you forget the quotes?"] = None
    error = RequestError("no prompt given")
    for job in jobs:
        try:
            notices |= dict.fromkeys(pipe.notices([job.prompt]))
            good.append(job)
        except RequestError as e:
            e.where = job.source or e.where
            if bare:
                e.way_out = "did you forget the quotes?"
            if not keep_going:
                raise
            error = e
            refused[f"left out: {e}"] = None
    for note in (*first_of([*notices]), *refused):
        say(note)
    if not good:
        raise error
    return good


_FILE = re.compile(r"\.(?:mp4|mov|mkv|webm|avi|gif|png|jpe?g|webp|avif|heic|npz|npy|txt)$", re.I)


def _frames(count: int) -> str:
    return "a frame" if count == 1 else f"{count} frames"


def keys_of(job: Job, context: int) -> dict[str, Any]:
    """Keys of the report on the input of a video; a recipe has neither its size nor which frames were used."""
    if isinstance(job.prompt, str):
        return {}
    keys: dict[str, Any] = {"name": str(job.prompt), "context": context, "frames": None, "height": None, "width": None}
    if job.excerpt is not None:
        keys["frames"] = list(job.excerpt.indices)
        keys["height"], keys["width"] = job.excerpt.source_size
    return {"input": keys}
