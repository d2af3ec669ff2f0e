"""Reads weights from disk: safetensors and .bin, one file or shards with an index.

Tensors are copied out of the mapped file piece by piece, and the mapping is dropped as it grows, so that memory holds
only the weights in the requested dtype and one piece.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import flush
from fastcar_cli.system.limits import give_back_memory
from fastcar_cli.system.plain_data import read_json
from fastcar_cli.weights.formats import stored_parts, widen_stored
from fastcar_cli.weights.torchscript import TorchScriptFile

PIECE = 64 * 2**20  # bytes read from a mapping before it is dropped and made anew

STEMS = ("model", "pytorch_model")
SUFFIXES = (".safetensors", ".bin")

ALIGNMENT = 64
"""Tensors in a written file begin at multiples of this many bytes, a cache line, if their sizes allow."""

Progress = Callable[[int], None]
Store = Callable[[str, Tensor], Mapping[str, Tensor]]


def _damaged(file: Path, error: Exception) -> RequestError:
    if file.exists() and not os.access(file, os.R_OK):  # safetensors reports it as missing
        return RequestError(f"weights file {file} can't be read: {os.strerror(errno.EACCES)}")
    return RequestError(f"weights file {file} is damaged: {error}", hint="download the file again")


class _Safetensors:
    """One open weights file: names, shapes, and rows of tensors along their first dimension (all of a scalar)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reopen()
        slices = {k: self._handle.get_slice(k) for k in self._handle.keys()}  # noqa: SIM118
        kinds = {k: (s.get_dtype(), *s.get_shape()) for k, s in slices.items()}
        try:
            self._parts = stored_parts(kinds)
        except ValueError as e:
            raise _damaged(self.path, e) from None
        beside = {part for parts in self._parts.values() for part in parts}
        self.shapes = {k: kind[1:] for k, kind in kinds.items() if k not in beside}

    def reopen(self) -> None:
        """Drop the mapping."""
        self._handle: Any = None
        try:
            self._handle = safe_open(str(self.path), framework="pt", device="cpu")
        except (SafetensorError, OSError, ValueError) as e:
            raise _damaged(self.path, e) from None

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        if not self.shapes[name]:
            return self._handle.get_tensor(name)
        rows, *beside = (self._handle.get_slice(part)[begin:end] for part in (name, *self._parts[name]))
        return widen_stored(rows, *beside) if beside else rows


