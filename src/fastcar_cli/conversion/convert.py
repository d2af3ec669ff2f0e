"""A conversion: shard after shard into a working folder, which gets its name when it is whole.

The working folder, FOLDER.partial, keeps every finished shard, so that the same conversion begun again goes on. What
it converts from and to is written there first; another source or format does not go on with it.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fastcar_cli.conversion.source import Source
from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.files import write_whole
from fastcar_cli.locks import locked
from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.converted import UNFINISHED, Converted, names_of, working_folder
from fastcar_cli.models.plan import gib
from fastcar_cli.models.quantised import WeightFormat
from fastcar_cli.models.video_model import ModelSpec
from fastcar_cli.models.weights import write_safetensors

_LOCK = ".lock"
_MARGIN = 2**20
"""Bytes of a folder that are no weights, at most."""


@dataclass(frozen=True)
class Result:
    """What a conversion made: bytes of the weights before and after, seconds, shards that were there already."""

    folder: Path
    before: int
    after: int
    seconds: float
    kept: int


class Conversion:
    """The conversion of a source into `folder`, in a format and with a specification that may be wider.

    Raises RequestError where the folder is there already or its parent is not.
    """

    def __init__(
        self, source: Source, folder: Path, form: WeightFormat, spec: ModelSpec, rounding: str = "least squares"
    ) -> None:
        check_folder(folder)
        self._source, self._folder, self._form = source, folder, form
        self._network = empty_network(spec)
        self._shapes = self._network.state_dict()
        parts: dict[str, list[str]] = {}
        for name in names_of(self._network):
            layer = re.match(r"llm\.layers\.\d+\.|depth\.|rqvae\.", name)
            parts.setdefault(layer[0] if layer else "", []).append(name)
        count = len(parts)
        self._shards = {f"model-{i:05d}-of-{count:05d}.safetensors": names for i, names in enumerate(parts.values(), 1)}
        described = Converted(
            form=form,
            spec=spec,
            defaults=source.defaults,
            text=source.text,
            source=source.told,
            rounding="none" if form.blocks is None else rounding,
            shards=tuple(self._shards),
        )
        self._document = json.dumps(described.to_dict(), indent=1) + "\n"

    def bytes_after(self, shards: list[str] | None = None) -> int:
        """Bytes of the weights of some shards, of all by default."""
        names = [n for shard, names in self._shards.items() if shards is None or shard in shards for n in names]
        return sum(self._form.bytes_of(name, self._shapes[name].shape) for name in names)

    def _bytes_before(self, names: list[str]) -> int:
        return sum(self._shapes[name].numel() for name in names) * self._source.stored.itemsize

    def run(self, on_progress: Callable[[int, int], None] | None = None) -> Result:
        """Convert, and tell `on_progress` of bytes read so far and in all.

        Raises RequestError for a working folder of another conversion or one that another process works in, RunError
        where the disk has no room or a file can't be written; finished shards stay.
        """
        began = time.perf_counter()
        working = working_folder(self._folder)
        self._begin(working)
        busy = RequestError(f"{working}: another process is at work there", hint="wait for it")
        with locked(working / _LOCK, busy):
            done = [shard for shard in self._shards if (working / shard).is_file()]
            left = [shard for shard in self._shards if shard not in done]
            self._check_room(left)
            total, read = sum(self._bytes_before(self._shards[shard]) for shard in left), 0
            for shard in left:
                tensors: dict[str, Tensor] = {}
                for name in self._shards[shard]:
                    tensors |= self._form.stored(name, self._source.read(name, self._shapes[name]))
                    read += self._bytes_before([name])
                    if on_progress is not None:
                        on_progress(read, total)
                self._write(working / shard, tensors)
            self._finish(working)
        every = [name for names in self._shards.values() for name in names]
        return Result(
            self._folder, self._bytes_before(every), self.bytes_after(), time.perf_counter() - began, len(done)
        )

    def _begin(self, working: Path) -> None:
        """Make the working folder, or see that it belongs to this conversion."""
        try:
            working.mkdir(exist_ok=True)
            begun = next((f for f in (working / UNFINISHED, working / "config.json") if f.is_file()), None)
            if begun is None and any(not f.name.startswith(".") for f in working.iterdir()):
                raise RequestError(f"{working} is there and is no conversion", hint="move it away")
            if begun is not None and begun.read_text(encoding="utf-8") != self._document:
                raise RequestError(
                    f"{working} is a conversion of another model or with other options that is not done",
                    hint="give the same ones, or delete it",
                )
        except OSError as e:
            raise _failed(working, e) from None
        if begun is None:
            write_whole(working / UNFINISHED, self._document)

    def _check_room(self, left: list[str]) -> None:
        needed, free = self.bytes_after(left) + _MARGIN, shutil.disk_usage(self._folder.parent).free
        if needed > free:
            raise RunError(
                f"{self._folder} needs {gib(needed)} more, {gib(free)} are free on its disk",
                hint="what is done is kept; the same command goes on",
            )

    def _write(self, file: Path, tensors: dict[str, Tensor]) -> None:
        hidden = file.with_name(f".{file.name}")
        try:
            write_safetensors(hidden, tensors)
            hidden.replace(file)
        except OSError as e:
            raise _failed(file, e) from None
        finally:
            with contextlib.suppress(OSError):
                hidden.unlink(missing_ok=True)

    def _finish(self, working: Path) -> None:
        """Add the tokenizer, turn what was begun into what is there, and give the folder its name."""
        try:
            for file in self._source.tokenizer:
                if file.is_file():
                    shutil.copyfile(file, working / file.name)
            # After a kill -9 in the middle of a shard.
            for hidden in working.glob(".*"):
                hidden.unlink()
            if (working / UNFINISHED).is_file():
                (working / UNFINISHED).replace(working / "config.json")
            check_folder(self._folder)
            working.rename(self._folder)
        except OSError as e:
            raise _failed(self._folder, e) from None


def check_folder(folder: Path) -> None:
    """Refuse a target that is there already, or that nothing can be made in: raises RequestError."""
    if folder.exists() or folder.is_symlink():
        raise RequestError(f"`output` {folder} is there already", hint="give another name, or move it away")
    if not folder.name or not folder.parent.is_dir():
        raise RequestError(f"`output` {folder}: there is no folder {folder.parent}")


def _failed(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path} could not be written: {error.strerror or error}",
        hint="what is done is kept; the same command goes on",
    )
