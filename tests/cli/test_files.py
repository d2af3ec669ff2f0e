"""Files: tables as CSV, file systems without fsync, names with colons."""

from __future__ import annotations

import csv
import errno
import io
import os
from pathlib import Path

import pytest
from support.processes import Run

from fastcar_cli.errors import RunError
from fastcar_cli.media import read_frames
from fastcar_cli.system.files import csv_of, write_whole


@pytest.mark.parametrize("text", ["=1+1", "+a", "-x", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_text_is_no_formula(text: str) -> None:
    [header, row] = csv.reader(io.StringIO(csv_of(["=id", "tau"], [[text, -2.5]]), newline=""))
    assert header == ["'=id", "tau"]
    assert row == [f"'{text}", "-2.5"]


def test_other_cells_stay() -> None:
    row = ["a - b", "", None, -1, float("-inf"), True, 'a "ball", red']
    [_, back] = csv.reader(io.StringIO(csv_of(["a"] * 7, [row]), newline=""))
    assert back == ["a - b", "", "", "-1", "-inf", "True", 'a "ball", red']


@pytest.mark.parametrize(
    ("number", "whole"),
    [(errno.EINVAL, True), (errno.EBADF, True), (errno.ENOTSUP, True), (errno.ENOSPC, False), (errno.EIO, False)],
)
def test_a_file_system_without_fsync_has_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, whole: bool
) -> None:
    def fsync(file: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fsync)
    if whole:
        write_whole(tmp_path / "a.txt", "all of it")
        assert [file.read_text() for file in tmp_path.iterdir()] == ["all of it"]
    else:
        with pytest.raises(RunError, match="could not be written"):
            write_whole(tmp_path / "a.txt", "all of it")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows allows no colon in a name")
def test_a_colon_in_a_name_is_not_a_protocol(run: Run, tmp_path: Path) -> None:
    (tmp_path / "2026-11-28T03:45").mkdir()
    for name in ("12:30.mp4", "2026-11-28T03:45/a:b|c.mp4"):
        done = run("generate", "a red ball", "--frames", "1", "--seed", "1", "-o", name)
        assert done.returncode == 0, done.stderr
        assert len(read_frames(Path(name))) == 1
