"""Converts a model shard by shard into a working folder, which is renamed when it is complete.

The working folder, FOLDER.partial, first gets a description of source and format; a conversion resumes only if it is
the same. Then follow the finished shards and, with calibration, the sampled tokens and their states after the last one.
"""

from __future__ import annotations

import gc
import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.checkpoints.converted import UNFINISHED, Converted, ConvertedCheckpoint, names_of, working_folder
from fastcar_cli.checkpoints.memory_plan import BASE, available_bytes, gib
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.convert.calibrate import Calibration, Walk, saved
from fastcar_cli.errors import Key, RequestError, RunError
from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.network import Spec
from fastcar_cli.models.vila_u.network import ModelSpec
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.system.files import file_text, locked, write_whole
from fastcar_cli.weights.formats import GROUP
from fastcar_cli.weights.tensors import PIECE, Weights, write_safetensors

_LOCK, _PLAIN, _CODES, _STATES = ".lock", ".plain", ".codes", ".states"
_MARGIN = 2**20  # upper bound for the bytes of a folder besides weights
_NARROW = 1024
"""Narrower depth transformers stay in int8 in int4 models: they are small and lose most accuracy (VILA-U's: 2560)."""
_RESUME = "rerun the command to resume; it does not repeat finished weights files"

Progress = Callable[[str, int, int], None]
"""Receives the current activity, the work done and the total: bytes, or videos during calibration."""


class Source:
    """A model by name or folder, read parameter by parameter. Raises RequestError for a converted one.

    `spec` has the public name that the model was opened by; `stored` is the dtype of its weights, `floats` that of
    parts that stay in floats; `identity` has its name, the digest of its weights, and its commit.
    """

    def __init__(self, model: str) -> None:
        checkpoint = open_model(model)
        if isinstance(checkpoint, ConvertedCheckpoint):
            done = checkpoint.description
            hint = f"convert the original model: fastcar convert {done.source.get('name')} -o FOLDER"
            raise RequestError(f"{model} is already converted to {done.form.name}", hint=hint)
        spec, name = checkpoint.spec, checkpoint.name
        self.checkpoint = checkpoint
        self.spec = spec if name is None else replace(spec, name=name.partition("@")[0])
        self.network = empty_network(spec)
        self._weights = Weights(checkpoint.components(self.network), self.network.state_dict(), finite=True)
        self.stored = self._weights.read("llm.norm.weight").dtype
        # Bundled models run in float32 on a CPU, others in their published dtype; no CPU runs float16.
        self.floats = torch.float32 if self.stored == torch.float32 else checkpoint.FLOATS
        weights = checkpoint.identity
        self.identity = {"name": name or spec.name, "weights": weights.weights, "commit": weights.commit}

    def read(self, name: str, like: Tensor) -> Tensor:
        """A parameter padded with zeros to the shape of `like`. Raises RequestError for NaN or infinite values."""
        tensor = self._weights.read(name)
        if tensor.shape == like.shape:
            return tensor
        more = [n for have, want in zip(tensor.shape, like.shape, strict=True) for n in (want - have, 0)]
        return F.pad(tensor, more[::-1])


