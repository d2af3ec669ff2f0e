"""Overlapping launches: a kernel is loaded onto the device while the one before it still runs, and waits there.

Needs compute capability 9.0 (programmatic dependent launch); elsewhere kernels are launched one after another.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastcar_cli.kernels.gpu import interpreted


@functools.cache
def possible(device: torch.device) -> bool:
    """Whether launches on this device can overlap."""
    known = hasattr(tl.extra, "cuda") and hasattr(tl.extra.cuda, "gdc_wait")
    return known and not interpreted() and torch.cuda.get_device_capability(device) >= (9, 0)


def early(x: Tensor) -> dict[str, Any]:
    """Options of a launch on the device of x, for kernels that call `follow` before they touch memory."""
    return {"EARLY": True, "launch_pdl": True} if possible(x.device) else {"EARLY": False}


@triton.jit
def follow(EARLY: tl.constexpr):
    """Let the next kernel launch, and wait until the previous one has written its results."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
