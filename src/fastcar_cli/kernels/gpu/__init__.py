"""Triton kernels of a decode step for few rows.

Imported only where they run: `triton` comes with CUDA builds of torch. The same kernels run on a
CPU, slowly, through Triton's interpreter (`TRITON_INTERPRET=1` in the environment before the first
import of triton), which is how the tests check them. Kernels take contiguous tensors; every index
that changes from step to step is read from a tensor on the device, so one CUDA graph serves them all.
"""

from __future__ import annotations

import importlib.util
import os


def installed() -> bool:
    """Whether `import triton` would find something; imports nothing."""
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether kernels run through Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET") == "1"
