"""What devices do: wait for their work, run out of memory."""

from __future__ import annotations

import torch


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done what it was given, so that a clock is right; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's, a device's, or that of torch's allocator on the CPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # These have no error of their own: c10/core/impl/alloc_cpu.cpp (on Windows the second), and a failed cudaMalloc.
    words = ("DefaultCPUAllocator: can't allocate memory:", "DefaultCPUAllocator: not enough memory:")
    text = str(error)
    return isinstance(error, RuntimeError) and (
        any(w in text for w in words) or text.startswith("CUDA error: out of memory")
    )