class _Bin:
    """Like `_Safetensors`, for a file written by torch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reopen()
        self.shapes = {k: tuple(t.shape) for k, t in self._tensors.items()}

    def reopen(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        try:
            loaded = torch.load(self.path, map_location="cpu", mmap=True, weights_only=True)
        except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as e:
            if isinstance(e, pickle.UnpicklingError):
                named = f": {foreign[1]}" if (foreign := re.search(r"GLOBAL (\S+)", str(e))) else ""
                raise RequestError(
                    f"weights file {self.path} holds objects other than tensors{named}; fastcar did not load the file, "
                    "because loading such objects can run code",
                    hint="download the file from the page of its authors on Hugging Face",
                ) from None
            raise _damaged(self.path, RuntimeError(re.split(r"\. |\n", str(e))[0])) from None
        if self.path.suffix == ".pt" and isinstance(loaded, dict):
            # A training run may save all under "model"; TransformerEngine's extra states are not tensors.
            inner = loaded["model"] if isinstance(loaded.get("model"), dict) else loaded
            loaded = {str(k).removeprefix("model."): t for k, t in inner.items() if "_extra_state" not in str(k)}
        if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
            raise RequestError(f"weights file {self.path} does not hold a mapping from names to tensors")
        self._tensors = loaded

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        tensor = self._tensors[name]
        return tensor[begin:end] if tensor.dim() else tensor


_File = _Safetensors | _Bin | TorchScriptFile
_READERS: dict[str, type[_Bin] | type[TorchScriptFile]] = {".bin": _Bin, ".pt": _Bin, ".jit": TorchScriptFile}


def _open(path: Path) -> _File:
    if not path.is_file():
        raise RequestError(f"weights file {path} is missing", hint="download the file again")
    return _READERS.get(path.suffix, _Safetensors)(path)


class StoredShapes(dict[str, tuple[int, ...]]):
    """Names and shapes of the tensors of a weights file. Raises RequestError for a missing or damaged one."""

    def __init__(self, path: Path) -> None:
        super().__init__(_open(path).shapes)
        self.path = path

    def of(self, key: str, dimensions: int) -> tuple[int, ...]:
        """The shape of a tensor. Raises RequestError if it is missing, empty, or has other dimensions."""
        if (shape := self.get(key)) is None:
            raise RequestError(f"weights file {self.path} lacks key {key!r}")
        if len(shape) != dimensions or 0 in shape:
            needed = f"expected {dimensions} dimension{'s' * (dimensions > 1)}"
            raise RequestError(f"weights file {self.path}, key {key!r}: shape {list(shape)}, {needed}")
        return shape


def weight_files(
    folder: Path, stems: Sequence[str] = STEMS, suffixes: Sequence[str] = SUFFIXES, *, hint: str | None = None
) -> list[Path]:
    """The weight files of a component folder: those of its index, or its one file; they need not exist.
    Raises RequestError if there is neither, or if the index can't be read.
    """
    for stem in stems:
        for suffix in suffixes:
            index = folder / f"{stem}{suffix}.index.json"
            if index.is_file():
                try:
                    files = sorted({str(name) for name in read_json(index)["weight_map"].values()})
                except (KeyError, TypeError, AttributeError) as e:
                    raise RequestError(f"{index} can't be read: {type(e).__name__}: {e}") from None
                if paths := [name for name in files if Path(name).name != name]:
                    raise RequestError(f"{index}: key 'weight_map' names {paths[0]!r}, not a file of this folder")
                return [folder / name for name in files]
            if (folder / f"{stem}{suffix}").is_file():
                return [folder / f"{stem}{suffix}"]
    raise RequestError(
        f"weights file {folder / (stems[0] + suffixes[0])} is missing",
        hint=hint or "allowed: model.safetensors, pytorch_model.bin, or shards with their index.json",
    )


_SAFETENSORS_TYPES = {
    torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8", torch.uint8: "U8",
    torch.int64: "I64",
}  # fmt: skip


@dataclass(frozen=True)
class Component:
    """A folder of weights, and which of them a network uses: `names` maps keys on disk to parameter names, `ignored`
    accepts other known keys, `files` replace the result of `weight_files`.
    """

    folder: Path
    names: Mapping[str, str]
    ignored: Callable[[str], bool]
    files: tuple[Path, ...] | None = None


class Weights:
    """The tensors of some components by parameter name, read in any order.

    Raises RequestError with file and key for a damaged file, a missing or unexpected tensor, and a shape other than in
    `like`; with `finite` also for NaN and infinite values. `progress` gets the bytes read.
    """

    def __init__(
        self,
        components: Sequence[Component],
        like: Mapping[str, Tensor],
        progress: Progress | None = None,
        *,
        finite: bool = False,
    ) -> None:
        self._at: dict[str, tuple[Path, str, tuple[int, ...]]] = {}
        self._progress, self._finite = progress, finite
        self._file: _File | None = None
        self._mapped = self._done = 0
        for component in components:
            files = component.files or tuple(weight_files(component.folder))
            for path in files:
                self._list(component, path, like)
            for key, name in component.names.items():
                if name not in self._at:
                    at = files[-1] if len(files) == 1 else component.folder
                    raise RequestError(f"weights file {at} lacks key {key!r}")

    def _list(self, component: Component, path: Path, like: Mapping[str, Tensor]) -> None:
        file = _open(path)
        surplus = sorted(k for k in file.shapes if k not in component.names and not component.ignored(k))
        if surplus:
            more = f" and {len(surplus) - 1} more" if len(surplus) > 1 else ""
            raise RequestError(f"weights file {path} has unexpected key {surplus[0]!r}{more}")
        for key, shape in file.shapes.items():
            name = component.names.get(key)
            if name is None or name in self._at:
                continue
            if shape != (needed := tuple(like[name].shape)):
                raise RequestError(f"weights file {path}, key {key!r}: shape {list(shape)}, expected {list(needed)}")
            self._at[name] = path, key, shape

    def read_all(
        self, dtype: Callable[[str], torch.dtype], device: torch.device | None = None, store: Store | None = None
    ) -> dict[str, Tensor]:
        """All parameters on a device, each read in its `dtype`; `store` returns the tensors that replace one."""
        result: dict[str, Tensor] = {}
        for name in self._at:
            tensor = self.read(name, dtype(name), device)
            result |= {name: tensor} if store is None else store(name, tensor)
        return result

    def read(self, name: str, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
        """A parameter in `dtype` (None: as stored) on a device."""
        path, key, size = self._at[name]
        if self._file is None or self._file.path != path:
            # Let the system read the file while tensors are being copied; not every system knows the call.
            with contextlib.suppress(OSError, AttributeError), path.open("rb") as f:
                os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
            self._file, self._mapped = _open(path), 0
        target: Tensor | None = None
        for begin, end in _pieces(size, dtype or torch.float32):
            piece = self._file.rows(key, begin, end)
            if not piece.is_floating_point():
                raise RequestError(f"weights file {path}, key {key!r}: holds {piece.dtype}, expected floats")
            if self._finite and not bool(torch.isfinite(piece).all()):
                raise RequestError(f"weights file {path}, key {key!r}: holds NaN or infinite values")
            if target is None:
                target = torch.empty(size, dtype=dtype or piece.dtype, device=device)
            (target[begin:end] if size else target).copy_(piece)
            self._mapped += piece.nbytes
            self._done += piece.nbytes
            del piece
            if self._mapped >= PIECE:
                # Quantising leaves freed blocks between the tensors that stay.
                give_back_memory()
                self._file.reopen()
                self._mapped = 0
                if self._progress is not None:
                    self._progress(self._done)
        assert target is not None
        return target


def _pieces(shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """Ranges of the first dimension of about a quarter of PIECE each."""
    if not shape:
        yield 0, 1
        return
    step = max(1, PIECE // 4 // max(dtype.itemsize * math.prod(shape[1:]), 1))
    for begin in range(0, shape[0], step):
        yield begin, min(begin + step, shape[0])


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, aligned to `ALIGNMENT`, and wait until it is on the disk. Raises OSError.
    The library's own writer copies every tensor first and lets them begin at any multiple of 8 bytes.
    """
    # Tensors whose size is not a multiple of the alignment come last.
    ordered = sorted(tensors.items(), key=lambda item: item[1].nbytes % ALIGNMENT != 0)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"} if metadata is None else dict(metadata)}
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        kind = _SAFETENSORS_TYPES[tensor.dtype]
        header[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % ALIGNMENT)
    with path.open("wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            f.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        f.flush()
        flush(f.fileno())
