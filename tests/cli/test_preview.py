"""`generate --preview`: frames in a terminal while they are decoded, and nothing of them anywhere else."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.cli.render import Preview, progress
from fastcar_cli.errors import RequestError
from fastcar_cli.media import read_frames

PROMPT = "a red ball on the grass"
SLEEPS = """
import time
from fastcar_cli.pipeline.pipeline import VideoPipeline
whole = VideoPipeline.stream
def slow(self, *arguments, **more):
    for frame in whole(self, *arguments, **more):
        yield frame
        if frame.index == 1:
            time.sleep(600)
VideoPipeline.stream = slow
from fastcar_cli.cli.app import main
main()
"""
"""The program, which sleeps when two frames are written."""


def _in_terminal(*arguments: str, stop_at: str | None = None) -> tuple[int, str]:
    """Exit status and output in a terminal of 80 x 24; Ctrl-C is pressed once it has shown a text."""
    pty = pytest.importorskip("pty", reason="needs a pseudo terminal")
    termios = pytest.importorskip("termios")
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor", COLUMNS="80", LINES="24")
        os.environ.pop("NO_COLOR", None)
        os.execv(sys.executable, [sys.executable, *arguments])
    if hasattr(termios, "tcsetwinsize"):  # from Python 3.11 on
        termios.tcsetwinsize(terminal, (24, 80))
    output = b""
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # of Linux, where the other side was closed
            break
        if not part:
            break
        output += part
        if stop_at is not None and stop_at.encode() in output:
            os.write(terminal, b"\x03")
            stop_at = None
    os.close(terminal)
    # Ctrl-C makes the terminal drop what is not read yet, and with it part of a character.
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), output.decode(errors="replace")


@pytest.mark.slow
def test_frames_show_in_a_terminal_and_the_video_is_the_same(tmp_path: Path) -> None:
    shown, plain = tmp_path / "shown.mp4", tmp_path / "plain.mp4"
    arguments = ["generate", PROMPT, "--seed", "1", "--frames", "2", "-o"]
    status, output = _in_terminal("-m", "fastcar_cli", *arguments, str(shown), "--preview")
    assert status == 0, output
    frame = read_frames(shown)[-1]
    # The last block of the last picture: two pixels of the frame, each of them a mean, in 24-bit colours.
    *_, last = re.finditer(r"\x1b\[38;2;(\d+);(\d+);(\d+);48;2;(\d+);(\d+);(\d+)m▀", output)
    assert np.abs(np.array(last.groups()[3:], int) - frame[-2:, -2:].mean((0, 1))).max() < 40
    assert CliRunner().invoke(app, [*arguments, str(plain)]).exit_code == 0
    assert shown.read_bytes() == plain.read_bytes()


@pytest.mark.slow
def test_ctrl_c_ends_the_preview_and_keeps_the_frames(tmp_path: Path) -> None:
    video = tmp_path / "a.mp4"
    status, output = _in_terminal(
        "-c", SLEEPS, "generate", PROMPT, "--seed", "1", "--preview", "-o", str(video), stop_at="▀"
    )
    assert status == 130, output
    assert "Traceback" not in output
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l"), "the cursor stays hidden"
    assert 1 <= len(read_frames(video)) <= 2


def test_without_a_terminal_one_note_says_so(tmp_path: Path) -> None:
    arguments = ["generate", PROMPT, "--frames", "1", "--preview", "-o", str(tmp_path / "a.gif")]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.exception
    assert done.stderr.count("no preview: standard error is not a terminal") == 1
    assert "▀" not in done.output


def test_a_preview_with_quiet_is_refused() -> None:
    done = CliRunner().invoke(app, ["generate", PROMPT, "--preview", "--quiet"])
    assert isinstance(done.exception, RequestError)
    assert "--preview has no effect with --quiet" in str(done.exception)


def _plain(color: int, high: int = 64, wide: int = 64) -> NDArray[np.uint8]:
    return np.full((high, wide, 3), color, np.uint8)


@pytest.mark.parametrize(("columns", "rows", "pictures", "high"), [(80, 24, 2, 19), (200, 60, 4, 24), (20, 8, 3, 3)])
def test_the_newest_frames_that_fit_are_shown(columns: int, rows: int, pictures: int, high: int) -> None:
    """Models that decode eight frames at once add them together."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=columns, height=rows)
    preview = Preview()
    for i in range(11):
        preview.add(_plain(20 * i))
    console.print(preview)
    lines = out.getvalue().splitlines()
    assert len(lines) == high
    colors = list(dict.fromkeys(re.findall(r"48;2;(\d+);", lines[0])))
    assert colors == [str(20 * i) for i in range(11 - pictures, 11)]
    assert lines[0].count("▀") == pictures * 2 * high


def test_pictures_wider_than_the_terminal_are_made_smaller() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=30, height=40)
    preview = Preview()
    preview.add(_plain(9, 640, 1024))
    console.print(preview)
    assert [line.count("▀") for line in out.getvalue().splitlines()] == [28] * 9


def test_the_bar_shows_what_is_above_it() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="truecolor", width=80, height=24)
    preview = Preview()
    with progress(console, above=preview) as bar:
        task = bar.add_task("decoding", total=2)
        preview.add(_plain(5))
        bar.update(task, completed=1)
        bar.refresh()
    assert out.getvalue().index("▀") < out.getvalue().rindex("decoding")
