from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.media import default_name, open_writer, read_frames, read_recipe
from fastcar_cli.system.files import write_whole
from fastcar_cli.system.signals import status, stop_on_signals, uninterrupted

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


@pytest.mark.parametrize(("name", "height", "width"), [("a.mp4", 4, 8), ("a.gif", 5, 9), ("a", 5, 9)])
def test_a_writer_knows_the_size_of_what_it_wrote(tmp_path: Path, name: str, height: int, width: int) -> None:
    with open_writer(tmp_path / name, fps=8, recipe=RECIPE) as writer:
        writer.add(np.zeros((5, 9, 3), np.uint8))
    assert (writer.height, writer.width) == (height, width) == read_frames(writer.path).shape[1:3]


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "a"])
def test_frames_that_are_equal_stay_apart(tmp_path: Path, name: str) -> None:
    frames = _frames(2)[[0, 0, 1, 1, 1, 0]]
    with open_writer(tmp_path / name, fps=8, recipe=RECIPE) as writer:
        for f in frames:
            writer.add(f)
    back = read_frames(tmp_path / name)
    assert back.shape == frames.shape and np.abs(back.astype(float) - frames).mean() <= 3


@pytest.mark.parametrize("fps", [1, 7, 8, 24, 30, 50])
def test_a_gif_takes_as_long_as_its_frames(tmp_path: Path, fps: int) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (fps, 8, 8, 3), np.uint8)
    with open_writer(tmp_path / "a.gif", fps=fps, recipe=RECIPE) as writer:
        for f in frames:
            writer.add(f)
    with Image.open(tmp_path / "a.gif") as image:
        delays = [frame.info["duration"] for frame in ImageSequence.Iterator(image)]
    assert len(delays) == fps and sum(delays) == 1000 and max(delays) - min(delays) <= 10


def test_a_gif_faster_than_viewers_show_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="60 frames per second"):
        open_writer(tmp_path / "a.gif", fps=60, recipe=RECIPE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "a"])
def test_a_signal_within_a_write_waits_for_the_frame(
    tmp_path: Path, name: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = _frames(2)
    writer = open_writer(tmp_path / name, fps=8, recipe=RECIPE)

    @contextlib.contextmanager
    def interrupted() -> Iterator[None]:
        with uninterrupted():
            signal.raise_signal(number)
            yield

    writer.add(frames[0])
    monkeypatch.setattr("fastcar_cli.media.writer.uninterrupted", interrupted)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    # Whoever runs the tests may ignore either signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        stop_on_signals()
        with pytest.raises(KeyboardInterrupt) as stopped:
            writer.add(frames[1])
    finally:
        for n, handler in handlers.items():
            signal.signal(n, handler)
        monkeypatch.undo()
    assert status(stopped.value) == 128 + number
    writer.close()
    assert len(read_frames(tmp_path / name)) == 2


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with uninterrupted():
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            signal.raise_signal(signal.SIGINT)
        # A signal that the block held back would be raised here, under this handler.
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_held_signal_is_raised_after_the_block() -> None:
    inside = False
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(signal.SIGINT)
        inside = True
    assert inside


def test_mp4_plays_in_a_browser(tmp_path: Path) -> None:
    import av

    with open_writer(tmp_path / "a.mp4", fps=12, recipe=RECIPE) as writer:
        for f in _frames(6):
            writer.add(f)
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert stream.average_rate == 12 and stream.frames == 6
    # The index is before the data, so playing starts at once.
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
def test_a_failing_disk_is_reported_and_leaves_nothing(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_writer(tmp_path / name, fps=8, recipe=RECIPE)
    writer.add(_frames(1)[0])

    def full(*_: object, **options: object) -> None:
        raise OSError(28, "No space left on device")

    for last in ("publish", "publish_folder"):
        monkeypatch.setattr(f"fastcar_cli.system.files.{last}", full)
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


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("suffix", [".mp4", ".gif", ""])
def test_runs_that_start_together_keep_their_files(
    tmp_path: Path, suffix: str, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:

        def none(*_: object, **__: object) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr(os, "link", none)
    path = default_name("A red Ball! (rolling)", 7, tmp_path, suffix)
    writers = [open_writer(path, fps=8, recipe={**RECIPE, "seed": i}, new=True) for i in range(3)]
    for i, writer in enumerate(writers):
        for image in _frames(i + 1):
            writer.add(image)
    for writer in writers:
        writer.close()
    stem = "a-red-ball-rolling-s7"
    assert [w.path.name for w in writers] == [f"{stem}{suffix}", f"{stem}-2{suffix}", f"{stem}-3{suffix}"]
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(w.path.name for w in writers)
    for i, writer in enumerate(writers):
        assert len(read_frames(writer.path)) == i + 1
        assert read_recipe(writer.path)["seed"] == i


def test_a_name_that_can_not_be_given_is_free_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    writer = open_writer(tmp_path / "a.mp4", fps=8, recipe=RECIPE, new=True)
    writer.add(_frames(1)[0])
    monkeypatch.setattr(os, "link", fails)
    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(RunError, match="Input/output error"):
        writer.close()
    assert list(tmp_path.iterdir()) == []


def test_default_names() -> None:
    assert default_name("A red ball, rolling!", 7).name == "a-red-ball-rolling-s7.mp4"
    assert default_name("日本", 1).name == "日本-s1.mp4"
    assert default_name("un café à Orléans", 1).name == "un-café-à-orléans-s1.mp4"
    assert default_name("../..", 1).name == "video-s1.mp4"
    assert len(os.fsencode(default_name("猫" * 300, 1).name)) < 200


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "a"])
def test_files_have_the_permissions_of_the_umask(tmp_path: Path, name: str) -> None:
    before = os.umask(0o027)
    try:
        with open_writer(tmp_path / name, fps=8, recipe=RECIPE) as writer:
            writer.add(_frames(1)[0])
    finally:
        os.umask(before)
    assert (tmp_path / name).stat().st_mode & 0o777 == (0o750 if name == "a" else 0o640)


def test_nothing_changes_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(mask: int) -> int:
        raise AssertionError("the umask belongs to the whole process")

    monkeypatch.setattr(os, "umask", changed)
    with open_writer(tmp_path / "a.gif", fps=8, recipe=RECIPE) as writer:
        writer.add(_frames(1)[0])
    write_whole(tmp_path / "a.json", "{}")
    assert (tmp_path / "a.json").read_text() == "{}"


@pytest.mark.parametrize("content", [b"", b"not a video"])
def test_a_file_without_recipe(tmp_path: Path, content: bytes) -> None:
    for name in ("x.mp4", "x.gif"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(RequestError, match="no fastcar recipe"):
            read_recipe(tmp_path / name)
    with pytest.raises(RequestError, match="no such video"):
        read_recipe(tmp_path / "missing.mp4")
