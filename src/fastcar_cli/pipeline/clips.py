"""The input files of a request, and the selection of their frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from fastcar_cli.config.keys import InputKeys
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.clip import Excerpt, Wanted, read_clip
from fastcar_cli.media.reader import frames_of
from fastcar_cli.models.network import Spec


@dataclass(frozen=True)
class ClipFiles:
    """Input files, not yet read; `actions` is one file for all inputs or one per input, `use` selects frames."""

    files: tuple[Path, ...] = ()
    actions: tuple[Path, ...] = ()
    use: InputKeys = field(default_factory=InputKeys)

    def __bool__(self) -> bool:
        return bool(self.files)

    def check(self) -> None:
        """Raise RequestError for missing files and contradictions, before a model is loaded."""
        if len(self.actions) not in (0, 1, len(self.files)):
            said = f"{len(self.actions)} files for {len(self.files)} inputs"
            raise RequestError(said, key="actions", hint="give one file for all inputs, or one per input")
        for option, files, kind in (("input", self.files, "file or folder"), ("actions", self.actions, "file")):
            for file in files:
                if not file.exists():
                    raise RequestError(f"there is no such {kind}", key=option, value=file)
        if self.use.goal and self.actions:
            both = Key("goal"), " and ", Key("actions"), " can't be used together"
            why = "leave one of them out, because ", Key("goal"), " puts the last frame before the first"
            raise RequestError(both, hint=why)

    def single(self) -> bool:
        """Whether every input is a single image. Raises RequestError for unreadable files."""
        return all(len([*islice(frames_of(file, self.use.key), 2)]) == 1 for file in self.files)

    def read(self, spec: Spec, model: str, frames: int, *, whole: bool = False) -> list[Excerpt]:
        """The model's input from each file, for videos of `frames` frames. Raises RequestError as `read_clip` does."""
        if spec.contexts and self.use.goal:
            raise RequestError(f"the model {model!r} takes no goal", key="goal", hint=("leave ", Key("goal"), " out"))
        height, width = spec.frame_spec.size
        wanted = Wanted(
            model=model,
            frames=frames,
            context=spec.frames_of(spec.layout.context),
            height=height,
            width=width,
            actions=spec.conditions,
            parts=spec.steering.parts,
            repeats=spec.layout.repeats,
            short=spec.layout.rolls,
            start=self.use.start,
            step=self.use.step or 1,
            goal=self.use.goal,
            whole=whole,
            last=bool(spec.contexts),
        )
        actions = self.actions if len(self.actions) == len(self.files) else (*self.actions, None)[:1] * len(self.files)
        return [read_clip(file, wanted, own, self.use.key) for file, own in zip(self.files, actions, strict=True)]
