"""Limits of the process: cores by affinity and quota, memory by control groups (version 2)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from fastcar_cli.errors import RequestError

ROOT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
NEEDED = (Path("/proc/cpuinfo"), Path("/proc/meminfo"))


def _groups() -> Iterator[Path]:
    """Folders of the process's control groups; in a container, only the root may be mounted."""
    with contextlib.suppress(OSError):
        for line in OWN.read_text(encoding="utf-8").splitlines():
            if line.startswith("0::/"):
                group = ROOT / line[len("0::/") :]
                yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(ROOT))
    yield ROOT


def _words(file: Path) -> list[str]:
    """The words of a file of a control group; none if it can't be read."""
    try:
        return file.read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return []


def require_proc() -> None:
    """Raise RequestError in a Linux sandbox that hides the files from which libraries read cores and memory."""
    hidden = [str(f) for f in NEEDED if not os.access(f, os.R_OK)] if sys.platform == "linux" else []
    if hidden:
        said = f"this sandbox hides {' and '.join(hidden)}, from which PyTorch reads the number of cores and the memory"
        raise RequestError(said, hint="mount /proc: bwrap --proc /proc, or unshare --fork --pid --mount-proc")


def free_memory(machine: int) -> int:
    """Bytes of free memory that the process may still use."""
    free = machine
    for group in _groups():
        most, now = _words(group / "memory.max"), _words(group / "memory.current")
        if most and now and most != ["max"]:
            words = _words(group / "memory.stat")
            count = {name: int(value) for name, value in zip(words[::2], words[1::2], strict=False)}
            # The kernel can free clean page cache and its own objects at once.
            clean = sum(count.get(name, 0) for name in ("inactive_file", "active_file", "slab_reclaimable"))
            clean -= count.get("file_dirty", 0) + count.get("file_writeback", 0)
            free = min(free, max(0, int(most[0]) - int(now[0]) + max(0, clean)))
    return free


def cores() -> int:
    """Number of cores that the process may use, at least 1."""
    most: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups():
        quota = _words(group / "cpu.max")
        if len(quota) == 2 and quota[0] != "max":
            most = min(most, int(quota[0]) / int(quota[1]))
    return max(1, int(most))


def give_back_memory() -> None:
    """Return freed memory to the system: glibc holds freed blocks of less than 32 MiB."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard one: terminals of macOS allow 256."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 10240) if hard > 0 else 10240, hard))


def open_files() -> int:
    """Number of further files that the process may open, less a reserve."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, (soft if soft > 0 else 10240) - len(os.listdir("/dev/fd")) - 24)
    except (ImportError, OSError):  # Windows
        return 2048
