"""What a terminal, a log or a sandbox changes of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.processes import Run
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.system import limits


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_a_sandbox_without_proc_is_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NEEDED", (tmp_path / "cpuinfo",))
    done = CliRunner().invoke(app, ["generate", "a red ball", "--model", "mini", "-o", str(tmp_path / "a.mp4")])
    assert f"this sandbox hides {tmp_path / 'cpuinfo'}" in str(done.exception)
    assert "bwrap --proc /proc" in str(getattr(done.exception, "hint", ""))


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--help",)])
def test_pipes_get_no_escape_sequences(run: Run, arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "GITHUB_ACTIONS"):
        monkeypatch.setenv(name, "1")
    done = run("generate", "a red ball zzz", "--model", "mini", "--frames", "1", *arguments)
    assert done.returncode == 0 and done.stdout and "\x1b" not in done.stdout + done.stderr
