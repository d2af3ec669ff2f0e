"""Signals that stop a run: its finished frames stay, and the write of a frame is never cut short."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

STOPS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGXCPU", "SIGUSR1", "SIGUSR2", "SIGBREAK")
    if hasattr(signal, name)
)
"""Ctrl-C, SIGTERM, a closed terminal or lost connection, and what job schedulers such as Slurm send first."""


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C, which ends a run like Ctrl-C."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.number = number


def status(stop: KeyboardInterrupt) -> int:
    """The exit status of a run that was stopped: 128 and the signal's number."""
    return 128 + (stop.number if isinstance(stop, Terminated) else signal.SIGINT)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated(number)


def _in_main_thread() -> bool:
    """Signals reach the main thread only, and only there a handler may be set."""
    return threading.current_thread() is threading.main_thread()


def stop_on_signals() -> None:
    """Let the signals of STOPS raise `Terminated` if they would end the process; other handlers stay."""
    if _in_main_thread():
        for number in STOPS:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, _terminate)


@contextlib.contextmanager
def restored_sigterm() -> Iterator[None]:
    """Restore the handler of SIGTERM after a block in which a library sets its own."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if _in_main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Delay the signals of STOPS until the block is done; ignored ones stay ignored."""
    if not _in_main_thread():
        yield
        return
    held: list[int] = []
    handlers = {number: signal.getsignal(number) for number in STOPS}
    # None is a handler that was not set from Python and can't be restored; the default of most signals is to kill.
    handlers = {n: handler for n, handler in handlers.items() if handler not in (None, signal.SIG_IGN)}
    for number in handlers:
        signal.signal(number, lambda n, frame: held.append(n))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if held:
        signal.raise_signal(held[0])
