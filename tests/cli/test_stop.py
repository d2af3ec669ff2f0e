"""Runs that are stopped, and runs that somebody waits for: signals, and progress without a terminal."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.core import TyperCommand
from typer.testing import CliRunner

from fastcar_cli import Frame
from fastcar_cli.cli import render
from fastcar_cli.cli.app import app
from fastcar_cli.media import read_frames
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.system.signals import Terminated

PROMPT = "a red ball on the grass"
SLOW = """
import os, signal, time
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("SIGTERM", "SIGHUP", "SIGXCPU", "SIGUSR1"):
    if os.environ.get("IGNORED") != name:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
from pathlib import Path
from fastcar_cli.pipeline.pipeline import VideoPipeline
whole = VideoPipeline.stream
def slow(self, prompts, *arguments, **more):
    for n, frame in enumerate(whole(self, prompts, *arguments)):
        if n == int(os.environ["FRAMES"]) * len(prompts):
            Path(os.environ["READY"]).touch()
            time.sleep(600)
        yield frame
VideoPipeline.stream = slow
from fastcar_cli.cli.app import main
main()
"""
"""The program with signals as a terminal sets them, which sleeps where every video has so many frames."""


def _stopped(folder: Path, frames: int, number: signal.Signals, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and error of a run that got the signal in its sleep."""
    ready = folder.parent / f"{folder.name}-ready"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *arguments],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "FRAMES": str(frames), "READY": str(ready), "COLUMNS": "200"},
    )  # fmt: skip
    while not ready.exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(number)
    stdout, stderr = process.communicate()
    assert "Traceback" not in stderr
    return process.returncode, stdout, stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGINT, signal.SIGXCPU, signal.SIGUSR1)),
        signal.SIGHUP,
        signal.SIGTERM,
    ],
)
def test_a_signal_keeps_finished_frames_under_json(tmp_path: Path, number: signal.Signals) -> None:
    arguments = ["generate", PROMPT, "--samples", "3", "--seed", "1", "-o", "out", "--json"]
    status, stdout, stderr = _stopped(tmp_path, 2, number, *arguments)
    assert status == 128 + number, stderr
    assert "2 finished frames are saved" in stderr
    videos = json.loads(stdout)["videos"]
    assert [v["video"]["frames"] for v in videos] == [2, 2, 2]
    files = [tmp_path / v["video"]["path"] for v in videos]
    assert all(len(read_frames(f)) == 2 for f in files)
    assert {*(tmp_path / "out").iterdir()} == {*files, *(f.with_suffix(".json") for f in files)}


EARLY = """
import os, signal, sys
number = int(sys.argv.pop())
signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
from fastcar_cli.cli import app
parse = app.Commands.parse_args
app.Commands.parse_args = lambda *given: os.kill(os.getpid(), number) or parse(*given)
app.main()
"""


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_arguments_are_read_sets_the_status(number: signal.Signals) -> None:
    command = [sys.executable, "-c", EARLY, "models", str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 128 + number, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_sigterm_before_the_first_frame_leaves_nothing(tmp_path: Path) -> None:
    status, stdout, stderr = _stopped(tmp_path, 0, signal.SIGTERM, "generate", PROMPT, "--samples", "2")
    assert (status, stdout) == (128 + signal.SIGTERM, "")
    assert "no frame was finished" in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_sigterm_keeps_the_cells_of_a_sweep(tmp_path: Path) -> None:
    arguments = ["sweep", PROMPT, "--tau", "-1", "--frames", "2", "--repeats", "1", "--metrics", "psnr", "-o", "out"]
    # It sleeps after the first frame that it decodes, before any cell is finished.
    status, _, stderr = _stopped(tmp_path, 1, signal.SIGTERM, *arguments, "--json")
    assert status == 128 + signal.SIGTERM, stderr
    assert "0 cells are saved" in stderr
    assert list((tmp_path / "out" / "cells").iterdir()) == []


AT = """
import atexit, importlib.abc, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
for name in ("SIGTERM", "SIGHUP", "SIGXCPU", "SIGUSR1"):
    if os.environ.get("IGNORED") != name:
        signal.signal(getattr(signal, name), signal.SIG_DFL)
number, where = int(os.environ["NUMBER"]), os.environ["WHERE"]
class Signal(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == where:
            os.kill(os.getpid(), number)
sys.meta_path.insert(0, Signal())
if where == "the end":
    atexit.register(os.kill, os.getpid(), number)
from fastcar_cli.__main__ import run
run()
"""
"""The program, which gets a signal where it imports a module, or where Python ends it."""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("where", ["fastcar_cli.cli.app", "typer", "fastcar_cli.cli.config", "yaml", "the end"])
def test_a_signal_in_an_import_or_at_the_end_is_a_line_at_most(where: str, number: signal.Signals) -> None:
    environment = {**os.environ, "WHERE": where, "NUMBER": str(int(number)), "COLUMNS": "80"}
    arguments = [sys.executable, "-c", AT, "config"]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=False)
    assert len(done.stderr.splitlines()) <= 1
    if where == "the end":
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith("\n")
    else:
        # The system ends a program that does not handle SIGTERM yet.
        assert done.returncode in ((143, -15) if number == signal.SIGTERM else (130,))
        assert done.stdout == ""
        assert done.returncode < 0 or "stopped" in done.stderr


@pytest.mark.parametrize(("stop", "status"), [(KeyboardInterrupt, 130), (Terminated, 143)])
@pytest.mark.parametrize("command", [["profile"], ["fpga"], ["config"], ["train", "-o", "out"]])
def test_every_command_ends_as_it_was_stopped(
    command: list[str], stop: type[KeyboardInterrupt], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise stop

    monkeypatch.setattr(TyperCommand, "invoke", stopped)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == status
    assert "stopped" in done.stderr


def test_a_log_gets_a_plain_line_a_minute() -> None:
    out, now = io.StringIO(), [0.0]
    with render.progress(Console(file=out, width=200, markup=False, get_time=lambda: now[0]), "frames") as bar:
        task = bar.add_task("decoding", total=8)
        for second in range(0, 241, 20):
            now[0] = float(second)
            bar.update(task, completed=second / 30)
    assert out.getvalue().splitlines() == [
        "decoding: 25 % of 8 frames, 1 min, about 3 min left",
        "decoding: 50 % of 8 frames, 2 min, about 2 min left",
        "decoding: 75 % of 8 frames, 3 min, about 1 min left",
        "decoding: 100 % of 8 frames, 4 min",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_json_shows_progress_on_a_terminal(tmp_path: Path, terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = io.StringIO()

    def console(quiet: bool = False) -> Console:
        return Console(file=printed, quiet=quiet, force_terminal=terminal, markup=False, emoji=False)

    monkeypatch.setattr("fastcar_cli.cli.generate.console", console)
    arguments = ["generate", PROMPT, "--json", "--frames", "1", "-o", str(tmp_path / "a.gif")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["video"]["frames"] == 1
    assert ("decoding" in printed.getvalue()) == terminal


def test_an_error_within_a_run_is_no_lack_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: VideoPipeline, *arguments: Any, **more: Any) -> Iterator[Frame]:
        yield from ()
        raise RuntimeError("the allocation of rows failed")

    monkeypatch.setattr(VideoPipeline, "stream", broken)
    done = CliRunner().invoke(app, ["generate", PROMPT, "-o", str(tmp_path / "a.mp4")])
    assert isinstance(done.exception, RuntimeError)
    assert list(tmp_path.iterdir()) == []
