"""Clips out of every kind of input: the frames and actions that were requested, or one sentence that says why not."""

from __future__ import annotations

import io
import json
import pickle
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from support.paths import GOLDEN_FRAMES as SHARED

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.actions import read_actions
from fastcar_cli.inputs.clip import Excerpt, Wanted, read_clip, resized
from fastcar_cli.media import open_writer
from fastcar_cli.media.reader import frames_of


def _frames(count: int = 6, height: int = 32, width: int = 32) -> np.ndarray:
    """Frames whose number can be read off: a bar that moves over a coarse pattern."""
    y, x = np.mgrid[:height, :width]
    frames = np.stack([np.stack([x // 8 * 30, y // 8 * 30, np.full_like(x, 9)], -1)] * count).astype(np.uint8)
    for t in range(count):
        frames[t, :, t * 4 : t * 4 + 4] = 250
    return frames


def _wanted(**changes: Any) -> Wanted:
    return Wanted(**{"model": "m", "frames": 4, "context": 2, "height": 32, "width": 32, **changes})


def _written(path: Path, frames: np.ndarray) -> Path:
    """A file or folder with these frames, by the name's suffix."""
    if path.suffix == ".npz":
        np.savez(path, image=frames)
    elif path.suffix == ".npy":
        np.save(path, frames)
    elif path.suffix == ".webp":
        first, *rest = map(Image.fromarray, frames)
        first.save(path, save_all=True, append_images=rest, lossless=True)
    else:
        with open_writer(path, fps=8, recipe={}) as writer:
            for f in frames:
                writer.add(f)
    return path


@pytest.mark.parametrize(
    ("name", "error"), [("a", 0), ("a.npz", 0), ("a.npy", 0), ("a.webp", 0), ("a.gif", 1), ("a.mp4", 4)]
)
def test_every_kind_gives_its_frames(tmp_path: Path, name: str, error: float) -> None:
    frames = _frames()
    clip = read_clip(_written(tmp_path / name, frames), _wanted(start=1))
    assert clip.frames.dtype == np.uint8 and clip.indices == (1, 2, 3, 4)
    assert (clip.clip.name, clip.source_size, clip.clip.actions) == (name, (32, 32), None)
    assert np.abs(clip.frames.astype(float) - frames[1:5]).mean() <= error


@settings(max_examples=40)
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 3), st.integers(0, 4), st.integers(1, 3), st.booleans())
@example(3, 16, 2, 0, 1, False)
def test_frames_by_start_and_step(count: int, frames: int, context: int, start: int, step: int, whole: bool) -> None:
    source = np.arange(count, dtype=np.int64)[:, None, None, None] * np.ones((1, 2, 2, 3), np.int64)
    wanted = _wanted(frames=frames, context=context, start=start, step=step, whole=whole, height=2, width=2)
    there = list(range(count))[start::step][:frames]
    with tempfile.TemporaryDirectory() as folder:
        file = _written(Path(folder) / "a.npz", source)
        if len(there) == frames or (len(there) == context and not whole):
            clip = read_clip(file, wanted)
            assert list(clip.indices) == there == clip.frames[:, 0, 0, 0].tolist()
        else:
            with pytest.raises(
                RequestError, match=f"has {count} frames?, expected {start + (frames - 1) * step + 1}\\b"
            ):
                read_clip(file, wanted)


def test_the_goal_comes_first(tmp_path: Path) -> None:
    file = _written(tmp_path / "a.npy", _frames())
    clip = read_clip(file, _wanted(goal=True, start=1))
    assert clip.indices == (4, 1, 2, 3) and (clip.frames == _frames()[[4, 1, 2, 3]]).all()
    assert read_clip(file, _wanted(goal=True, start=4)).indices == (5, 4)


def test_a_clip_that_is_too_short_says_what_would_do(tmp_path: Path) -> None:
    file = _written(tmp_path / "a.mp4", _frames(3))
    with pytest.raises(RequestError) as e:
        read_clip(file, _wanted(frames=16))
    assert str(e.value) == f"`input` {file}: has 3 frames, expected 16, or at least 2 for the context"
    assert e.value.hint == "give a longer clip, or `frames` 3"
    for apart, need in (
        ({"start": 2}, "18 to read 16 of them from index 2"),
        ({"step": 3}, "46 to read 16 of them in steps of 3"),
        ({"start": 1, "step": 2}, "32 to read 16 of them from index 1 in steps of 2"),
    ):
        with pytest.raises(RequestError, match=f"has 3 frames, expected {need}, or at least 2"):
            read_clip(file, _wanted(frames=16, **apart))


def test_a_picture_is_a_context_of_one_frame(tmp_path: Path) -> None:
    Image.fromarray(_frames(1, 40, 30)[0]).save(tmp_path / "a.jpg")
    clip = read_clip(tmp_path / "a.jpg", _wanted(context=1))
    assert clip.frames.shape == (1, 32, 32, 3) and clip.source_size == (40, 30)
    with pytest.raises(RequestError, match="has 1 frame, expected 4, or at least 2 for the context"):
        read_clip(tmp_path / "a.jpg", _wanted())


def test_pictures_of_a_folder_come_by_number_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    frames = _frames(12, 32, 64)
    for t, image in enumerate(frames):
        Image.fromarray(image).save(tmp_path / f"frame{t}.png")
    (tmp_path / "recipe.json").write_text("{}")
    (tmp_path / ".frame0.png").write_text("hidden")
    assert (np.stack(list(frames_of(tmp_path))) == frames).all()


def test_pictures_are_seen_as_they_are_meant(tmp_path: Path) -> None:
    turned = Image.fromarray(_frames(1, 20, 30)[0])
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(tmp_path / "turned.png", exif=exif)
    assert next(iter(frames_of(tmp_path / "turned.png"))).shape == (30, 20, 3)
    Image.new("L", (5, 4), 77).save(tmp_path / "grey.png")
    assert (next(iter(frames_of(tmp_path / "grey.png"))) == np.full((4, 5, 3), 77)).all()
    Image.fromarray(np.full((4, 5), 7000, np.uint16)).save(tmp_path / "deep.png")
    with pytest.raises(RequestError, match="more than 8 bits"):
        list(frames_of(tmp_path / "deep.png"))


def test_frames_of_one_size_only(tmp_path: Path) -> None:
    for name, side in (("a.png", 32), ("b.png", 30)):
        Image.new("RGB", (side, 32)).save(tmp_path / name)
    with pytest.raises(RequestError, match="frame 1 has 30 x 32 pixels, but the first frame has 32 x 32"):
        list(frames_of(tmp_path))


@pytest.mark.parametrize("dtype", ["uint8", "int64", "<f8", ">i2", "float16"])
def test_numbers_of_any_type(tmp_path: Path, dtype: str) -> None:
    np.savez(tmp_path / "a.npz", aux1_image=_frames().astype(dtype), action=np.zeros((6, 4)))
    assert (read_clip(tmp_path / "a.npz", _wanted(frames=6)).frames == _frames()).all()


def test_one_array_of_several(tmp_path: Path) -> None:
    file = tmp_path / "a.npz"
    np.savez_compressed(file, image=_frames(), aux1_image=_frames()[::-1], action=np.zeros((6, 4)))
    assert (read_clip(file, _wanted()).frames == _frames()[:4]).all()
    assert (read_clip(file, _wanted(), key="aux1_image").frames == _frames()[:1:-1]).all()
    with pytest.raises(RequestError, match="`key` rgb: .* has no such array") as e:
        read_clip(file, _wanted(), key="rgb")
    assert "aux1_image [6, 32, 32, 3]" in str(e.value.hint)
    np.savez(tmp_path / "b.npz", left=_frames(), right=_frames())
    with pytest.raises(RequestError, match="neither an array 'image' nor exactly one"):
        read_clip(tmp_path / "b.npz", _wanted())
    with pytest.raises(RequestError, match=r"is not an \.npz file"):
        read_clip(_written(tmp_path / "a.gif", _frames()), _wanted(), key="image")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (_frames()[..., 0], r"has shape \[6, 32, 32\], expected"),
        (_frames().transpose(0, 3, 1, 2), r"has shape \[6, 3, 32, 32\], expected"),
        (_frames() - 300.0, "frame 0 has values from -300"),
        (_frames().astype(int) * 1000, "frame 0 has values from "),
        (_frames() / 255.0, "has fractions from "),
        (np.full((6, 2, 2, 3), np.nan), "frame 0 has values from nan"),
        (_frames() > 9, "has dtype bool"),
        (np.zeros((6, 0, 2, 3)), "has shape"),
        (np.array(["a"]), "has shape"),
    ],
)
def test_arrays_that_are_no_frames(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.savez(tmp_path / "a.npz", image=array)
    with pytest.raises(RequestError, match=message):
        read_clip(tmp_path / "a.npz", _wanted())


class _Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path(tempfile.gettempdir()) / "fastcar-was-executed",))


