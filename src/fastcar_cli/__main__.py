"""The program `fastcar`, as a console script and as `python -m fastcar_cli`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading

from fastcar_cli.cli.app import main


def run() -> None:
    """Run a command and leave with its exit status.

    Looking for garbage while packages are imported, and freeing every object at the end, would take a quarter of a
    second of the shortest commands.
    """
    gc.set_threshold(50_000)
    code: int | str | None = 0
    try:
        main()
    except SystemExit as e:
        code = e.code
    helpers = any(not t.daemon for t in threading.enumerate() if t is not threading.main_thread())
    if helpers or isinstance(code, str):
        sys.exit(code)
    atexit._run_exitfuncs()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.flush()
    os._exit(code or 0)


if __name__ == "__main__":
    run()
