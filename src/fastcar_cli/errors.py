"""What can go wrong, by who has to act: the request (exit status 2) or the run (exit status 1)."""

from __future__ import annotations


class FastcarError(Exception):
    """Base of every error meant for the user: one sentence and, where there is one, a way out."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class RequestError(FastcarError):
    """The request was wrong: unknown value, bad configuration, missing file."""

    exit_code = 2


class RunError(FastcarError):
    """The run itself failed: full disk, out of memory, broken encoder."""

    exit_code = 1