def test_pickles_are_never_executed(tmp_path: Path) -> None:
    touched = Path(tempfile.gettempdir()) / "fastcar-was-executed"
    touched.unlink(missing_ok=True)
    bombs = np.full((6, 2, 2, 3), _Bomb(), object)
    np.savez(tmp_path / "a.npz", image=bombs, action=bombs[:, :, 0, 0])
    np.save(tmp_path / "a.npy", bombs)
    np.save(tmp_path / "b.npy", bombs[:, :, 0, 0])
    (tmp_path / "raw.npy").write_bytes(pickle.dumps(_Bomb()))
    (tmp_path / "raw.mp4").write_bytes(pickle.dumps(_Bomb()))
    for name in ("a.npz", "a.npy", "b.npy", "raw.npy", "raw.mp4"):
        with pytest.raises(RequestError) as refused:
            read_clip(tmp_path / name, _wanted())
        assert name == "raw.mp4" or "it holds Python objects, which fastcar does not load" in str(refused.value)
        with pytest.raises(RequestError):
            read_actions(tmp_path / name, 2, range(4))
    assert not touched.exists()


def test_a_header_may_claim_what_it_wants(tmp_path: Path) -> None:
    """Neither rows nor memory are taken before data are there."""
    for shape in ((10**12, 8, 8, 3), (4, 10**7, 10**7, 3), (4, -8, 8, 3)):
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, {"descr": "|u1", "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("image.npy", head.getvalue() + bytes(1000))
        with pytest.raises(RequestError):
            read_clip(tmp_path / "a.npz", _wanted(frames=8))


@pytest.mark.parametrize("name", ["a.mp4", "a.gif", "a.npz", "a.webp", "a.npy"])
def test_half_a_file(tmp_path: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (6, 32, 32, 3)).astype(np.uint8)
    file = _written(tmp_path / name, frames)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(RequestError):
        read_clip(file, _wanted(frames=6))


@pytest.mark.parametrize(("share", "said"), [(0.2, "at its first frame: "), (0.9, "after frame [3-5]: ")])
def test_a_cut_video_says_how_much_of_it_is_whole(tmp_path: Path, share: float, said: str) -> None:
    file = _written(tmp_path / "a.mp4", np.random.default_rng(0).integers(0, 255, (6, 32, 32, 3)).astype(np.uint8))
    with pytest.raises(RequestError, match=said):
        file.write_bytes(file.read_bytes()[: round(file.stat().st_size * share)])
        read_clip(file, _wanted(frames=6))


@settings(max_examples=60)
@given(
    st.binary(max_size=200),
    st.sampled_from(
        [b"", b"\x93NUMPY\x01\x00v\x00", b"PK\x03\x04", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"\0\0\0\x20ftypisom"]
    ),
    st.sampled_from([".npz", ".npy", ".mp4", ".png", ".gif", "", ".csv", ".json"]),
)
def test_any_bytes_are_a_request_error(data: bytes, start: bytes, suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"a{suffix}"
        file.write_bytes(start + data)
        with pytest.raises(RequestError) as e:
            read_clip(file, _wanted())
        assert "\n" not in str(e.value)
        with pytest.raises(RequestError):
            read_actions(file, 4, range(4))


@pytest.mark.parametrize("name", ["gone.mp4", "https://example.org/a.mp4", "empty"])
def test_nothing_there(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RequestError, match="no such file or folder|contains no image"):
        read_clip(tmp_path / name, _wanted())


def test_postscript_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would start Ghostscript for it."""
    (tmp_path / "gs").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "gs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 64 64\n%%EndComments\nshowpage\n")
    with pytest.raises(RequestError, match="is not a video or an image"):
        list(frames_of(tmp_path / "a.png"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("name", "said"), [("/dev/null", "a pipe or a device"), ("a.svg", "PyAV does not decode")])
def test_what_is_no_picture_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "a.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg' width='8' height='8'/>")
    with pytest.raises(RequestError, match=said):
        list(frames_of(tmp_path / name))


def test_text_and_playlists_are_no_videos(tmp_path: Path) -> None:
    for name in ("a.txt", "a.mp4", "a.m3u8"):
        (tmp_path / name).write_text("#EXTM3U\n#EXTINF:1,\n/etc/hostname\n")
        with pytest.raises(RequestError, match="is not a video or an image"):
            read_clip(tmp_path / name, _wanted())


def test_resizing_is_that_of_the_released_code() -> None:
    """The frames of an input file as the official NPZParser gives them."""
    if not (SHARED / "input.npz").exists():
        pytest.skip("no shared/golden-ivideogpt here")
    from safetensors.numpy import load_file

    records = load_file(str(SHARED / "golden.safetensors"))
    for i, case in enumerate(json.loads((SHARED / "golden.json").read_text())["npz"]):
        frames = list(frames_of(SHARED / "input.npz", case["key"]))
        chosen = np.stack([frames[case["source_frames"][t]] for t in case["recorded_frames"]])
        images = resized(chosen, case["resolution"], case["resolution"])
        assert np.abs(images.transpose(0, 3, 1, 2) - records[f"npz/{i}/images"]).max() < 1e-5
        step = case["source_frames"][1] - case["source_frames"][0]
        wanted = _wanted(
            frames=len(case["source_frames"]), start=case["source_frames"][0], step=step, height=64, width=64
        )
        clip = read_clip(SHARED / "input.npz", wanted, key=case["key"])
        assert list(clip.indices) == case["source_frames"]
        assert np.array_equal(clip.clip.frames[case["recorded_frames"]], images)


def test_frames_are_not_rounded_on_their_way_to_a_model(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).uniform(0, 255, (3, 8, 12, 3))
    np.save(tmp_path / "a.npy", frames)
    clip = read_clip(tmp_path / "a.npy", _wanted(frames=3, height=8, width=12))
    assert np.allclose(clip.clip.frames, frames / 255, atol=1e-6) and clip.frames.dtype == np.uint8


def test_a_clip_that_begins_nearly_black_is_no_clip_of_fractions(tmp_path: Path) -> None:
    frames = np.zeros((3, 8, 8, 3))
    frames[0, 0, 0], frames[1:] = 1.0, 200.0
    np.save(tmp_path / "a.npy", frames)
    assert read_clip(tmp_path / "a.npy", _wanted(frames=3, height=8, width=8)).frames.max() == 200


# Actions.

TABLE = np.arange(12, dtype=np.float64).reshape(6, 2) / 8


def _table(path: Path, table: np.ndarray, header: bool = False) -> Path:
    if path.suffix == ".npz":
        np.savez(path, action=table, other=np.zeros((3, 3, 3)))
    elif path.suffix == ".npy":
        np.save(path, np.asfortranarray(table))
    elif path.suffix == ".csv":
        lines = [",".join(map(str, row)) for row in table.tolist()]
        path.write_text("\n".join((["dx, dy"] if header else []) + lines) + "\n\n", encoding="utf-8-sig")
    else:
        path.write_text(json.dumps({"action": table.tolist()} if header else table.tolist()))
    return path


@pytest.mark.parametrize("header", [False, True])
@pytest.mark.parametrize("name", ["a.npz", "a.npy", "a.csv", "a.json"])
def test_actions_of_every_kind(tmp_path: Path, name: str, header: bool) -> None:
    rows = read_actions(_table(tmp_path / name, TABLE, header), 2, range(6))
    assert rows.dtype == np.float32 and rows.tolist() == TABLE.tolist()


@pytest.mark.parametrize(
    "text",
    ["\n # of a robot\nx,y\n\n1,0\n,\n,\n", "x;y\n1;0\n", "1\t0\n", ",\u2028\n1,0\n", '"a\nb",c\r\n1,0\r\n'],
)
def test_csv_as_programs_write_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.tsv").write_text(text, newline="")
    assert read_actions(tmp_path / "a.tsv", 2, range(2)).tolist() == [[1, 0], [0, 0]]


@settings(max_examples=40)
@given(st.integers(1, 14), st.integers(2, 5), st.integers(0, 3), st.integers(1, 3))
def test_rows_of_the_clip_or_of_the_input(count: int, frames: int, start: int, step: int) -> None:
    table = np.arange(count * 2, dtype=np.float32).reshape(count, 2)
    wanted = range(start, start + frames * step, step)
    rows = [*range(frames)] if count in (frames, frames - 1) else [*wanted]
    with tempfile.TemporaryDirectory() as folder:
        file = _table(Path(folder) / "a.csv", table)
        if rows[-2] >= count:
            with pytest.raises(RequestError, match=f"has {count} rows, expected {frames - 1}"):
                read_actions(file, 2, wanted)
            return
        found = read_actions(file, 2, wanted)
    assert found[:-1].tolist() == table[rows[:-1]].tolist()
    assert found[-1].tolist() == (table[rows[-1]].tolist() if rows[-1] < count else [0, 0])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "1,2\n3,x\n", "line 2 has 'x', expected numbers"),
        ("a.csv", "1,2,3\n" * 4, "row 0 has 3 numbers, but the model takes 2"),
        ("a.csv", "1,2\n1\n", "row 1 has 1 numbers"),
        ("a.csv", "1,2\n", "has 1 rows, expected 3: one for each of 4 frames except the last"),
        ("a.csv", "", "has 0 rows"),
        ("a.csv", "0x1,0x0\n1,2\n1,2\n1,2\n", "line 1 has '0x1', expected numbers"),
        ("a.csv", "1,2\n,\n1,2\n1,2\n", "line 2 has no numbers"),
        ("a.csv", "1,nan\n" * 4, "not finite"),
        ("a.csv", "1,1e39\n" * 4, "not finite"),
        ("a.json", "[1, 2]", "is not a list of lists of numbers"),
        ("a.json", '[["1", 2]]', "is not a list of lists of numbers"),
        ("a.json", "[[true, 2]]", "is not a list of lists of numbers"),
        ("a.json", '{"x": 1}', "is not a list of lists of numbers"),
        ("a.json", "[" * 100000, "is not valid JSON"),
        ("a.json", f"[[1, {'9' * 400}]]" + "\n", "is not a list of lists of numbers"),
        ("a.json", json.dumps([[1, 10**400]] * 4), "is not a list of lists of numbers"),
        ("a.yaml", "", "unknown suffix '.yaml'"),
    ],
)
def test_actions_that_do_not_fit(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(RequestError, match=message) as e:
        read_actions(tmp_path / name, 2, range(4))
    assert len(str(e.value)) < 250


def test_actions_are_no_device() -> None:
    with pytest.raises(RequestError, match="/dev/null: is a pipe or a device"):
        read_actions(Path("/dev/null"), 2, range(4))


def test_actions_and_models_belong_together(tmp_path: Path) -> None:
    video, file = _written(tmp_path / "a.gif", _frames()), _table(tmp_path / "b.csv", TABLE)
    with pytest.raises(RequestError, match="the model 'm' takes no actions"):
        read_clip(video, _wanted(), file)
    with pytest.raises(RequestError, match="'m' needs actions: 2 numbers for each of 4 frames except the last"):
        read_clip(video, _wanted(actions=2))
    clip = read_clip(video, _wanted(actions=2, start=1), file)
    assert clip.clip.actions is not None and clip.clip.actions.tolist() == TABLE[1:5].tolist()


def test_an_input_may_bring_its_actions(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=_frames(), action=TABLE)

    def actions(clip: Excerpt) -> list[Any]:
        assert clip.clip.actions is not None
        return clip.clip.actions.tolist()

    # A row for each frame of the file, wherever the clip begins.
    wanted = _wanted(actions=2, start=1, step=2, frames=3)
    assert actions(read_clip(tmp_path / "a.npz", wanted)) == TABLE[[1, 3, 5]].tolist()
    other = _table(tmp_path / "b.json", -TABLE[:3])
    assert actions(read_clip(tmp_path / "a.npz", wanted, other)) == (-TABLE[:3]).tolist()
    with pytest.raises(RequestError, match="row 0 has 2 numbers, but the model takes 4"):
        read_clip(tmp_path / "a.npz", _wanted(actions=4))
    assert read_clip(tmp_path / "a.npz", _wanted()).clip.actions is None


def test_entries_that_lead_nowhere_are_named(tmp_path: Path) -> None:
    folder = _written(tmp_path / "frames", _frames())
    for name in ("._0000.png", "Thumbs.db"):
        (folder / name).write_bytes(b"\0\5\x16\7")
    (folder / "sub.png").mkdir()
    assert len([*frames_of(folder)]) == 6
    (folder / "0006.png").symlink_to("gone.png")
    with pytest.raises(RequestError, match=r"0006\.png: is a link to gone\.png, which can't be found"):
        next(frames_of(folder))


def test_a_sound_picture_that_is_too_large_is_not_called_damaged(tmp_path: Path) -> None:
    Image.new("1", (20000, 10000)).save(tmp_path / "large.png")
    with pytest.raises(RequestError, match="has too many pixels"):
        next(frames_of(tmp_path / "large.png"))
    texts = PngImagePlugin.PngInfo()
    texts.add_text("workflow", "x" * 3_000_000, zip=True)
    Image.new("RGB", (8, 8)).save(tmp_path / "text.png", pnginfo=texts)
    with pytest.raises(RequestError, match="has more text metadata than Pillow reads"):
        next(frames_of(tmp_path / "text.png"))
