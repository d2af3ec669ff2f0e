"""Triton kernels of a decode step for few rows, imported only where they run.

Tests run them on a CPU, slowly, through Triton's interpreter (`TRITON_INTERPRET=1` in the environment before the first
import of triton). Kernels take contiguous tensors; every index that changes from step to step is read from a tensor on
the device, so one CUDA graph serves them all.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def installed() -> bool:
    """Whether `import triton` would find something; imports nothing."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether kernels run through Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def upcast(x: Tensor) -> bool:
    """Whether to multiply tiles of x in float32: the interpreter multiplies 16-bit tiles wrongly."""
    return interpreted() and x.dtype.itemsize < 4


WIDEST = (64, 128, 4)  # outputs, inputs and pipeline stages of the largest tile of weights (`linear.LINEAR`)


def most_rows(shared_bytes: int, itemsize: int = 2) -> int:
    """Maximum rows of a pass's products with this much shared memory per block. Every stage of the pipeline has a tile
    of weights and one of inputs there. At least 16: rows are padded to that.
    """
    out, inner, stages = WIDEST
    rows = 16
    while itemsize * stages * inner * (out + 2 * rows) <= shared_bytes:
        rows *= 2
    return rows
