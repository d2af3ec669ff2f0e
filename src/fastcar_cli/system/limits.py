"""What the process may use of its machine: cores by affinity and quota, memory by its control groups."""

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


def _groups(*controllers: str) -> Iterator[Path]:
    """Folders of the process's control groups, its own and those above, of version 2 and of controllers of version 1.

    In a container the path may be the host's, of which only the root is mounted.
    """
    try:
        lines = [line.split(":", 2) for line in OWN.read_text(encoding="utf-8").splitlines()]
    except OSError:
        lines = []
    lines = [*(line for line in lines if len(line) == 3), ["", "", "/"], ["", ",".join(controllers), "/"]]
    for _, names, path in lines:
        tops = [names, *names.split(",")] if {*names.split(",")} & {*controllers} else []
        group = Path(path.lstrip("/"))
        for top in tops if names else ("", "unified"):
            for folder in (group, *group.parents):
                if (ROOT / top / folder).is_dir():
                    yield ROOT / top / folder


def _numbers(file: Path) -> list[int]:
    """The numbers of a file in their order; none where it can't be read or sets no limit."""
    try:
        words = file.read_text(encoding="ascii").split()
        return [int(word) for word in words if word.lstrip("-").isdigit()] if "max" not in words else []
    except (OSError, ValueError):
        return []


def _reclaimable(file: Path) -> int:
    """Bytes of a group's page cache and kernel objects that the kernel gives back at once."""
    try:
        rows = dict(line.split() for line in file.read_text(encoding="ascii").splitlines())
        count = {name: int(value) for name, value in rows.items()}
    except (OSError, ValueError):
        return 0
    prefix = "total_" if "total_inactive_file" in count else ""
    clean = sum(count.get(prefix + name, 0) for name in ("inactive_file", "active_file", "slab_reclaimable"))
    waiting = ("file_dirty", "file_writeback", "total_dirty", "total_writeback")
    return max(0, clean - sum(count.get(name, 0) for name in waiting))


def require_proc() -> None:
    """Raise RequestError in a sandbox of Linux without the files by which libraries know cores and memory."""
    hidden = [str(f) for f in NEEDED if not os.access(f, os.R_OK)] if sys.platform == "linux" else []
    if hidden:
        raise RequestError(
            f"this sandbox hides {' and '.join(hidden)}, by which PyTorch knows cores and memory",
            hint="let the sandbox mount it, such as bwrap --proc /proc or unshare --fork --pid --mount-proc",
        )


def free_memory(machine: int) -> int:
    """Bytes that the process may still take, of those that are free on the machine."""
    free = machine
    for group in _groups("memory"):
        for limit, used in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
            most, now = _numbers(group / limit), _numbers(group / used)
            if most and now:
                free = min(free, max(0, most[0] - now[0] + _reclaimable(group / "memory.stat")))
    return free


def cores() -> int:
    """How many cores the process may keep busy, at least 1."""
    most: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for group in _groups("cpu"):
        quota = _numbers(group / "cpu.max") or [
            *_numbers(group / "cpu.cfs_quota_us"), *_numbers(group / "cpu.cfs_period_us")
        ]  # fmt: skip
        if len(quota) == 2 and min(quota) > 0:
            most = min(most, quota[0] / quota[1])
    return max(1, int(most))


def give_back_memory() -> None:
    """Give freed memory back to the system: glibc keeps freed blocks of less than 32 MiB, as the maps of a video
    tokenizer are, 0.35 GB after a latent of Cosmos.
    """
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
    """Files that the process may open beside those that are open, with some to spare."""
    try:
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return max(1, (soft if soft > 0 else 10240) - len(os.listdir("/dev/fd")) - 24)
    except (ImportError, OSError):  # Windows
        return 2048
