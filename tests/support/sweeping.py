"""What the tests of sweeps share: a tiny model on disk, the command in this process or another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner, Result

from fastcar_cli.cli.app import app
from fastcar_cli.models.checkpoint import GenerationDefaults
from fastcar_cli.models.vila_u.network import VideoModel
from fastcar_lab.storage import save
from fastcar_lab.worlds.mini.captions import VOCABULARY
from fastcar_lab.worlds.mini.hyperparameters import mini_tokenizer
from support.processes import SCREEN
from support.tiny import tiny_spec

BALL, STAR = "a red ball rolling to the right on the grass", "a big yellow star bouncing at night"
_ENV = {**os.environ, **SCREEN, "OMP_NUM_THREADS": "1"}
TINY_METRICS = "psnr,temporal"
"""Of frames of 4 x 4 pixels."""


def tiny_folder(folder: Path, seed: int = 0) -> Path:
    spec = tiny_spec()
    torch.manual_seed(seed)
    model = VideoModel(replace(spec, decoder=replace(spec.decoder, vocab=len(VOCABULARY)))).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0.0, 1.5 * p.shape[-1] ** -0.5)
    save(folder, model, mini_tokenizer().to_dict(), GenerationDefaults(cfg=2.5), torch.float32)
    return folder


def sweep(*arguments: object) -> Result:
    """The command in this process; an error is `result.exception`."""
    return CliRunner().invoke(app, ["sweep", *map(str, arguments)])


_HELD = """
import runpy, signal, sys, time

at, suffix, module = int(sys.argv.pop(1)), sys.argv.pop(1), sys.argv.pop(1)
seen = 0


def hold(event, arguments):
    global seen
    if event in ("os.rename", "os.link") and "/cells/" in str(arguments[1]) and str(arguments[1]).endswith(suffix):
        seen += 1
        if seen == at:
            # Handlers, set before it prints: a signal may reach any thread, and Python calls them in this one.
            got = []
            numbers = signal.SIGINT, signal.SIGTERM
            before = [signal.signal(number, lambda number, frame: got.append(number)) for number in numbers]
            print("held", flush=True)
            while not got:
                time.sleep(0.01)
            for number, handler in zip(numbers, before):
                signal.signal(number, handler)
            signal.raise_signal(got[0])


sys.addaudithook(hold)
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def held(*arguments: object, at: int, suffix: str = "", module: str = "fastcar_cli") -> subprocess.Popen[str]:
    """A program as a process that waits before it names file number `at` of its cells, of those with this suffix."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HELD, str(at), suffix, module, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_ENV,
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "held\n", process.communicate()
    return process


def started(*arguments: object, **kwargs: Any) -> subprocess.Popen[str]:
    """The command as a process that may be killed."""
    return subprocess.Popen(
        [sys.executable, "-m", "fastcar_cli", "sweep", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_ENV, **kwargs,
    )  # fmt: skip


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def timeless(folder: Path) -> dict[str, Any]:
    """results.json without what the clock and the machine decide."""
    data = results(folder)
    del data["machine"]
    for cell in data["cells"]:
        del cell["speed"]
    for line in data["summary"]:
        del line["decode_s"], line["speedup"]
    return data


def cell_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file of cells with its inode and time of change: equal where nothing was written again."""
    return {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in sorted((folder / "cells").iterdir())}
