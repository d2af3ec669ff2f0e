"""The native library, its best kernels for this processor, and products with a single matrix.

The library is built with the package (build.py). In a checkout it must be built from the sources there.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.errors import RequestError
from fastcar_cli.kernels.native.build import FOLDER, NAME, SOURCES, WHY_NOT, platform_tag, source_hash
from fastcar_cli.kernels.native.structs import STRUCTS, Linear, expect, matrix

_OTHER_WHEEL = f"; install from source with ziglang or a C++ compiler, or install a wheel for {platform_tag()}"


@cache
def open_library() -> ctypes.CDLL | str:
    """The loaded library, or why it can't be used."""
    path, why = FOLDER / NAME, FOLDER / WHY_NOT
    if not path.is_file():
        reason = why.read_text(encoding="utf-8").strip() if why.is_file() else "run pip install -e . in the checkout"
        return f"the native kernels are not built: {reason}{_OTHER_WHEEL if why.is_file() else ''}"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as e:
        return f"the native kernels can't be loaded, perhaps because they are for another system: {e}{_OTHER_WHEEL}"
    library.fastcar_instruction_set.argtypes = library.fastcar_kernels.argtypes = [ctypes.c_int64]
    library.fastcar_instruction_set.restype = library.fastcar_sources.restype = ctypes.c_char_p
    library.fastcar_kernels.restype = ctypes.POINTER(STRUCTS.Kernels)
    if (SOURCES / "dispatch.cpp").is_file() and library.fastcar_sources().decode() != source_hash():
        return "the native kernels were not built from the sources in this checkout; run pip install -e . again"
    return library


def unavailable() -> str | None:
    """Why the native kernels can't be used here, in a sentence without its full stop; None if they can."""
    library = open_library()
    return library if isinstance(library, str) else None


@cache
def instruction_sets() -> Sequence[str]:
    """Instruction sets that the kernels have and this processor runs, best first; empty if they are unavailable."""
    library = open_library()
    names: list[str] = []
    while not isinstance(library, str) and (name := library.fastcar_instruction_set(len(names))):
        names.append(name.decode())
    return tuple(names)


class UnknownInstructions(RequestError, ValueError):
    """The environment names an instruction set that the kernels or the processor lack."""


def instruction_set() -> str:
    """The instruction set in use: the best one, or the one named by the environment variable FASTCAR_KERNELS_ISA.
    Raises UnknownInstructions for one that is not in `instruction_sets`, RuntimeError if kernels are unavailable.
    """
    if (why := unavailable()) is not None:
        raise RuntimeError(why)
    names = instruction_sets()
    wanted = os.environ.get("FASTCAR_KERNELS_ISA") or names[0]
    if wanted not in names:
        hint = "unset the variable, or decode in plain torch with --set runtime.executor=torch"
        raise UnknownInstructions(f"FASTCAR_KERNELS_ISA={wanted}: allowed on this CPU: {', '.join(names)}", hint=hint)
    return wanted


def kernels() -> Any:
    """The kernels of `instruction_set`. Raises RuntimeError if they are unavailable."""
    library = open_library()
    if isinstance(library, str):
        raise RuntimeError(library)
    return _kernels_of(library, instruction_set())


@cache
def _kernels_of(library: ctypes.CDLL, name: str) -> Any:
    return library.fastcar_kernels(instruction_sets().index(name)).contents


def scratch(size: int) -> Tensor:
    """Zeroed memory of this many bytes, aligned to a cache line; from NumPy, since torch would write all of it."""
    memory = torch.from_numpy(np.zeros(size + 64, np.uint8))
    first = -memory.data_ptr() % 64
    return memory[first : first + size]


class Product:
    """A linear map for a fixed number of rows; its weights are used in place."""

    def __init__(self, linear: Linear, rows: int, threads: int = 1) -> None:
        if rows < 1 or threads < 1:
            raise ValueError(f"{rows} rows and {threads} threads: both must be at least 1")
        self._kernels, self._linear = kernels(), linear
        self.product = STRUCTS.Product(matrix=matrix("linear", linear), rows=rows, threads=threads)
        self._shape = rows, linear.outputs, linear.inputs
        self._scratch = scratch(self._kernels.product_bytes(self.product))
        self.product.scratch = self._scratch.data_ptr()

    def __call__(self, x: Tensor) -> Tensor:
        """Map float32 [..., in], `rows` inputs in all, to float32 [..., out]."""
        p, (rows, outputs, inputs), shape = self.product, self._shape, x.shape[:-1]
        if shape.numel() != rows:
            raise ValueError(f"x has {shape.numel()} rows, expected {rows}")
        y = torch.empty(*shape, outputs)
        p.x, p.y = expect("x", x, (*shape, inputs), torch.float32), y.data_ptr()
        self._kernels.product(ctypes.byref(p))
        return y


def linear(x: Tensor, weight: Linear, threads: int = 1) -> Tensor:
    """Map float32 [rows, in] to float32 [rows, out]; `Product` does the same repeatedly."""
    return Product(weight, len(x), threads)(x)
