"""The native library: whether it is there and built from these sources, and its best kernels for this processor.

It is built with the package (build.py). A checkout holds its sources too, and then they must be the ones it was
built from.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fastcar_cli.kernels.native.build import FOLDER, NAME, SOURCES, WHY_NOT, source_hash
from fastcar_cli.kernels.native.structs import STRUCTS


@cache
def _open() -> ctypes.CDLL | str:
    """The library, or why it can't be used."""
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
    if (SOURCES / "door.cpp").is_file() and library.fastcar_sources().decode() != source_hash():
        return "the native kernels were built from other sources; run pip install -e . again"
    return library


def unavailable() -> str | None:
    """Why the native kernels can't be used here, in a sentence without its full stop; None where they can."""
    library = _open()
    return library if isinstance(library, str) else None


def instruction_sets() -> list[str]:
    """Those that the kernels are built for and this processor runs, best first; empty where they are unavailable."""
    library = _open()
    names: list[str] = []
    while not isinstance(library, str) and (name := library.fastcar_instruction_set(len(names))):
        names.append(name.decode())
    return names


def instruction_set() -> str:
    """The one that is used: the best, or what the environment variable FASTCAR_KERNELS_ISA names.

    Raises ValueError for one that is not in `instruction_sets`, RuntimeError where the kernels are unavailable.
    """
    if (why := unavailable()) is not None:
        raise RuntimeError(why)
    names = instruction_sets()
    asked = os.environ.get("FASTCAR_KERNELS_ISA") or names[0]
    if asked not in names:
        raise ValueError(f"FASTCAR_KERNELS_ISA={asked}: allowed here: {', '.join(names)}")
    return asked


def kernels() -> Any:
    """The functions of `instruction_set`; RuntimeError where they are unavailable."""
    library = _open()
    if isinstance(library, str):
        raise RuntimeError(library)
    return library.fastcar_kernels(instruction_sets().index(instruction_set())).contents


def scratch(size: int) -> Tensor:
    """Zeroed memory of this many bytes that begins on a cache line."""
    memory = torch.zeros(size + 64, dtype=torch.uint8)
    first = -memory.data_ptr() % 64
    return memory[first : first + size]
