"""What Windows refuses to do with files, by its rules, on Linux: `obey(monkeypatch)`.

Python opens files there without FILE_SHARE_DELETE, so that an open file can't be deleted, renamed or replaced, nor a
folder renamed that holds one; a mapped file can't be deleted or replaced. A rename replaces nothing, not even an empty
folder. FlushFileBuffers needs a handle that may write. (Microsoft: CreateFile, MoveFileEx, FlushFileBuffers.)
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from typing import Any

import pytest


def _open() -> set[str]:
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:  # the one that listed the others
            continue
    return found


def _mapped() -> set[str]:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return {parts[5].rstrip() for line in maps if len(parts := line.split(maxsplit=5)) == 6}


def _refuse(path: Any, used: set[str], number: int = errno.EACCES) -> None:
    name = os.path.realpath(os.fspath(path))
    if number == errno.EEXIST or any(each == name or each.startswith(f"{name}/") for each in used):
        raise OSError(number, os.strerror(number), os.fspath(path))


def obey(patch: pytest.MonkeyPatch) -> None:
    """Let `os` refuse what Windows does, until the patch is undone."""
    real: dict[str, Callable[..., Any]] = {
        n: getattr(os, n) for n in ("unlink", "remove", "rename", "replace", "fsync")
    }

    def remove(path: Any, *, dir_fd: int | None = None) -> None:
        if dir_fd is None:
            _refuse(path, _open() | _mapped())
        real["unlink"](path, dir_fd=dir_fd)

    def rename(source: Any, target: Any) -> None:
        _refuse(source, _open())
        if os.path.lexists(target):
            _refuse(target, set(), errno.EEXIST)
        real["rename"](source, target)

    def replace(source: Any, target: Any) -> None:
        _refuse(source, _open())
        if os.path.lexists(target):
            _refuse(target, _open() | _mapped() | ({os.path.realpath(target)} if os.path.isdir(target) else set()))
        real["replace"](source, target)

    def fsync(descriptor: int) -> None:
        if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real["fsync"](descriptor)

    for name, double in (("unlink", remove), ("remove", remove), ("rename", rename), ("replace", replace)):
        patch.setattr(os, name, double)
    patch.setattr(os, "fsync", fsync)
