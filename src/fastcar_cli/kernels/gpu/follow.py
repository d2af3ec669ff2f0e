"""Launches that overlap: a kernel is brought onto the device while the one before it still runs, and waits there.

What does not depend on the kernel before, as weights and the keys of earlier tokens, it fetches into the second-level
cache before it waits, so that memory works while short kernels run.

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
def precede(EARLY: tl.constexpr):
    """Let the next kernel come; what this one writes is there for it all the same, since it waits."""
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait(EARLY: tl.constexpr):
    """Wait until the kernel before has written all that it writes."""
    if EARLY:
        tl.extra.cuda.gdc_wait()


@triton.jit
def follow(EARLY: tl.constexpr):
    """Let the next kernel come, and wait until the one before has written all that it writes."""
    precede(EARLY)
    wait(EARLY)


@triton.jit
def fetch(at, size):
    """Begin to fetch so many bytes from each pointer on into the second-level cache: a multiple of 16, or none.

    Both are multiples of 16. Changes nothing and waits for nothing.
    """
    tl.inline_asm_elementwise(
        """{
        .reg .pred some;
        setp.gt.s32 some, $2, 0;
        @some cp.async.bulk.prefetch.L2.global [$1], $2;
        mov.b32 $0, 0;
        }""",
        "=r,l,r",
        [at, size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
