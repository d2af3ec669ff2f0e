"""Standard streams that end no run: what a full disk, or a reader that has left, does not take is dropped."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any

from fastcar_cli.system.files import LenientFile


def open_streams() -> None:
    """Give the process all three streams, closed ones to nowhere, and let none of its writes raise an error."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream: Any = getattr(sys, name)
        if stream is None:
            # The lowest free number, so that no file that is opened later becomes standard output.
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            stream = open(number, "r+" if number == 0 else "w", encoding="utf-8", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
        if number and os.name == "posix":
            raw = io.BufferedWriter(LenientFile(number, "wb", closefd=False))
            lines = number == 2 or stream.isatty()
            text = io.TextIOWrapper(raw, stream.encoding, "backslashreplace", line_buffering=lines)
            setattr(sys, name, text)


def close_streams() -> None:
    """Write what is left, and say on standard error that standard output did not take everything."""
    if os.name != "posix":
        return
    sys.stdout.flush()
    error = getattr(sys.stdout.buffer, "raw", None)
    error = getattr(error, "error", None)
    if error is not None and error.errno != errno.EPIPE:
        sys.stderr.write(f"note: standard output is not complete: {error.strerror}\n")
    sys.stderr.flush()
