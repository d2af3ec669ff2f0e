"""Weights on disk to tensors in memory: safetensors and .bin, one file or shards with an index.

Tensors are copied out of the mapped file a piece at a time, and the mapping is dropped as it grows,
so that the memory held never exceeds the weights in the dtype asked for by more than a piece.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fastcar_cli.errors import RequestError

PIECE = 64 * 2**20
"""Bytes of a file that are mapped before the mapping is dropped and made anew."""

STEMS = ("model", "pytorch_model")
SUFFIXES = (".safetensors", ".bin")

Progress = Callable[[int], None]
Store = Callable[[str, Tensor], Mapping[str, Tensor]]


def _damaged(file: Path, error: Exception) -> RequestError:
    return RequestError(f"weights file {file} is damaged: {error}", hint="fetch it again")


def _unexpected(file: Path, keys: Sequence[str]) -> RequestError:
    more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
    return RequestError(f"weights file {file} has unexpected key {keys[0]!r}{more}")


class _File:
    """One open weights file: names, shapes, and pieces of tensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shapes: dict[str, tuple[int, ...]] = {}

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        """Rows begin .. end of a tensor along its first dimension (all of a scalar)."""
        raise AssertionError("a file of its own kind is made by _open")

    def reopen(self) -> None:
        """Drop what is mapped."""
        raise AssertionError("a file of its own kind is made by _open")


class _Safetensors(_File):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._handle: Any
        self.reopen()
        handle = self._handle
        self.shapes = {k: tuple(handle.get_slice(k).get_shape()) for k in handle.keys()}  # noqa: SIM118

    def reopen(self) -> None:
        self._handle = None
        try:
            self._handle = safe_open(str(self.path), framework="pt", device="cpu")
        except (SafetensorError, OSError, ValueError) as e:
            raise _damaged(self.path, e) from None

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        if not self.shapes[name]:
            return self._handle.get_tensor(name)
        return self._handle.get_slice(name)[begin:end]


class _Bin(_File):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._tensors: dict[str, Tensor] = {}
        self.reopen()
        self.shapes = {k: tuple(t.shape) for k, t in self._tensors.items()}

    def reopen(self) -> None:
        self._tensors = {}
        try:
            loaded = torch.load(self.path, map_location="cpu", mmap=True, weights_only=True)
        except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as e:
            raise _damaged(self.path, RuntimeError(str(e).partition("\n")[0])) from None
        if not isinstance(loaded, dict) or not all(isinstance(t, Tensor) for t in loaded.values()):
            raise RequestError(f"weights file {self.path} holds no mapping of names to tensors")
        self._tensors = loaded

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        tensor = self._tensors[name]
        return tensor[begin:end] if tensor.dim() else tensor


def _open(path: Path) -> _File:
    if not path.is_file():
        raise RequestError(f"weights file {path} is missing", hint="fetch it again")
    with contextlib.suppress(OSError, AttributeError), path.open("rb") as f:
        # Read ahead while tensors are being copied; not every system knows the call.
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
    return (_Bin if path.suffix == ".bin" else _Safetensors)(path)


def weight_files(folder: Path) -> list[Path]:
    """The weight files of a component folder, by its index or its one file; they need not exist.

    Raises RequestError where there is neither, or where the index can't be read.
    """
    for stem in STEMS:
        for suffix in SUFFIXES:
            index = folder / f"{stem}{suffix}.index.json"
            if index.is_file():
                try:
                    names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
                    files = sorted({str(n) for n in names})
                except (OSError, ValueError, KeyError, AttributeError) as e:
                    raise RequestError(f"{index} can't be read: {type(e).__name__} {e}") from None
                for name in files:
                    if Path(name).name != name:
                        raise RequestError(f"{index}: key 'weight_map' names {name!r}, needed: a file of this folder")
                return [folder / n for n in files]
            if (folder / f"{stem}{suffix}").is_file():
                return [folder / f"{stem}{suffix}"]
    raise RequestError(
        f"weights file {folder / 'model.safetensors'} is missing",
        hint="allowed: model.safetensors, pytorch_model.bin, or shards with their index.json",
    )


@dataclass(frozen=True)
class Component:
    """A folder of weights and what of it a network takes.

    `names` maps keys on disk to parameter names; `ignored` says which further keys are known and not
    needed; `optional` are parameters another one may stand for (one codebook shared by all depths).
    """

    folder: Path
    names: Mapping[str, str]
    ignored: Callable[[str], bool]


def fill(
    components: Sequence[Component],
    wanted: Mapping[str, Tensor],
    dtype: torch.dtype,
    device: torch.device,
    progress: Progress | None = None,
    store: Store | None = None,
) -> dict[str, Tensor]:
    """Tensors of `dtype` on `device` for the parameter names of the components, checked against `wanted`'s shapes.

    `progress` is told the bytes read so far; `store` says what a tensor is kept as, one after another.
    Raises RequestError that names file and key for a missing, damaged or truncated file and a missing,
    unexpected or misshapen tensor.
    """
    result: dict[str, Tensor] = {}
    done = 0
    for component in components:
        files = weight_files(component.folder)
        for path in files:
            file = _open(path)
            surplus = sorted(k for k in file.shapes if k not in component.names and not component.ignored(k))
            if surplus:
                raise _unexpected(path, surplus)
            mapped = 0
            for key, shape in file.shapes.items():
                name = component.names.get(key)
                if name is None or name in result:
                    continue
                if shape != tuple(wanted[name].shape):
                    raise RequestError(
                        f"weights file {path}, key {key!r}: shape {list(shape)}, needed {list(wanted[name].shape)}"
                    )
                target = torch.empty(shape, dtype=dtype, device=device)
                for begin, end in _pieces(shape, dtype):
                    piece = file.rows(key, begin, end)
                    if not piece.is_floating_point():
                        raise RequestError(f"weights file {path}, key {key!r}: holds {piece.dtype}, needed floats")
                    (target[begin:end] if shape else target).copy_(piece)
                    mapped += piece.nbytes
                    done += piece.nbytes
                    del piece
                    if mapped >= PIECE:
                        file.reopen()
                        mapped = 0
                        if progress is not None:
                            progress(done)
                result |= {name: target} if store is None else store(name, target)
        for key, name in component.names.items():
            if name not in result:
                raise RequestError(
                    f"weights file {files[-1] if len(files) == 1 else component.folder} lacks key {key!r}"
                )
    return result


def _pieces(shape: tuple[int, ...], dtype: torch.dtype) -> Iterator[tuple[int, int]]:
    """Ranges of the first dimension of about a quarter of PIECE each."""
    if not shape:
        yield 0, 1
        return
    size = dtype.itemsize
    for n in shape[1:]:
        size *= n
    step = max(1, PIECE // 4 // max(size, 1))
    for begin in range(0, shape[0], step):
        yield begin, min(begin + step, shape[0])
