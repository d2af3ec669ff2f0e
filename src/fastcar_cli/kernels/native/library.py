"""The native library: whether it is there and built from these sources, and its best kernels for this processor.

It is built with the package (build.py). In a checkout, which holds the sources too, they must be the ones that the
library was built from.
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
from fastcar_cli.kernels.native.build import FOLDER, NAME, SOURCES, WHY_NOT, source_hash
from fastcar_cli.kernels.native.structs import STRUCTS


@cache
def open_library() -> ctypes.CDLL | str:
    """The loaded library, or why it can't be used."""
    path, why = FOLDER / NAME, FOLDER / WHY_NOT
    if not path.is_file():
        reason = why.read_text(encoding="utf-8").strip() if why.is_file() else "run pip install -e . in the checkout"
        return f"the native kernels are not built: {reason}"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as e:
        return f"the native kernels can't be loaded: {e}"
    library.fastcar_instruction_set.argtypes = library.fastcar_kernels.argtypes = [ctypes.c_int64]
    library.fastcar_instruction_set.restype = library.fastcar_sources.restype = ctypes.c_char_p
    library.fastcar_kernels.restype = ctypes.POINTER(STRUCTS.Kernels)
    if (SOURCES / "dispatch.cpp").is_file() and library.fastcar_sources().decode() != source_hash():
        return "the native kernels were built from other sources; run pip install -e . again"
    return library


def unavailable() -> str | None:
    """Why the native kernels can't be used here, in a sentence without its full stop; None where they can."""
    library = open_library()
    return library if isinstance(library, str) else None


@cache
def instruction_sets() -> Sequence[str]:
    """Instruction sets that the kernels have and this processor runs, best first; empty where they are unavailable.

    Kept, since a virtual machine takes 100 us to say what its processor has.
    """
    library = open_library()
    names: list[str] = []
    while not isinstance(library, str) and (name := library.fastcar_instruction_set(len(names))):
        names.append(name.decode())
    return tuple(names)


class UnknownInstructions(RequestError, ValueError):
    """The environment names an instruction set that the kernels or the processor lack."""


def instruction_set() -> str:
    """The instruction set in use: the best one, or that which the environment variable FASTCAR_KERNELS_ISA names.

    Raises UnknownInstructions for one that is not in `instruction_sets`, RuntimeError where kernels are unavailable.
    """
    if (why := unavailable()) is not None:
        raise RuntimeError(why)
    names = instruction_sets()
    wanted = os.environ.get("FASTCAR_KERNELS_ISA") or names[0]
    if wanted not in names:
        raise UnknownInstructions(f"FASTCAR_KERNELS_ISA={wanted}: allowed here: {', '.join(names)}")
    return wanted


def kernels() -> Any:
    """The kernels of `instruction_set`. Raises RuntimeError where they are unavailable."""
    library = open_library()
    if isinstance(library, str):
        raise RuntimeError(library)
    return _kernels_of(library, instruction_set())


@cache
def _kernels_of(library: ctypes.CDLL, name: str) -> Any:
    return library.fastcar_kernels(instruction_sets().index(name)).contents


def scratch(size: int) -> Tensor:
    """Zeroed memory of this many bytes, aligned to a cache line.

    Of NumPy, since torch writes all of it: 0.2 ms before the first token of a small model, for inputs that a pass of a
    window may never have.
    """
    memory = torch.from_numpy(np.zeros(size + 64, np.uint8))
    first = -memory.data_ptr() % 64
    return memory[first : first + size]
