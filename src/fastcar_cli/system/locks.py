"""Folders that one process works in at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fastcar_cli.errors import FastcarError, RequestError


@contextlib.contextmanager
def locked(file: Path, busy: FastcarError, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock of the operating system, which ends with its process however that ends.

    Raises `busy` where another process has it for so long, RequestError where the folder can't have one.
    """
    lock = FileLock(file)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise busy from None
    except (OSError, RuntimeError) as e:  # the latter of a file system without locks
        raise RequestError(f"{file.parent}: can't be locked: {e}", hint="choose a folder on a local disk") from None
    try:
        yield
    finally:
        lock.release()
