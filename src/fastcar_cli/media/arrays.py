"""Arrays in .npy and .npz files, found by their headers and read row by row.

Nothing that a file holds is executed: arrays of Python objects are pickles, and those are never read. A header may
claim any shape; no more memory is taken than the requested rows need.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fastcar_cli.errors import Key, RequestError, Text

SUFFIXES = (".npz", ".npy")

_MOST_BYTES = 2**30
"""Of one row, or of a whole array in Fortran order."""


@dataclass(frozen=True)
class Array:
    """An array that was found in a file: its key (empty in .npy files), shape and dtype."""

    file: Path
    key: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool

    def named(self, option: str) -> Text:
        """The array in a sentence about the file of an option."""
        return Key(option), f" {self.file}" + (f", array {self.key!r}" if self.key else "")

    def rows(self, option: str) -> Iterator[NDArray[Any]]:
        """Its rows `array[0]`, `array[1]`, ..., each read when it is requested.

        Raises RequestError that names `option` for objects, data that end early, and rows of more than a gigabyte.
        """
        what = self.named(option)
        if self.dtype.hasobject or self.dtype.names is not None:
            raise RequestError("holds Python objects, which are never loaded", where=what, allowed="numbers")
        if not self.shape:
            raise RequestError("holds a single number", where=what)
        row = math.prod(self.shape[1:])
        if row * self.dtype.itemsize * (self.shape[0] if self.fortran else 1) > _MOST_BYTES:
            raise RequestError(f"has shape {list(self.shape)}, which is too large", where=what)
        with ExitStack() as stack:
            try:
                stream = _open(stack, self.file, self.key)
                _header(stream)
                if self.fortran:
                    yield from self._of(stream, math.prod(self.shape)).reshape(self.shape, order="F")
                else:
                    for _ in range(self.shape[0]):
                        yield self._of(stream, row).reshape(self.shape[1:])
            except Exception as e:  # every compression has errors of its own
                raise RequestError(f"is damaged ({reason(e)})", where=what) from None

    def _of(self, stream: IO[bytes], count: int) -> NDArray[Any]:
        data = stream.read(count * self.dtype.itemsize)
        if len(data) < count * self.dtype.itemsize:
            raise EOFError("it ends early")
        return np.frombuffer(data, self.dtype, count)


def arrays_of(file: Path, option: str) -> list[Array]:
    """The arrays in a file, by their headers. Raises RequestError that names `option` for one that can't be read."""
    with ExitStack() as stack:
        try:
            if file.suffix.lower() == ".npy":
                return [Array(file, "", *_header(_open(stack, file, "")))]
            with zipfile.ZipFile(file) as archive:
                keys = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            return [Array(file, key, *_header(_open(stack, file, key))) for key in keys]
        except Exception as e:  # whatever a stranger's file makes zipfile and numpy raise
            kind = file.suffix.lower().removeprefix(".")
            raise RequestError(f"is no {kind} file, or a damaged one ({reason(e)})", key=option, value=file) from None


def _open(stack: ExitStack, file: Path, key: str) -> IO[bytes]:
    if not key:
        return stack.enter_context(file.open("rb"))
    return stack.enter_context(stack.enter_context(zipfile.ZipFile(file)).open(f"{key}.npy"))


def _header(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[Any], bool]:
    """Shape, dtype and whether the order is Fortran's; the stream is then at the data."""
    version = npy.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"format {version[0]}.{version[1]}")
    shape, fortran, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(stream)
    if any(n < 0 for n in shape):
        raise ValueError("a negative length")
    return shape, dtype, fortran


def reason(error: Exception) -> str:
    """Why a file can't be read, in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return (str(error).strip() or type(error).__name__).splitlines()[0][:120]
