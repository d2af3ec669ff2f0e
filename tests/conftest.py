from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

# Kernels run through Triton's interpreter where there is no GPU; triton reads it when it is imported.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# The quickest model, here and in the processes that tests start, where a test names none.
os.environ.setdefault("FASTCAR_MODEL", "mini")

from support.browser import browser, look  # noqa: F401
from support.processes import SCREEN, Run

from fastcar_cli.cli.app import main
from fastcar_cli.kernels.gpu import installed

# Nothing that a test says depends on how long it takes.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


# A shell's background job ignores Ctrl-C, and the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One thread a process: two processes share two cores.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def interpreter() -> None:
    """Triton's interpreter patches its language for each call of a kernel and of each function in it, and takes that
    back, a third of the time that they take. Here it patches once for each module with kernels, and no more.
    """
    if not installed():
        return
    runtime: Any = importlib.import_module("triton.runtime.interpreter")
    patch, patched = runtime._patch_lang, set()

    def once(function: Any) -> Any:
        if function.__module__ not in patched:
            patched.add(function.__module__)
            patch(function)
        return runtime._LangPatchScope()

    runtime._patch_lang = once


@pytest.fixture
def process(tmp_path: Path) -> Run:
    """Run `fastcar` as a process in an empty folder: where the process is the claim."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, **SCREEN}
        return subprocess.run(
            [sys.executable, "-m", "fastcar_cli", *arguments],
            capture_output=True, text=True, cwd=tmp_path, env=env,
        )  # fmt: skip

    return call


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run `fastcar` in an empty folder, within this process, which has loaded torch already."""
    monkeypatch.chdir(tmp_path)
    for name, value in SCREEN.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr(sys, "argv", ["fastcar", *arguments])
        out, err, status = io.StringIO(), io.StringIO(), 0
        threads, handler = torch.get_num_threads(), signal.getsignal(signal.SIGTERM)
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                main()
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else int(e.code is not None)
        finally:
            torch.set_num_threads(threads)
            signal.signal(signal.SIGTERM, handler)
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    return call
