"""Output under symbolic links, which stay, and the modes of what is written."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.errors import RequestError
from fastcar_cli.media import open_writer
from fastcar_cli.system.files import write_whole

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs POSIX links and modes")


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _write(path: Path) -> Path:
    with open_writer(path, fps=8, recipe={"prompt": "a", "seed": 1, "settings": {}}) as writer:
        writer.add(np.zeros((16, 16, 3), np.uint8))
    return writer.path


@pytest.mark.parametrize("name", ["video.mp4", "video.gif", "frames"])
def test_a_link_stays_and_its_target_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / "far").mkdir()
    link, target = tmp_path / name, tmp_path / "far" / f"target{Path(name).suffix}"
    link.symlink_to(Path("far") / target.name)
    assert _write(link) == link
    assert link.is_symlink() and target.exists() and not target.is_symlink()
    assert _mode(target) == (0o750 if target.is_dir() else 0o640)
    assert [p.name for p in (tmp_path / "far").iterdir()] == [target.name]


@pytest.mark.parametrize("name", ["video.mp4", "frames"])
def test_the_mode_of_what_is_replaced_stays(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch() if path.suffix else path.mkdir()
    path.chmod(0o604 if path.suffix else 0o705)
    _write(path)
    assert _mode(path) == (0o604 if path.suffix else 0o705)
    if not path.suffix:
        assert {_mode(p) for p in path.iterdir()} == {0o640}


def test_texts_follow_links_too(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("target.json")
    write_whole(tmp_path / "link.json", "1")
    (tmp_path / "target.json").chmod(0o600)
    write_whole(tmp_path / "link.json", "2")
    assert (tmp_path / "link.json").is_symlink() and (tmp_path / "target.json").read_text() == "2"
    assert _mode(tmp_path / "target.json") == 0o600


def test_generate_sets_aside_what_the_link_leads_to(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    link = tmp_path / "link.mp4"
    link.symlink_to("far/target.mp4")
    for seed in ("1", "2"):
        arguments = ["generate", "a red ball", "--model", "mini", "--frames", "1", "--seed", seed, "-o", str(link)]
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert link.is_symlink()
    assert sorted(p.name for p in (tmp_path / "far").iterdir()) == ["target-2.mp4", "target.mp4"]


def test_a_link_to_a_missing_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link.mp4").symlink_to("gone/video.mp4")
    with pytest.raises(RequestError, match="gone does not exist"):
        _write(tmp_path / "link.mp4")
