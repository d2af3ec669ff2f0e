"""What can go wrong, by who has to act: the request (exit status 2) or the run (exit status 1).

An error of the library is data: what is wrong, with which parameter, its value, where it was read and what is allowed.
How a parameter is called is up to whoever shows the error. `RequestError("2 frames allow at most 0.5",
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


Text = str | Key | tuple["Text", ...]
"""A text in which parameters are mentioned."""


class FastcarError(Exception):
    """Base of every error meant for the user: one sentence and, where there is one, a way out."""

    exit_code = 1
    name_of: Callable[[str], str] = staticmethod("`{}`".format)
    """How a parameter is called; a command puts its flags here."""

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
            # A file has the keys of the configuration, whatever a program calls them.
            name = self._plain(Key(self.key)) if self.where is None else self.key
            parts.insert(0, name if self.value is None else f"{name} {self.value}")
        if self.where is not None:
            parts.insert(0, self.where)
        return ": ".join(map(self._plain, parts))

    @property
    def hint(self) -> str | None:
        """What is allowed, or another way out."""
        allowed = () if self.allowed is None else (("allowed: ", self.allowed),)
        ways = (*allowed, *(() if self.way_out is None else (self.way_out,)))
        return "; ".join(map(self._plain, ways)) or None


class RequestError(FastcarError):
    """The request was wrong: unknown value, bad configuration, missing file."""

    exit_code = 2


class RunError(FastcarError):
    """The run itself failed: full disk, out of memory, broken encoder."""
