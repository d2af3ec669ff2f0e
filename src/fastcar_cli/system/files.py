"""Writes files atomically, under names that two runs never share."""

from __future__ import annotations

import atexit
import contextlib
import csv
import errno
import glob
import hashlib
import io
import itertools
import math
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from fastcar_cli.errors import FastcarError, RequestError, RunError, Text
from fastcar_cli.system.signals import uninterrupted

MOST_ARRAYS, MOST_TEXT = 2**30, 2**26
"""Maximum bytes read of arrays, and of a text file (tokenizers of large models take some 20 MiB)."""


@cache
def _machine() -> str:
    """A name of fixed length for the machine or container in which process numbers are unique."""
    try:
        processes = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:  # not Linux
        processes = 0
    return hashlib.sha256(f"{platform.node()} {processes}".encode()).hexdigest()[:12]


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)


_FOLDERS: set[Path] = set()  # folders with hidden files of this process


@atexit.register
def _remove_mine() -> None:
    """Remove hidden files of this process: a signal may arrive after one is made and before it is removed."""
    for folder in _FOLDERS:
        for left in folder.glob(f".*-fastcar-{_machine()}-{os.getpid()}-*"):
            _remove(left)


def hidden_beside(path: Path, make: Callable[[Path], None]) -> Path:
    """Call `make` with a hidden name beside `path`; returns the name. Removes what killed processes left there."""
    begin = f".{path.stem[:30]}-fastcar-{_machine()}-"
    for left in path.parent.glob(f"{glob.escape(begin)}*"):
        number = re.match("[0-9]+", left.name.removeprefix(begin))
        if number and not psutil.pid_exists(int(number[0])):
            _remove(left)
    _FOLDERS.add(path.parent.absolute())
    while True:
        hidden = path.with_name(f"{begin}{os.getpid()}-{secrets.token_hex(4)}{path.suffix}")
        with contextlib.suppress(FileExistsError):
            make(hidden)
            return hidden


def target_of(path: Path) -> Path:
    """The path to write to: for a symbolic link, which stays, the file or folder that it leads to."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def refused_on_windows(name: str) -> str | None:
    """Why Windows allows no file of this name, or None if it does (Microsoft: Naming Files, Paths, and Namespaces)."""
    if wrong := sorted({*'<>:"/\\|?*', *map(chr, range(32))} & set(name)):
        return f"a name can't have {wrong[0]!r}"
    if re.fullmatch("con|prn|aux|nul|(com|lpt)[1-9\u00b9\u00b2\u00b3]", name.partition(".")[0].rstrip().lower()):
        return "it is the name of a device"
    return "a name can't end in a dot or a space" if name.endswith((".", " ")) else None


def empty_file(path: Path) -> None:
    """Make an empty file. Raises FileExistsError if the name exists, else OSError."""
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))


def numbered(path: Path) -> Iterator[Path]:
    """`a.mp4`, `a-2.mp4`, `a-3.mp4`, ..."""
    yield path
    for n in itertools.count(2):
        yield path.with_name(f"{path.stem}-{n}{path.suffix}")


def _first_free(file: Path, names: Iterable[Path]) -> Path:
    """Move a file to the first free name, which no other run can get too; returns the name. Raises OSError."""
    for name in names:
        with contextlib.suppress(FileExistsError):
            try:
                os.link(file, name)
            except FileExistsError:
                raise
            except OSError:  # a file system without links, where a kill between the two steps leaves an empty file
                empty_file(name)
                try:
                    file.replace(name)
                except BaseException:
                    name.unlink(missing_ok=True)
                    raise
            else:
                file.unlink()
            return name
    raise AssertionError("names do not end")


def flush(descriptor: int) -> None:
    """Flush an open file to the disk, if its file system can. Raises OSError if the disk is full or fails."""
    try:
        os.fsync(descriptor)
    except OSError as e:
        if e.errno in (errno.EIO, errno.ENOSPC, errno.EDQUOT):
            raise


def _copy_mode(path: Path, temporary: Path) -> None:
    with contextlib.suppress(OSError):  # file systems without modes
        shutil.copymode(path, temporary)


def publish(temporary: Path, path: Path, *, new: bool) -> Path:
    """Flush a finished file and rename it: if `new` to a free name, else with the old file's mode; returns the name."""
    # Windows flushes files that are open for writing only.
    with temporary.open("r+b" if os.name == "nt" else "rb") as f:
        flush(f.fileno())
    if not new:
        if path.exists():
            require_regular(path)
            _copy_mode(path, temporary)
        temporary.replace(target_of(path))
        return path
    return _first_free(temporary, numbered(path))


