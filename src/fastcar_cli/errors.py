"""Errors: a wrong request (exit status 2) or a failed run (exit status 1).

An error of the library is data: the message, the parameter, its value, its source and the allowed values. The program
that shows the error chooses the parameter's name. `RequestError("2 frames allow at most 0.5",
key="replay.ratio", value=0.9)` reads "`replay.ratio` 0.9: 2 frames allow at most 0.5"; on the command line it begins
with "--replay-ratio 0.9" (cli/flags.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Key:
    """A parameter: a key of the configuration, dotted (`replay.max_age`) or its last part, or of a function."""

    name: str


Text = str | Key | tuple["Text", ...]  # a text that may name parameters


class FastcarError(Exception):
    """Base of every error for the user: one sentence, and a hint if there is one."""

    exit_code = 1
    name_of: Callable[[str], str] = staticmethod("`{}`".format)
    """The displayed name of a parameter; a command sets its flags here."""

    def __init__(
        self,
        message: Text,
        *,
        key: str | None = None,
        value: Any = None,
        where: Text | None = None,
        allowed: Text | None = None,
        hint: Text | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.key, self.value, self.where = message, key, value, where
        self.allowed, self.way_out = allowed, hint

    def _plain(self, text: Text) -> str:
        if isinstance(text, tuple):
            return "".join(map(self._plain, text))
        return self.name_of(text.name) if isinstance(text, Key) else text

    def __str__(self) -> str:
        parts = [self.message]
        if self.key is not None:
            # Files always use configuration keys.
            name = self._plain(Key(self.key)) if self.where is None else self.key
            parts.insert(0, name if self.value is None else f"{name} {self.value}")
        if self.where is not None:
            parts.insert(0, self.where)
        return ": ".join(map(self._plain, parts))

    @property
    def hint(self) -> str | None:
        """The allowed values, or another hint."""
        allowed = () if self.allowed is None else (("allowed: ", self.allowed),)
        ways = (*allowed, *(() if self.way_out is None else (self.way_out,)))
        return "; ".join(map(self._plain, ways)) or None


class RequestError(FastcarError):
    """The request was wrong: unknown value, bad configuration, missing file."""

    exit_code = 2


class RunError(FastcarError):
    """The run itself failed: full disk, out of memory, broken encoder."""
