from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.video import Writer, default_name, open_writer, read_frames, read_recipe

RECIPE = {"prompt": 'a "red" ball & <ü>', "seed": 7, "settings": {"model": "mini"}}


def _frames(count: int = 5, side: int = 64) -> np.ndarray:
    """A coarse pattern with a white square that moves."""
    y, x = np.mgrid[:side, :side]
    still = np.stack([x // 16 * 60, y // 16 * 60, np.full_like(x, 90)], -1).astype(np.uint8)
    frames = np.stack([still] * count)
    for t in range(count):
        frames[t, 16:32, 8 * t : 8 * t + 16] = 255
    return frames


@pytest.mark.parametrize(("name", "error"), [("a.mp4", 3.0), ("a.gif", 1.0), ("a", 0.0)])
def test_frames_and_recipe_come_back(tmp_path: Path, name: str, error: float) -> None:
    path, frames = tmp_path / name, _frames()
    with open_writer(path, fps=8, recipe=RECIPE) as writer:
        for f in frames:
            writer.add(f)
    back = read_frames(path)
    assert back.shape == frames.shape
    assert np.abs(back.astype(float) - frames).mean() <= error
    assert read_recipe(path) == RECIPE
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_scale(tmp_path: Path) -> None:
    with open_writer(tmp_path / "a.mp4", fps=8, scale=4, recipe=RECIPE) as writer:
        writer.add(_frames(1)[0])
    assert read_frames(tmp_path / "a.mp4").shape == (1, 256, 256, 3)


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "a"])
def test_an_interrupt_within_a_write_waits_for_the_frame(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = _frames(2)
    writer = open_writer(tmp_path / name, fps=8, recipe=RECIPE)
    write = type(writer)._write

    def interrupted(self: Writer, image: np.ndarray) -> None:
        signal.raise_signal(signal.SIGINT)
        write(self, image)

    writer.add(frames[0])
    monkeypatch.setattr(type(writer), "_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.add(frames[1])
    writer.close()
    assert len(read_frames(tmp_path / name)) == 2


def test_mp4_plays_in_a_browser(tmp_path: Path) -> None:
    import av

    with open_writer(tmp_path / "a.mp4", fps=12, recipe=RECIPE) as writer:
        for f in _frames(6):
            writer.add(f)
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert (stream.average_rate, stream.frames) == (12, 6)
    # The index stands before the data, so playing starts at once.
    data = (tmp_path / "a.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "a"])
def test_an_exception_leaves_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyError), open_writer(tmp_path / name, fps=8, recipe=RECIPE) as writer:
        writer.add(_frames(1)[0])
        raise KeyError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "a"])
def test_no_frame_no_file(tmp_path: Path, name: str) -> None:
    open_writer(tmp_path / name, fps=8, recipe=RECIPE).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "a"])
def test_a_failing_disk_is_told_and_leaves_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = open_writer(tmp_path / name, fps=8, recipe=RECIPE)
    writer.add(_frames(1)[0])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(writer), "_finish", full)
    with pytest.raises(RunError, match="No space left"):
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_survives_a_failed_run(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), open_writer(path, fps=8, recipe=RECIPE) as writer:
        writer.add(_frames(1)[0])
        raise KeyError
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("name", ["a.avi", "a.png", "no/a.mp4"])
def test_bad_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(RequestError):
        open_writer(tmp_path / name, fps=8, recipe=RECIPE)


def test_default_names_never_overwrite(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        path = default_name("A red Ball! (rolling)", 7, tmp_path)
        path.write_bytes(b"")
        names.append(path.name)
    assert names == ["a-red-ball-rolling-s7.mp4", "a-red-ball-rolling-s7-2.mp4", "a-red-ball-rolling-s7-3.mp4"]
    assert default_name("日本", 1, tmp_path).name == "video-s1.mp4"


@pytest.mark.parametrize("content", [b"", b"not a video"])
def test_a_file_without_recipe(tmp_path: Path, content: bytes) -> None:
    for name in ("x.mp4", "x.gif"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RequestError, match="no recipe"):
            read_recipe(tmp_path / name)
    with pytest.raises(RequestError, match="no such video"):
        read_recipe(tmp_path / "missing.mp4")
