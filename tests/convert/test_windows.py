"""Commands under the rules of Windows for open files, and names that it refuses."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.processes import Run
from support.windows import obey

from fastcar_cli.errors import RequestError
from fastcar_cli.media import read_frames
from fastcar_cli.media.writer import check_target
from fastcar_cli.models import load
from fastcar_cli.system.files import publish, publish_folder, refused_on_windows

BALL = ("a red ball", "--model", "mini", "--frames", "1", "--seed", "1")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="open files are listed the Linux way")


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "a", "new/"])
def test_generate_writes_and_replaces(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    obey(monkeypatch)
    (tmp_path / "a").mkdir()
    assert run("generate", *BALL, "-o", name).returncode == 0
    written = sorted(path.name for path in tmp_path.iterdir())
    assert written == (["a"] if name == "a" else sorted({"a", name.rstrip("/")}))
    if name == "a.mp4":
        done = run("generate", *BALL, "-o", name, "--force")
        assert done.returncode == 0 and len(read_frames(tmp_path / name)) == 1


def test_sweep_and_many(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obey(monkeypatch)
    sweep = ("sweep", *BALL[:5], "--tau", "off", "--repeats", "1", "-o", "sweep")
    for _ in range(2):
        done = run(*sweep)
        assert done.returncode == 0, done.stderr
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".") and "fastcar" in path.name]


def test_convert_renames_its_folder(make: Callable[..., Path], run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make()
    obey(monkeypatch)
    done = run("convert", str(source), "-o", "out", "--dtype", "int8")
    assert done.returncode == 0, done.stderr
    assert load("out").network.weight_format == "int8"
    assert not [path for path in Path("out").iterdir() if path.name.startswith(".")]


def test_a_folder_of_frames_replaces_an_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    obey(monkeypatch)
    for number, wanted in enumerate(("a", "a-2", "a-3")):
        (tmp_path / "hidden").mkdir()
        (tmp_path / "hidden" / f"{number}.png").touch()
        if number == 0:
            (tmp_path / "a").mkdir()
        assert publish_folder(tmp_path / "hidden", tmp_path / "a").name == wanted
        assert [file.name for file in (tmp_path / wanted).iterdir()] == [f"{number}.png"]


def test_a_finished_file_is_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: list[int] = []
    with monkeypatch.context() as patch:
        obey(patch)
        refusing, target = os.fsync, tmp_path / "a.txt"
        (tmp_path / "hidden").write_text("all")

        def fsync(descriptor: int) -> None:
            refusing(descriptor)
            flushed.append(descriptor)

        patch.setattr(os, "fsync", fsync)
        patch.setattr(os, "name", "nt")
        publish(tmp_path / "hidden", target, new=True)
    assert target.read_text() == "all" and len(flushed) == 1


@pytest.mark.parametrize(
    "name", ["a:b.mp4", "who?.gif", 'say "a".mp4', "con.mp4", "NUL", "Com1.gif", "a.", "a ", "a\tb"]
)
def test_names_that_windows_refuses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refused_on_windows(name)
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RequestError, match="Windows"):
        check_target(Path(name))


@pytest.mark.parametrize("name", ["a.mp4", "console.mp4", "nul-s1.gif", ".hidden", "ä ball", "com10", "aux1.mp4"])
def test_names_that_windows_takes(name: str) -> None:
    assert refused_on_windows(name) is None