def set_aside(path: Path) -> Path:
    """Rename a file to the next free number; returns the name. Raises OSError."""
    return _first_free(path, itertools.islice(numbered(path), 1, None))


def publish_folder(temporary: Path, path: Path) -> Path:
    """Rename a finished folder to `path`, or to the next free number if others exist; returns the name."""
    target = target_of(path)
    if path.is_dir():
        _copy_mode(path, temporary)
    for name in numbered(target):
        with contextlib.suppress(OSError):
            name.rmdir()  # Windows replaces no folder, not even an empty one
        try:
            temporary.rename(name)
        except OSError as e:
            if e.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
        else:
            return path if name == target else name
    raise AssertionError("names do not end")


def write_whole(
    path: Path, data: bytes | str | Callable[[Path], None], *, new: bool = False, hint: str | None = None
) -> None:
    """Write a file under a hidden name and `publish` it. Raises RunError, with the hint, and leaves what was there."""
    temporary: Path | None = None
    with uninterrupted():
        try:
            if not new and path.exists():
                require_regular(path)
            temporary = hidden_beside(path if new else target_of(path), empty_file)
            if callable(data):
                data(temporary)
            else:
                temporary.write_bytes(data.encode() if isinstance(data, str) else data)
            publish(temporary, path, new=new)
        except OSError as e:
            raise RunError(f"{path} could not be written: {e.strerror or e}", hint=hint) from None
        finally:
            if temporary is not None:
                _remove(temporary)


@contextlib.contextmanager
def staging(folder: Path) -> Iterator[Path]:
    """A hidden folder of this process for unfinished files; those that killed processes left are removed."""
    make_folder(folder)
    mine = hidden_beside(folder / "videos", Path.mkdir)
    try:
        yield mine
    finally:
        shutil.rmtree(mine, ignore_errors=True)


def make_folder(folder: Path) -> None:
    """Make a folder and its parents if they are missing. Raises RequestError, also for one that is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RequestError(f"the folder {folder} can't be made: {e.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise RequestError(f"the folder {folder} is not writable")


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write arrays by name as a compressed .npz, like `write_whole`."""
    import numpy as np

    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    write_whole(path, packed.getvalue())


