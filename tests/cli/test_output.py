"""Where what the program says goes: results to standard output, the rest to standard error."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import Run

FASTCAR = [sys.executable, "-m", "fastcar_cli"]
SHELL = f'set -- {sys.executable} -m fastcar_cli "$@"; '
ONE_FRAME = ("generate", "a red ball", "--seed", "1", "--frames", "1")


def _shell(command: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run fastcar with these arguments as "$@" of a shell's command."""
    return subprocess.run(["sh", "-c", SHELL + command, "sh", *arguments], capture_output=True, text=True, cwd=folder)


def test_results_and_notes_have_a_stream_each(run: Run) -> None:
    done = run(*ONE_FRAME, "--sinks", "2", "-o", "a.mp4")
    assert done.returncode == 0 and "tokens/s" in done.stdout and "--sinks has no effect" in done.stderr
    assert "note" not in done.stdout and "tokens/s" not in done.stderr
    assert run(*ONE_FRAME, "--dry-run").stdout.count("weights") == 1
    assert "paper-u280" in run("fpga", "--table").stdout


@pytest.mark.slow
@pytest.mark.parametrize("columns", ["0", "20", "1" + 12 * "0", "\u00b2", ""])
def test_the_path_is_never_cut(run: Run, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    name = f"{'long-name-' * 12}.gif"
    monkeypatch.setenv("COLUMNS", columns)
    done = run(*ONE_FRAME, "-o", name)
    assert done.returncode == 0 and f"file: {name}\n" in done.stdout
    assert "--tau" in run("generate", "--help").stdout
    done = run("generate", "--prompts", "none")
    assert done.returncode == 2 and "there is no such" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_closed_stream_changes_nothing(tmp_path: Path, stream: str) -> None:
    done = _shell(f'"$@" {stream}>&-', tmp_path, *ONE_FRAME, "-o", "a.gif")
    assert (done.returncode, [p.name for p in tmp_path.iterdir()]) == (0, ["a.gif"]), done.stderr
    assert (tmp_path / "a.gif").read_bytes().startswith(b"GIF89a")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output_is_said(tmp_path: Path) -> None:
    done = _shell('"$@" >/dev/full', tmp_path, "config")
    assert (done.returncode, done.stderr) == (0, "note: standard output is not complete: No space left on device\n")


@pytest.mark.slow
def test_a_file_that_grows_too_large_is_one_error(tmp_path: Path) -> None:
    done = _shell('ulimit -f 1; exec "$@"', tmp_path, *ONE_FRAME, "-q", "-o", "a.mp4")
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 3
    assert "a.mp4 could not be written: File too large" in done.stderr and not [*tmp_path.iterdir()]


def test_a_reader_that_leaves_changes_nothing(tmp_path: Path) -> None:
    done = _shell('{ "$@"; echo "status $?" >&2; } | true', tmp_path, "config", "--keys")
    assert done.stderr == "status 0\n"


def test_a_removed_folder_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = _shell('cd gone && rmdir ../gone && "$@"', tmp_path, *ONE_FRAME, "-o", str(tmp_path / "a.gif"))
    assert done.returncode == 2 and "the current folder can't be used" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["generate"], ["sweep", "-o", "s"], ["config", "--config"], ["fpga"]])
def test_bytes_that_are_no_text_are_refused_first(tmp_path: Path, arguments: list[str]) -> None:
    done = subprocess.run([*FASTCAR, *arguments, b"a red caf\xe9"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and "a red caf? is not UTF-8" in done.stderr and not any(tmp_path.iterdir())


@pytest.mark.slow
def test_tables_as_csv_and_markdown(run: Run) -> None:
    shown = run("fpga", "--replay", "0,0.5", "--format", "csv").stdout
    title, *lines = shown.splitlines()
    rows = [*csv.DictReader(io.StringIO("\n".join(lines)))]
    assert title.startswith("# paper-u280") and [row["replay"] for row in rows] == ["0.0%", "50.0%"]
    shown = run("fpga", "--replay", "0,0.5", "--format", "md").stdout
    cells = [line.strip("| ").split(" | ") for line in shown.splitlines() if line.startswith("|")]
    assert [line[0] for line in cells] == ["replay", "---", "0.0%", "50.0%"]
    facts = run(*ONE_FRAME, "--format", "csv", "-o", "a.gif").stdout
    assert ["file", "a.gif"] in [*csv.reader(io.StringIO(facts))]


@pytest.mark.slow
def test_json_is_a_format_too(run: Run) -> None:
    assert run("fpga", "--format", "json").stdout == run("fpga", "--json").stdout != ""
    for arguments in (["--json", "--format", "csv"], ["--format", "jsn"]):
        done = run("fpga", *arguments)
        assert done.returncode == 2 and "--format" in done.stderr and not done.stdout


def test_a_package_that_can_not_be_loaded_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    done = run(*ONE_FRAME, "-o", "a.mp4")
    assert done.returncode == 1 and "a package can't be loaded: import of av" in done.stderr


def test_a_message_of_any_length_is_short(run: Run) -> None:
    Path("a.yaml").write_text("model: |\n" + "  a line\n" * 5000)
    done = run("generate", "a red ball", "--config", "a.yaml")
    assert done.returncode == 2 and len(done.stderr) < 5000 and os.linesep in done.stderr
