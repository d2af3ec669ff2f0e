"""How tests run the command line."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from typing import Any

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SCREEN = {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}


def report_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What `--json` printed in a run that succeeded."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def refused(done: subprocess.CompletedProcess[str], *said: str) -> None:
    """The request was refused in one panel that holds these texts."""
    assert done.returncode == 2 and "Traceback" not in done.stderr
    words = " ".join(done.stderr.replace("│", " ").split())
    assert all(part in words for part in said), words


def runs_small_and_emulated(run: Run, begun: Sequence[str], window: str) -> None:
    """A `generate` command saves memory with int8 keys in a short window, and runs on the emulated accelerator."""
    small = report_of(run(*begun, "--window", window, "--kv-dtype", "int8", "-o", "small"))
    whole = report_of(run(*begun, "-o", "whole"))
    assert small["memory"]["kv_cache_bytes"] < whole["memory"]["kv_cache_bytes"]
    done = run(*begun, "--backend", "fpga-sim", "--trace", "trace.npz", "-o", "emulated")
    assert report_of(done)["backend"]["name"] == "fpga-sim"
    assert run("fpga", "trace.npz", "--json").returncode == 0
