"""What can go wrong, by who has to act: the request (exit status 2) or the run (exit status 1).

Errors of the library know nothing of a command line. They name a parameter in backticks: a key of the configuration,
dotted (`replay.max_age`) or its last part where that is plain (`tau`), or a parameter of the function that raises
(`metrics`). A command turns what it has a flag for into that flag (cli/flags.py): "`replay.ratio` 0.9: 2 frames allow
at most 0.5" reads "--replay-ratio 0.9: ..." there. So write "`tau` 3", never "--tau 3".
"""

from __future__ import annotations

import re
from collections.abc import Callable

_PARAMETER = re.compile(r"`([a-z][a-z0-9_.]*)`")


class FastcarError(Exception):
    """Base of every error meant for the user: one sentence and, where there is one, a way out."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def told(self, flag: Callable[[str], str | None], given: str = "") -> tuple[str, str | None]:
        """Message and hint with `flag(parameter)` for each parameter in backticks; None leaves it as it is.

        Backticks that stand in what the user has `given` are the user's own, and stay.
        """

        def swap(found: re.Match[str]) -> str:
            return found[0] if found[0] in given else flag(found[1]) or found[0]

        return _PARAMETER.sub(swap, str(self)), None if self.hint is None else _PARAMETER.sub(swap, self.hint)


class RequestError(FastcarError):
    """The request was wrong: unknown value, bad configuration, missing file."""

    exit_code = 2


class RunError(FastcarError):
    """The run itself failed: full disk, out of memory, broken encoder."""

    exit_code = 1
