"""Reads TorchScript archives as data: the tensors of a module by their attribute paths.

The program in the file is never opened. Only modules and tensors are unpickled: classes of the program become empty
objects, and nothing else can be named or called.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastcar_cli.errors import RequestError

_KINDS = {
    "FloatStorage": torch.float32, "BFloat16Storage": torch.bfloat16, "HalfStorage": torch.float16,
    "DoubleStorage": torch.float64, "LongStorage": torch.int64, "IntStorage": torch.int32, "ShortStorage": torch.int16,
    "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip

_MOST, _DEEPEST = 100_000, 64  # maximum attributes, and nesting depth of modules; objects can contain themselves

_LARGEST_PICKLE = 64 * 2**20


class _Stored(NamedTuple):
    """Location of a tensor: its storage, and its part of it."""

    key: str
    dtype: torch.dtype
    numbers: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _objects(data: bytes) -> dict[str, _Stored]:
    """The tensors of a pickled module by path. Raises what `pickle` raises, UnpicklingError for other objects."""

    class Module:
        state: Any = None

        def __setstate__(self, state: Any) -> None:
            self.state = state

    def tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Stored:
        dtype, key, count = storage
        numbers = (count, offset, *shape, *strides)
        if not all(type(n) is int and n >= 0 for n in numbers) or len(shape) != len(strides):
            raise pickle.UnpicklingError("the shape of a tensor is invalid")
        last = offset + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if last >= count and 0 not in shape:
            raise pickle.UnpicklingError("a tensor reaches beyond its storage")
        return _Stored(str(key), dtype, count, offset, tuple(shape), tuple(strides))

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module.partition(".")[0] == "__torch__":
                return Module
            if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
                return tensor
            if (module, name) == ("collections", "OrderedDict"):
                return dict
            if module == "torch" and name in _KINDS:
                return _KINDS[name]
            raise pickle.UnpicklingError(f"it holds {module}.{name}, but fastcar reads only modules and tensors")

        def persistent_load(self, pid: Any) -> Any:
            kind, dtype, key, _device, count = pid
            if kind != "storage" or not isinstance(dtype, torch.dtype):
                raise pickle.UnpicklingError("the type of a storage is unknown")
            return dtype, key, count

    root = Reader(io.BytesIO(data)).load()
    if not isinstance(root, Module):
        raise pickle.UnpicklingError("it holds no module")
    return dict(_tensors(root, Module))


def _tensors(root: Any, module: type) -> Iterator[tuple[str, _Stored]]:
    """The tensors of a module and its submodules, by path."""
    pending, seen = [("", root)], 0
    while pending:
        path, at = pending.pop()
        if path.count(".") > _DEEPEST:
            raise pickle.UnpicklingError("its modules are nested in a cycle")
        if not isinstance(at.state, dict):
            raise pickle.UnpicklingError("one of its modules has no attributes")
        for name, value in at.state.items():
            if (seen := seen + 1) > _MOST:
                raise pickle.UnpicklingError("its modules are nested in a cycle")
            if isinstance(value, module):
                pending.append((f"{path}{name}.", value))
            elif isinstance(value, _Stored):
                yield f"{path}{name}", value


class TorchScriptFile:
    """One open archive: names, shapes, and rows of tensors along their first dimension (all of a scalar).
    Raises RequestError for a damaged file, and for one that holds anything but modules and tensors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._at: dict[str, _Stored] = self._read(self._objects)
        self.shapes = {name: at.shape for name, at in self._at.items()}

    def reopen(self) -> None:
        """Does nothing: the archive is not mapped."""

    def rows(self, name: str, begin: int, end: int) -> Tensor:
        """Rows of a tensor as it is stored."""
        at = self._at[name]
        data = self._read(lambda archive, root: _bytes(archive, f"{root}data/{at.key}", at.numbers * at.dtype.itemsize))
        tensor = torch.frombuffer(data, dtype=at.dtype).as_strided(at.shape, at.strides, at.offset)
        return tensor[begin:end] if at.shape else tensor

    def _objects(self, archive: zipfile.ZipFile, root: str) -> Any:
        if (order := f"{root}byteorder") in archive.namelist() and archive.read(order).strip() != b"little":
            raise ValueError("its numbers are big-endian")
        return _objects(bytes(_bytes(archive, f"{root}data.pkl", None)))

    def _read(self, read: Callable[[zipfile.ZipFile, str], Any]) -> Any:
        try:
            with zipfile.ZipFile(self.path) as archive:
                roots = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
                if len(roots) != 1:
                    raise ValueError("it is not a TorchScript archive")
                return read(archive, roots[0].removesuffix("data.pkl"))
        # A pickle can fail in as many ways as it has instructions.
        except Exception as e:
            why = str(e).partition("\n")[0] or type(e).__name__
            said = f"weights file {self.path} can't be read: {why}"
            raise RequestError(said, hint="download the original file") from None


def _bytes(archive: zipfile.ZipFile, name: str, size: int | None) -> bytearray:
    """A member of an archive; its size must be `size`, if given."""
    stored = archive.getinfo(name).file_size
    if size not in (None, stored) or (size is None and stored > _LARGEST_PICKLE):
        raise ValueError(f"{name} has {stored} bytes, expected {size or 'fewer'}")
    return bytearray(archive.read(name))
