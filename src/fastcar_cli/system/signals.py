"""Ctrl-C and SIGTERM: both end a run where it keeps what is finished, neither within the write of a frame."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends a run as Ctrl-C does."""


def status(stop: KeyboardInterrupt) -> int:
    """The exit status of a run that was stopped: 128 and the signal's number."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


def _terminate(number: int, frame: FrameType | None) -> None:
    raise Terminated


def stop_on_sigterm() -> None:
    """Let SIGTERM raise `Terminated` where it would end the process; a handler of somebody else stays."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Put the handler of SIGTERM back that a library sets in the block."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back until the block is done; ignored ones stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        # Signals reach the main thread only, and only there a handler may be set.
        yield
        return
    held: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # None is a handler that was not set from Python and can't be put back.
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