def read_arrays(file: Path) -> dict[str, Any]:
    """The arrays of a .npz by name, or the array of a .npy under ""; Python objects, which are pickles, are skipped.
    Raises OSError, or ValueError for another kind of file, one with only Python objects or with more than a gigabyte.
    """
    import numpy as np

    require_regular(file, MOST_ARRAYS)
    try:
        loaded = np.load(file, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {"": loaded}
        with loaded:
            if sum(member.file_size for member in loaded.zip.infolist()) > MOST_ARRAYS:
                raise ValueError(f"holds more than {MOST_ARRAYS:,} bytes")
            arrays = {}
            for name in loaded.files:
                try:
                    arrays[name] = loaded[name]
                except ValueError as e:
                    if why_unread(e) != OBJECTS:
                        raise
            if loaded.files and not arrays:
                raise ValueError(OBJECTS)
            return {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
    except OSError:
        raise
    except Exception as e:  # whatever a damaged file makes zipfile, zlib and numpy raise
        with file.open("rb") as f:
            # numpy treats every unknown file as a pickle.
            known = f.read(1) in (b"\x93", b"P", b"\x80")
        why = why_unread(e)
        raise ValueError(why if known or why != OBJECTS else "its contents are neither .npy nor .npz") from None


OBJECTS = "it holds Python objects, which fastcar does not load"


def reason_of(error: Exception) -> str:
    """The reason of an OSError, without the file's name."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


def why_unread(error: Exception) -> str:
    """The first line of a library's error, without its advice to run the file's code."""
    said = str(error).partition("\n")[0] or type(error).__name__
    return OBJECTS if re.search("allow_pickle|Weights only load failed", said) else said


_KINDS = ((b"PK\x03\x04", ".npz"), (b"\x93NUMPY", ".npy"), (b"GIF8", ".gif"), (b"{", ".json"), (b"[", ".json"))
"""First bytes of the kinds of files that are known by their suffix."""

COPIES: dict[str, str] = {}  # copies of pipes by their path, with the name that the user gave


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fastcar-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def spooled(path: Path) -> Path:
    """The path; for a pipe or `-` a copy's, until the program ends. Raises RequestError above a gigabyte."""
    given, path = str(path), Path("/dev/stdin") if str(path) == "-" else path
    try:
        standard = path.parent in (Path("/dev"), Path("/dev/fd")) and path.name in ("stdin", *map(str, range(1024)))
        if not standard and not stat.S_ISFIFO(path.stat().st_mode):
            return path
        # Windows has no /dev/stdin.
        with open(0, "rb", closefd=False) if given == "-" else path.open("rb") as pipe:
            data = pipe.read(MOST_ARRAYS + 1)
    except OSError:
        return path  # the error appears when the file is read
    if len(data) > MOST_ARRAYS:
        raise RequestError(f"{path} holds more than {MOST_ARRAYS:,} bytes", hint="give a file instead of a pipe")
    text = "" if b"\0" in data else ".csv"
    suffix = next((s for begin, s in _KINDS if data.lstrip(b" \r\n\t").startswith(begin)), text)
    copy = _folder() / f"{path.name}{'.safetensors' if data[8:9] == b'{' else suffix}"
    copy.write_bytes(data)
    COPIES[str(copy)] = given
    return copy


def require_regular(file: Path, most: float = math.inf) -> None:
    """Raise OSError unless this is a regular file of at most `most` bytes: a pipe may wait, a device never end."""
    state = file.stat()
    if not stat.S_ISREG(state.st_mode):
        raise OSError(errno.EINVAL, "is not a regular file", str(file))
    if state.st_size > most:
        raise OSError(errno.EFBIG, f"has {state.st_size:,} bytes, allowed: at most {most:,}", str(file))


def file_text(path: Path, encoding: str = "utf-8") -> str:
    """The text of a regular file of at most 64 MiB. Raises OSError or UnicodeDecodeError."""
    require_regular(path, MOST_TEXT)
    return path.read_text(encoding=encoding)


def read_text(path: Path, what: Text, encoding: str = "utf-8") -> str:
    """The text of a file that the user named. Raises RequestError, in a sentence that begins with `what`."""
    try:
        text = file_text(path, encoding)
        if "\0" in text:
            raise RequestError(f"is not a text file: byte {text.index(chr(0))} is zero", where=what, hint="use UTF-8")
        return text
    except FileNotFoundError:
        raise RequestError("there is no such file", where=what) from None
    except UnicodeDecodeError as e:
        raise RequestError(f"is not UTF-8: {e.reason} at byte {e.start}", where=what, hint="save it in UTF-8") from None
    except (OSError, ValueError) as e:  # ValueError: a name that no file can have
        raise RequestError(f"can't be read: {reason_of(e)}", where=what) from None


def csv_of(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table as CSV. Text that a spreadsheet would take for a formula gets a quote before it; numbers stay."""

    def plain(cell: Any) -> Any:
        return f"'{cell}" if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")) else cell

    out = io.StringIO()
    csv.writer(out).writerows([plain(cell) for cell in row] for row in (header, *rows))
    return out.getvalue()


def sha256_of(path: Path) -> str:
    """Hash of a file's bytes. Raises OSError."""
    require_regular(path)
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(2**20):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def locked(file: Path, busy: FastcarError, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock of the operating system. Raises `busy` if another process has it for `seconds`, or RequestError."""
    from filelock import FileLock, Timeout

    lock = FileLock(file)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        raise busy from None
    except (OSError, RuntimeError) as e:  # RuntimeError: a file system without locks
        raise RequestError(f"{file.parent}: can't be locked: {e}", hint="choose a folder on a local disk") from None
    try:
        yield
    finally:
        lock.release()


class LenientFile(io.FileIO):
    """A file that stores its first error instead of raising it."""

    error: OSError | None = None

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        """Like `FileIO.write`, but until all data are written; returns less, or None, for a stream that would wait."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while rest:
                count: int | None = super().write(rest)
                if count is None:
                    return size - len(rest) or None
                rest = rest[count:]
        except OSError as e:
            self.error = self.error or e
        return size
