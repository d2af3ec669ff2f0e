"""The machine's bandwidth and FLOP/s, measured in the same run as the profile."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fastcar_cli.system.device import synchronise


def seconds_of(work: Callable[[], Any], device: torch.device, repeats: int = 5) -> float:
    """Median seconds of a piece of work after one warm-up."""
    work()
    times = []
    for _ in range(repeats):
        synchronise(device)
        began = time.perf_counter()
        work()
        synchronise(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@dataclass(frozen=True)
class Machine:
    """Names and measured rates: copy_gb_s counts bytes read and written, read_gb_s bytes read."""

    names: dict[str, Any]
    copy_gb_s: float
    read_gb_s: float
    matrix_gflop_s: float

    @property
    def bandwidth(self) -> float:
        """The larger rate in GB/s, from which floors are computed."""
        return max(self.copy_gb_s, self.read_gb_s)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        reached = asdict(self)
        return reached.pop("names") | reached


def processor() -> str:
    """The name of the CPU as the system reports it."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def largest_cache() -> int:
    """Bytes of the CPU's largest cache as Linux reports them; 0 elsewhere."""
    units, sizes = {"K": 2**10, "M": 2**20, "G": 2**30}, [0]
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            text = file.read_text(encoding="ascii").strip()
            sizes.append(int(text[:-1]) * units[text[-1]])
    return max(sizes)


class Stream:
    """Memory to copy and read: at least four times the largest cache, so that no cache contains the next bytes."""

    def __init__(self, device: torch.device, size: int = 2**28) -> None:
        self._device, self._size, self._at = device, size, 0
        self._windows = torch.ones(self.bytes_on(device, size) // size, size // 4, dtype=torch.float32, device=device)

    @staticmethod
    def bytes_on(device: torch.device | str, size: int = 2**28) -> int:
        """Bytes that it takes on a device."""
        cache = largest_cache() if torch.device(device).type == "cpu" else 0
        return max(2, -(-4 * cache // size)) * size

    def _next(self) -> torch.Tensor:
        self._at = (self._at + 1) % len(self._windows)
        return self._windows[self._at]

    def copy(self, repeats: int = 5) -> float:
        """Bytes/s read and written."""
        return 2 * self._size / seconds_of(lambda: self._next().copy_(self._next()), self._device, repeats)

    def read(self, repeats: int = 5) -> float:
        """Bytes/s read by the faster of two kernels; which one is faster depends on the build."""

        def square() -> torch.Tensor:
            window = self._next()
            return window.dot(window)

        ways = (lambda: self._next().sum(), square)
        return self._size / min(seconds_of(way, self._device, repeats) for way in ways)

    def rate(self) -> float:
        """Measure both rates; returns the larger one."""
        return max(self.copy(3), self.read(3))


def names_of(device: torch.device) -> dict[str, Any]:
    """Names of hardware and software; measures nothing."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else processor(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _matrix_rate(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of products of 2048 x 2048 matrices, or of the first size from 512 on that takes over 0.1 s."""
    n = 512
    while True:
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        seconds = seconds_of(partial(torch.matmul, a, b), device, 3)
        if n == 2048 or seconds > 0.1:
            return 2 * n**3 / seconds
        n *= 2


def measure_machine(device: torch.device, dtype: torch.dtype, size: int = 2**28) -> Machine:
    """Copy and read memory, `size` bytes at a time, and multiply square matrices in the run's dtype."""
    stream = Stream(device, size)
    copy, read = stream.copy() / 1e9, stream.read() / 1e9
    flops = _matrix_rate(device, dtype) / 1e9
    clock = "torch.cuda.Event" if device.type == "cuda" else "time.perf_counter (monotonic)"
    names = {**names_of(device), "dtype": str(dtype).removeprefix("torch."), "clock": clock}
    return Machine(names, copy, read, flops)
