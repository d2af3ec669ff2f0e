"""Fixtures for all tests of a folder: its conftest.py imports them."""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from fastcar_cli.profile.machine import measure_machine


@pytest.fixture(scope="package", autouse=True)
def no_fsync() -> Iterator[None]:
    """Files are not flushed to the disk: only a power cut would show it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda file: None)
        yield


@pytest.fixture(scope="package", autouse=True)
def machine_measured_once() -> Iterator[None]:
    """The machine's bandwidth takes a second or two to measure, and is the same for all tests of a process."""
    measured = functools.cache(measure_machine)
    with pytest.MonkeyPatch.context() as patch:
        for user in ("fastcar_cli.profile.profile_report", "fastcar_lab.bench.gpu", "fastcar_lab.bench.measure"):
            patch.setattr(f"{user}.measure_machine", measured)
        yield


@pytest.fixture(scope="module", autouse=True)
def short_collections() -> Iterator[None]:
    """Garbage collection skips loaded modules: PyAV plugins of tests collect at each file, 0.2 s among all objects.

    Frozen objects are never freed, which Triton's bindings report as leaks, so they thaw with the module.
    """
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="package", autouse=True)
def default_signals() -> Iterator[None]:
    """Signals act as in a terminal, in children too: nohup and some runners hand down an ignored SIGINT."""
    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
