"""The program `fastcar`, as a console script and as `python -m fastcar_cli`."""

from __future__ import annotations

import gc

from fastcar_cli.cli.app import main
from fastcar_cli.cli.streams import close_streams, open_streams


def run() -> None:
    """Run a command and leave with its exit status.

    Fewer searches for garbage while packages are imported, and none at the end among all objects of torch: 0.45 of 2.5
    seconds of a short `generate`, 0.02 of 0.18 of `config`.
    """
    gc.set_threshold(50_000)
    open_streams()
    try:
        main()
    finally:
        gc.freeze()
        close_streams()


if __name__ == "__main__":
    run()
