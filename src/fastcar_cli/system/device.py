"""Helpers for devices: synchronisation, out-of-memory errors, and isolation from the caller's torch settings."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import TypeVar

import torch

T = TypeVar("T")


class _Default:
    """The caller's default dtype, which torch has once for all threads, and how many blocks replace it."""

    lock, blocks, dtype = threading.Lock(), 0, torch.float32


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Use torch's default settings in the block, whatever dtype, device or autocast the caller has chosen."""
    with ExitStack() as others:
        # A mode slows every call of torch, so one is entered only to override the caller's.
        if torch.get_default_device().type != "cpu":
            others.enter_context(torch.device("cpu"))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                others.enter_context(torch.autocast(kind, enabled=False))
        others.enter_context(_float32())
        yield


@contextmanager
def _float32() -> Iterator[None]:
    with _Default.lock:
        if not _Default.blocks:
            _Default.dtype = torch.get_default_dtype()
            torch.set_default_dtype(torch.float32)
        _Default.blocks += 1
    try:
        yield
    finally:
        with _Default.lock:
            _Default.blocks -= 1
            if not _Default.blocks:
                torch.set_default_dtype(_Default.dtype)


def by_torch_defaults(items: Iterator[T]) -> Iterator[T]:
    """The items of a generator, whose body runs under `torch_defaults`; its consumer does not."""
    while True:
        with torch_defaults():
            item = next(items, items)
        if item is items:
            return
        yield item  # type: ignore[misc]


@cache
def one_thread_after_fork() -> None:
    """Let forked children use torch with one thread: OpenMP's threads do not survive a fork, and loops would hang."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def synchronise(device: torch.device) -> None:
    """Wait for a GPU's pending work, so that timings are right; does nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type in ("mps", "xpu"):
        torch.get_device_module(device).synchronize()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out: Python's, a device's, or that of torch's allocator on the CPU."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    # Errors without their own exception: c10/core/impl/alloc_cpu.cpp (on Windows the second), and a failed cudaMalloc.
    words = "DefaultCPUAllocator: (can't allocate|not enough) memory:|^CUDA error: out of memory"
    return isinstance(error, RuntimeError) and re.search(words, str(error)) is not None