def padded(spec: Spec, dtype: str) -> Spec:
    """The specification with an MLP width that int4 can divide into groups; padded units add silu(0) * 0 = 0."""
    if dtype != "int4":
        return spec
    width = -(-spec.decoder.mlp_width // GROUP) * GROUP
    return replace(spec, decoder=replace(spec.decoder, mlp_width=width))


def target_format(source: Source, spec: Spec, dtype: str, depth: str | None = None) -> WeightFormat:
    """The format of the converted weights; `depth`: that of an int4 model's depth transformer. A projector stays in
    floats if int4 can't divide its width into groups; raises RequestError if this holds for another part.
    """
    if dtype == "bfloat16":
        return WeightFormat(dtype, torch.bfloat16)
    if depth is None:
        depth = "int8" if isinstance(spec, ModelSpec) and spec.depth.width < _NARROW else dtype
    form = WeightFormat(dtype, source.floats, blocks=dtype, projector=dtype, depth=depth)
    network = empty_network(spec)
    stored = form.on(network)
    uneven = {
        name: parameter.shape[1]
        for name, parameter in network.named_parameters()
        if (row := stored.of(name)) is not None and parameter.shape[1] % (row.group or 1)
    }
    if any(name.startswith("projector.") for name in uneven):
        form = replace(form, projector=None)
    uneven = {name: width for name, width in uneven.items() if not name.startswith("projector.")}
    if uneven:
        name, width = next(iter(uneven.items()))
        said = f"input widths must be divisible by {GROUP}, but {spec.name!r} has {width} in {name}"
        other = () if name.startswith("llm.") else (", or ", Key("depth_dtype"), " int8")
        raise RequestError(said, key="dtype", value="int4", allowed=("int8, bfloat16", *other))
    return form


@dataclass(frozen=True)
class Result:
    """The result of a conversion: bytes of the weights before and after, seconds, shards from an earlier run."""

    folder: Path
    before: int
    after: int
    seconds: float
    kept: int


class Conversion:
    """The conversion of a source into `folder`, in a format and with a specification that may be wider.

    Raises RequestError if the folder exists or its parent does not, and for prompts of a calibration that the model
    does not support.
    """

    def __init__(
        self, source: Source, folder: Path, form: WeightFormat, spec: Spec, calibration: Calibration | None = None
    ) -> None:
        check_folder(folder)
        self._source, self._folder, self._form, self._spec = source, folder, form, spec
        self._calibration = calibration
        self._network = empty_network(spec)
        self._shapes, self._kept_as = self._network.state_dict(), form.on(self._network)
        self._given = source.network.state_dict()
        parts: dict[str, list[str]] = {}
        for name in names_of(self._network):
            layer = re.match(r"llm\.layers\.\d+\.|depth\.|rqvae\.|tokenizer\.", name)
            parts.setdefault(layer[0] if layer else "", []).append(name)
        count = len(parts)
        self._shards = {f"model-{i:05d}-of-{count:05d}.safetensors": names for i, names in enumerate(parts.values(), 1)}
        described = Converted(
            form=form,
            spec=spec,
            defaults=source.checkpoint.defaults,
            text=source.checkpoint.text,
            source=source.identity,
            rounding="none" if form.blocks is None else calibration.description if calibration else "least squares",
            shards=tuple(self._shards),
        )
        self._rows: list[list[int]] = []
        if calibration is not None:
            if not isinstance(spec, ModelSpec):
                said, hint = f"the model {spec.name!r} takes no text", ("leave ", Key("calibrate"), " out")
                raise RequestError(said, key="calibrate", hint=hint)
            reader = source.checkpoint.reader(source.network)
            self._rows = calibration.rows(reader, source.checkpoint.defaults.cfg != 1.0)
        self._document = json.dumps(described.to_dict(), indent=1) + "\n"

    def bytes_after(self, shards: list[str] | None = None) -> int:
        """Bytes of the weights of some shards, of all by default."""
        names = [n for shard, names in self._shards.items() if shards is None or shard in shards for n in names]
        return sum(self._kept_as.bytes_of(name, self._shapes[name].shape) for name in names)

    def needed(self) -> int | None:
        """Bytes of memory that the conversion takes: the process, what is stored of a shard so far, a matrix as it is
        read, and the mapped piece of its file or its rounded form. None with a calibration, which takes more.
        """
        most = 0
        for names in self._shards.values():
            stored = 0
            for name in names:
                rounded = self._kept_as.bytes_of(name, self._shapes[name].shape)
                most = max(most, stored + self._bytes_before([name]) + max(PIECE, rounded))
                stored += rounded
        return None if self._calibration is not None else BASE + most

    def _bytes_before(self, names: list[str]) -> int:
        return sum(self._given[name].numel() for name in names) * self._source.stored.itemsize

    def run(self, on_progress: Progress = lambda what, done, total: None) -> Result:
        """Convert, and report to `on_progress`. Raises RequestError for too little memory and for a working folder of
        another conversion or process, RunError if a file can't be written.
        """
        began, needed, free = time.perf_counter(), self.needed(), available_bytes("cpu")
        if needed is not None and needed > free:
            raise RequestError(f"the conversion needs {gib(needed)} of memory, but {gib(free)} are free")
        working = working_folder(self._folder)
        self._begin(working)
        busy = RequestError(f"{working}: another process is writing to this folder", hint="wait until that one ends")
        with locked(working / _LOCK, busy):
            done = [shard for shard in self._shards if (working / shard).is_file()]
            left = [shard for shard in self._shards if shard not in done]
            self._check_room(left)
            walk = self._walk(working, done, on_progress) if left else None
            total, read = sum(self._bytes_before(self._shards[shard]) for shard in left), 0
            for shard in left:
                tensors: dict[str, Tensor] = {}
                for name, stored in self._stored(shard, walk):
                    tensors |= stored
                    read += self._bytes_before([name])
                    on_progress("converting", read, total)
                if walk is not None:
                    _write(working / f"{_STATES}-{shard}", {"states": torch.cat(walk.states)})
                _write(working / shard, tensors)
                for file in working.glob(f"{_STATES}-*"):
                    if file.name != f"{_STATES}-{shard}":
                        file.unlink()
            self._finish(working)
        # Windows can't rename a folder with an open file.
        self._publish(working)
        every = [name for names in self._shards.values() for name in names]
        return Result(
            self._folder, self._bytes_before(every), self.bytes_after(), time.perf_counter() - began, len(done)
        )

    def _read(self, name: str) -> Tensor:
        return self._source.read(name, self._shapes[name])

    def _stored(self, shard: str, walk: Walk | None) -> Iterator[tuple[str, Mapping[str, Tensor]]]:
        """Yield the name and the stored tensors of each parameter of a shard."""
        rounded: set[str] = set()
        if walk is not None:
            for name, stored in walk.round(self._shards[shard]):
                rounded.add(name)
                yield name, stored
        for name in self._shards[shard]:
            if name not in rounded:
                yield name, self._kept_as.stored(name, self._read(name))

    def _walk(self, working: Path, done: list[str], on_progress: Progress) -> Walk | None:
        """The calibration at the first missing shard; samples its visual tokens unless an earlier run did."""
        if self._calibration is None:
            return None
        calibration, plain, spec = self._calibration, working / _PLAIN, self._spec
        assert isinstance(spec, ModelSpec)

        codes = working / _CODES
        if not codes.is_file():
            if not plain.exists():
                on_shard = partial(on_progress, "rounding without calibration")
                Conversion(self._source, plain, self._form, self._spec).run(lambda _, *done: on_shard(*done))
            _write(codes, {"codes": calibration.draw(plain, spec, partial(on_progress, "sampling videos"))})
        # The sampling model has reference cycles; while it lives, its mapped files take room on the disk.
        gc.collect()
        shutil.rmtree(plain, ignore_errors=True)
        states = saved(working / f"{_STATES}-{done[-1]}", "states") if done else None
        return Walk(self._kept_as, spec, self._read, self._rows, saved(codes, "codes"), states)

    def _begin(self, working: Path) -> None:
        """Make the working folder, or check that it belongs to this conversion."""
        try:
            working.mkdir(exist_ok=True)
            begun = next((f for f in (working / UNFINISHED, working / "config.json") if f.is_file()), None)
            if begun is None and any(not f.name.startswith(".") for f in working.iterdir()):
                raise RequestError(f"{working} exists and is not a conversion", hint="move it, or give another -o")
            if begun is not None and file_text(begun) != self._document:
                said = f"{working} is an unfinished conversion of another model or with other options"
                raise RequestError(said, hint="rerun the command that began it, or delete the folder")
        except OSError as e:
            raise _failed(working, e, hint=None) from None
        if begun is None:
            write_whole(working / UNFINISHED, self._document)

    def _check_room(self, left: list[str]) -> None:
        needed, free = self.bytes_after(left) + _MARGIN, shutil.disk_usage(self._folder.parent).free
        if self._calibration is not None:
            needed += self._calibration.bytes_of_states(self._spec, self._rows)
        if needed > free:
            said = f"{self._folder} needs another {gib(needed)} on the disk, but {gib(free)} are free"
            raise RunError(said, hint=_RESUME)

    def _finish(self, working: Path) -> None:
        """Add the tokenizer and config.json."""
        try:
            for file in self._source.checkpoint.text_files():
                if file.is_file():
                    shutil.copyfile(file, working / file.name)
            # A kill -9 in the middle of a shard leaves hidden files.
            for hidden in working.glob(".*"):
                if hidden.name != _LOCK:
                    hidden.unlink()
            if (working / UNFINISHED).is_file():
                (working / UNFINISHED).replace(working / "config.json")
        except OSError as e:
            raise _failed(self._folder, e) from None

    def _publish(self, working: Path) -> None:
        """Rename the folder, which is complete and no longer locked."""
        try:
            (working / _LOCK).unlink(missing_ok=True)
            check_folder(self._folder)
            working.rename(self._folder)
        except OSError as e:
            raise _failed(self._folder, e) from None


def check_folder(folder: Path) -> None:
    """Raise RequestError for an existing target, and for one without a parent folder."""
    if folder.exists() or folder.is_symlink():
        raise RequestError("exists already", key="output", value=folder, hint="give another name, or move that folder")
    if not folder.name or not folder.parent.is_dir():
        raise RequestError(f"there is no folder {folder.parent}", key="output", value=folder)


def _write(file: Path, tensors: Mapping[str, Tensor]) -> None:
    write_whole(file, partial(write_safetensors, tensors=tensors), hint=_RESUME)


def _failed(path: Path, error: OSError, hint: str | None = _RESUME) -> RunError:
    return RunError(f"{path} could not be written: {error.strerror or error}", hint=hint)
