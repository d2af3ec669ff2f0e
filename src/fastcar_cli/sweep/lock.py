"""One sweep a folder: a lock of the operating system, which ends with its process however that ends.

Shards of the same division may share a folder, each with a lock of its own; a whole sweep, or a shard of another
division, may not run beside them because both would do the same cells.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import time
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock

from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.system.files import file_text, locked

PREFIX = ".lock-"
_MASTER = ".lock"


def _name(shard: tuple[int, int] | None) -> str:
    return f"{PREFIX}whole" if shard is None else f"{PREFIX}{shard[0]}-of-{shard[1]}"


def _holder(folder: Path, name: str) -> str:
    """Who holds a lock, according to its note."""
    try:
        return file_text(folder / f"{name}.txt")
    except (OSError, ValueError):
        return "another process"


@contextlib.contextmanager
def master(folder: Path) -> Iterator[None]:
    """Short turns of the shards of a folder at what they share (grid, tables). Raises RunError."""
    busy = RunError(f"{folder / _MASTER} has been held for two minutes", hint="is another sweep stuck?")
    with locked(folder / _MASTER, busy, seconds=120):
        yield


@contextlib.contextmanager
def lock_folder(folder: Path, shard: tuple[int, int] | None = None) -> Iterator[None]:
    """Hold a sweep folder, or one shard of it. Raises RequestError where another sweep has it."""
    name = _name(shard)
    mine = FileLock(folder / name)
    with master(folder):
        for other in sorted(folder.glob(f"{PREFIX}*")):
            match = re.fullmatch(rf"{re.escape(PREFIX)}(?:whole|(\d+)-of-(\d+))", other.name)
            if match is None:
                continue
            compatible = shard is not None and match[2] == str(shard[1]) and other.name != name
            part = f" (shard {match[1]}/{match[2]})" if match[2] else ""
            holder = f"{folder}: another sweep{part} runs there: {_holder(folder, other.name)}"
            if not compatible:
                with locked(other, RequestError(holder, hint="wait for it, or name another folder")):
                    pass  # it is nobody's: what a killed sweep left
        mine.acquire(timeout=0)
    note = folder / f"{name}.txt"
    with contextlib.suppress(OSError):
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        note.write_text(f"process {os.getpid()} on {platform.node()}, since {since}", encoding="utf-8")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)
        mine.release()
