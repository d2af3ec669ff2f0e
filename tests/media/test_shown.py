"""Inputs are read as players and viewers show them: turned, without covers, on a ground, in their own colours."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image, ImageCms, features

from fastcar_cli.errors import RequestError
from fastcar_cli.media import open_writer, read_frames, read_recipe

Image8 = NDArray[np.uint8]
ONE = 1 << 16


@pytest.fixture
def frame() -> Image8:
    """A box at the upper left, the right half brighter: turned or mirrored it is another picture."""
    image = np.full((32, 64, 3), (90, 160, 230), np.uint8)
    image[:, 32:] = (120, 200, 60)
    image[4:12, 4:12] = (250, 30, 30)
    return image


def _write(path: Path, frames: list[Image8], codec: str = "libx264rgb", form: str = "rgb24", **options: Any) -> Path:
    """A lossless video of frames in RGB, or in RGBA with `form` that has an alpha channel."""
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream(codec, rate=8, options={"qp": "0"} if codec == "libx264rgb" else {})
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = form
        for name, value in options.items():
            setattr(stream.codec_context, name, value)
        for image in frames:
            plain = av.VideoFrame.from_ndarray(image, format="rgba" if image.shape[2] == 4 else "rgb24")
            container.mux(stream.encode(plain.reformat(format=form)))
        container.mux(stream.encode())
    return path


def _matrix(path: Path, *values: int) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 44
    data[at : at + 36] = struct.pack(">9i", values[0], values[1], 0, values[2], values[3], 0, 0, 0, 1 << 30)
    path.write_bytes(data)


MATRICES: dict[tuple[int, ...], Any] = {
    (ONE, 0, 0, ONE): lambda x: x,
    (0, ONE, -ONE, 0): lambda x: np.rot90(x, -1),
    (-ONE, 0, 0, -ONE): lambda x: np.rot90(x, 2),
    (0, -ONE, ONE, 0): lambda x: np.rot90(x, 1),
    (-ONE, 0, 0, ONE): lambda x: x[:, ::-1],
    (ONE, 0, 0, -ONE): lambda x: x[::-1],
    (0, ONE, ONE, 0): lambda x: x.swapaxes(0, 1),
    (0, -ONE, -ONE, 0): lambda x: np.rot90(x.swapaxes(0, 1), 2),
}


@pytest.mark.parametrize("matrix", MATRICES)
def test_the_display_matrix_turns_and_mirrors(tmp_path: Path, frame: Image8, matrix: tuple[int, ...]) -> None:
    path = _write(tmp_path / "a.mp4", [frame] * 2)
    _matrix(path, *matrix)
    assert np.array_equal(read_frames(path), [MATRICES[matrix](frame)] * 2)


def test_a_matrix_of_zeros_is_none(tmp_path: Path, frame: Image8) -> None:
    path = _write(tmp_path / "a.mp4", [frame])
    _matrix(path, 0, 0, 0, 0)
    assert np.array_equal(read_frames(path), [frame])


def test_other_angles_are_refused(tmp_path: Path, frame: Image8) -> None:
    path = _write(tmp_path / "a.mp4", [frame])
    _matrix(path, 46341, 46341, -46341, 46341)
    with pytest.raises(RequestError, match="an angle other than 0, 90, 180 or 270 degrees"):
        read_frames(path)


def test_pixels_that_are_not_square_are_made_so(tmp_path: Path, frame: Image8) -> None:
    path = _write(tmp_path / "a.mp4", [frame], sample_aspect_ratio=Fraction(3, 2))
    assert read_frames(path).shape == (1, 32, 96, 3)


def _box(kind: bytes, *data: bytes) -> bytes:
    whole = b"".join(data)
    return struct.pack(">I4s", 8 + len(whole), kind) + whole


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    while data:
        size, kind = struct.unpack(">I4s", data[:8])
        yield kind, data[:size]
        data = data[size:]


def _with_cover(path: Path) -> None:
    """Put a green cover before the video's own track, as shops do."""
    picture = io.BytesIO()
    Image.new("RGB", (64, 32), (0, 200, 0)).save(picture, "JPEG")
    cover = _box(b"covr", _box(b"data", struct.pack(">II", 13, 0) + picture.getvalue()))
    handler = _box(b"hdlr", b"\0" * 8 + b"mdirappl" + b"\0" * 9)
    udta = _box(b"udta", _box(b"meta", b"\0" * 4, handler, _box(b"ilst", cover)))
    out = b""
    for kind, box in _boxes(path.read_bytes()):
        if kind == b"moov":
            parts = [(k, d) for k, d in _boxes(box[8:]) if k != b"udta"]
            parts.insert([k for k, _ in parts].index(b"trak"), (b"udta", udta))
            box = _box(b"moov", *(d for _, d in parts))
        out += box
    path.write_bytes(out)


def test_a_cover_is_no_frame(tmp_path: Path, frame: Image8) -> None:
    path = _write(tmp_path / "a.mp4", [frame, frame[::-1]])
    _with_cover(path)
    with av.open(str(path)) as container:
        assert container.streams.video[0].disposition & av.stream.Disposition.attached_pic
    assert np.array_equal(read_frames(path), [frame, frame[::-1]])


def test_the_poster_of_an_animation_is_not_a_frame(tmp_path: Path, frame: Image8) -> None:
    images, poster = [Image.fromarray(frame), Image.fromarray(frame[::-1])], Image.new("RGB", (64, 32), (0, 200, 0))
    poster.save(tmp_path / "a.png", save_all=True, append_images=images, default_image=True)
    assert np.array_equal(read_frames(tmp_path / "a.png"), [frame, frame[::-1]])
    images[0].save(tmp_path / "b.png", save_all=True, append_images=images[1:])
    assert np.array_equal(read_frames(tmp_path / "b.png"), [frame, frame[::-1]])


def test_images_that_may_be_previews_are_refused(tmp_path: Path, frame: Image8) -> None:
    first, second = (Image.fromarray(image) for image in (frame, frame[::-1]))
    first.save(tmp_path / "a.tif", save_all=True, append_images=[second])
    with pytest.raises(RequestError, match="has 2 images, possibly previews"):
        read_frames(tmp_path / "a.tif")


def test_interlaced_videos_are_refused(tmp_path: Path, frame: Image8) -> None:
    interlaced = 0x20000 | 0x40000 | 0x20000000  # its DCT and motion, and which field is first
    options = {"options": {"x264-params": "tff=1"}, "flags": interlaced}
    path = _write(tmp_path / "a.mp4", [frame], "libx264", "yuv420p", **options)
    with pytest.raises(RequestError, match="is interlaced"):
        read_frames(path)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow reads no AVIF")
def test_an_animated_avif_has_frames(tmp_path: Path, frame: Image8) -> None:
    images = [Image.fromarray(np.roll(frame, 8 * t, 1)) for t in range(4)]
    images[0].save(tmp_path / "a.avif", save_all=True, append_images=images[1:], quality=95)
    shown = read_frames(tmp_path / "a.avif").astype(int)
    assert shown.shape == (4, 32, 64, 3) and abs(shown - np.stack([*map(np.asarray, images)])).mean() < 4
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.avif").rename(tmp_path / "folder" / "a.avif")
    assert np.array_equal(read_frames(tmp_path / "folder"), shown[:1])


def _two_with_alpha(frame: Image8) -> list[Image8]:
    """Two pictures that look the same on white: what lies under transparent pixels differs."""
    hidden = np.random.default_rng(0).integers(0, 256, (*frame.shape[:2], 4), dtype=np.uint8)
    hidden[..., 3] = 0
    hidden[4:12, 4:12] = (250, 30, 30, 255)
    other = hidden.copy()
    other[hidden[..., 3] == 0, :3] ^= 255
    return [hidden, other]


@pytest.mark.parametrize("suffix", [".png", ".webp", ".tif", ".gif", ".mov", ".webm", " P.png", " LA.png"])
def test_transparent_pixels_are_white(tmp_path: Path, frame: Image8, suffix: str) -> None:
    shown = []
    for i, pixels in enumerate(_two_with_alpha(frame)):
        path = tmp_path / f"{i}{suffix}"
        if suffix == ".mov":
            _write(path, [pixels], "qtrle", "argb")
        elif suffix == ".webm":
            _write(path, [pixels], "libvpx-vp9", "yuva420p")
        elif suffix == " P.png":
            image = Image.new("P", (64, 32), 0)
            image.putpalette([*((0, 0, 255) if i else (255, 255, 0)), 250, 30, 30])
            image.paste(1, (4, 4, 12, 12))
            image.save(path, transparency=0)
        else:
            image = Image.fromarray(pixels).convert("LA" if "LA" in suffix else "RGBA")
            options: dict[str, Any] = {"lossless": True, "exact": True} if suffix == ".webp" else {}
            image.save(path, **options)
        shown.append(read_frames(path)[0].astype(int))
    tolerance = 60 if suffix == ".webm" else 0  # lossy, and soft where alpha has an edge
    assert abs(shown[0] - shown[1]).max() <= tolerance
    assert (shown[0][20:, 20:] >= 255 - 3 * (suffix == ".webm")).all()
    assert shown[0][8, 8, 0] - shown[0][8, 8, 1] > (100 if "LA" not in suffix else -1)


def test_frames_that_the_decoder_flags_are_refused(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 64, 64, 3), dtype=np.uint8)
    path = _write(tmp_path / "a.mp4", [*noise], "libx264", "yuv420p")
    data = bytearray(path.read_bytes())
    for at in range(len(data) // 2, len(data) // 2 + 60):
        data[at] ^= 0x5A
    path.write_bytes(data)
    with pytest.raises(RequestError, match=r"is a damaged video \(frame \d+ is corrupt\)") as error:
        read_frames(path)
    assert error.value.hint is not None and "frames" in error.value.hint


def test_frames_before_a_fault_that_the_decoder_holds_back_are_read(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
    path = _write(tmp_path / "a.ts", [*noise], "libx264", "yuv420p", options={"bf": "2"})
    with av.open(str(path)) as container:
        last = max(p.pos or 0 for p in container.demux(video=0))
    data = path.read_bytes()
    path.write_bytes(data[: last + 188] + data[last + 376 :])
    with pytest.raises(RequestError, match=r"is a damaged video \(after frame [34]: "):
        read_frames(path)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda data: data[: len(data) // 2], r"after frame \d: data are missing"),
        (
            lambda data: data[: len(data) // 2] + bytes(400) + data[len(data) // 2 + 400 :],
            r"after frame \d: Invalid data",
        ),
    ],
)
def test_frames_of_jpeg_that_are_not_whole_are_refused(tmp_path: Path, damage: Any, said: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 64, 64, 3), dtype=np.uint8)
    path = _write(tmp_path / "a.avi", [*noise], "mjpeg", "yuvj420p")
    assert len(read_frames(path)) == 20
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RequestError, match=rf"is a damaged video \({said}"):
        read_frames(path)


@pytest.mark.parametrize(("matrix", "weights"), [(1, (0.2126, 0.0722)), (5, (0.299, 0.114)), (9, (0.2627, 0.0593))])
@pytest.mark.parametrize("full", [False, True])
def test_colours_are_converted_as_tagged(tmp_path: Path, matrix: int, weights: tuple[float, float], full: bool) -> None:
    r, g, b = (x / 255 for x in (200, 60, 30))
    luma = weights[0] * r + (1 - sum(weights)) * g + weights[1] * b
    low, high, wide = (0, 255, 255) if full else (16, 219, 224)
    blue, red = (b - luma) / (2 - 2 * weights[1]), (r - luma) / (2 - 2 * weights[0])
    planes = [round(low + high * luma), round(128 + wide * blue), round(128 + wide * red)]
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        stream: Any = container.add_stream("libx264", rate=8, options={"crf": "1"})
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 1 + full
        picture: Any = av.VideoFrame(64, 64, "yuv420p")
        for plane, value in zip(picture.planes, planes, strict=True):
            plane.update(bytes([value]) * plane.buffer_size)
        picture.colorspace, picture.color_range = matrix, 1 + full
        container.mux(stream.encode(picture))
        container.mux(stream.encode())
    assert abs(read_frames(path)[0, 30, 30].astype(int) - (200, 60, 30)).max() <= 6


SEEN = np.array([[255, 255, 255], [128, 128, 128], [250, 30, 30], [90, 160, 230], [30, 200, 60]])
"""Colours in sRGB."""
TO_2020 = np.array([[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]])
BRIGHT = 203
"""Of white, in candela per square metre: ITU-R BT.2408."""


def _linear(values: NDArray[Any]) -> NDArray[np.float64]:
    x = values / 255
    return np.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055) ** 2.4)


def _pq(light: NDArray[np.float64]) -> NDArray[np.float64]:
    """SMPTE ST 2084 of light in units of 10,000 candela per square metre."""
    power = light**0.1593017578125
    return ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375


def _hlg(light: NDArray[np.float64]) -> NDArray[np.float64]:
    """ITU-R BT.2100's HLG of displayed light in units of 1,000 candela per square metre."""
    luminance = light @ [0.2627, 0.678, 0.0593]
    scene = light * luminance[:, None] ** (1 / 1.2 - 1)
    bright = 0.17883277 * np.log(np.maximum(12 * scene - 0.28466892, 1e-9)) + 0.55991073
    return np.where(scene <= 1 / 12, np.sqrt(3 * scene), bright)


@pytest.mark.slow
@pytest.mark.parametrize("transfer", [16, 18])
def test_hdr_is_shown_in_srgb(tmp_path: Path, transfer: int, monkeypatch: pytest.MonkeyPatch) -> None:
    light = _linear(SEEN) @ TO_2020.T * BRIGHT
    colours = _pq(light / 10_000) if transfer == 16 else _hlg(light / 1_000)
    luma = colours @ [0.2627, 0.678, 0.0593]
    planes = 64 + 876 * luma, 512 + 896 * (colours[:, 2] - luma) / 1.8814, 512 + 896 * (colours[:, 0] - luma) / 1.4746
    frame = av.VideoFrame(16 * len(SEEN), 16, "yuv444p10le")
    for plane, values in zip(frame.planes, planes, strict=True):
        row = np.zeros(plane.line_size // 2, np.uint16)
        row[: 16 * len(SEEN)] = np.round(values).repeat(16)
        plane.update(np.tile(row, 16).tobytes())
    with av.open(str(tmp_path / "a.mkv"), "w") as container:
        stream: Any = container.add_stream("ffv1", rate=8)
        stream.width, stream.height, stream.pix_fmt = 16 * len(SEEN), 16, "yuv444p10le"
        tags = stream.codec_context
        tags.colorspace, tags.color_primaries, tags.color_trc, tags.color_range = 9, 9, transfer, 1
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    if int(av.__version__.partition(".")[0]) >= 18:
        assert abs(read_frames(tmp_path / "a.mkv")[0, 8, 8::16].astype(int) - SEEN).max() < 25
    monkeypatch.setattr(av, "__version__", "17.0.0")
    with pytest.raises(RequestError, match=r"is in HDR, which needs PyAV 18"):
        read_frames(tmp_path / "a.mkv")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".avif", ".png"])
def test_hdr_pictures_are_shown_as_hdr_videos(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"a{suffix}"
    if suffix == ".avif":
        if not features.check("avif"):
            pytest.skip("this Pillow reads no AVIF")
        monkeypatch.setenv("SVT_LOG", "0")
        tags = {"colorspace": 9, "color_primaries": 9, "color_trc": 16, "color_range": 1, "options": {"crf": "4"}}
        _write(path, [np.full((64, 64, 3), 148, np.uint8)], "libsvtav1", "yuv420p10le", **tags)
    else:
        data = io.BytesIO()
        Image.new("RGB", (64, 64), (148, 148, 148)).save(data, "PNG")
        chunk = b"cICP" + bytes([9, 16, 0, 1])
        whole = struct.pack(">I", 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
        path.write_bytes(data.getvalue()[:33] + whole + data.getvalue()[33:])
    if int(av.__version__.partition(".")[0]) < 18:
        with pytest.raises(RequestError, match="is in HDR"):
            read_frames(path)
    else:  # 58 % of PQ's range is 203 candela per square metre, white
        assert read_frames(path)[0, 30, 30].min() > 240


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_colours_of_a_profile_are_shown_in_srgb(tmp_path: Path, mode: str) -> None:
    """Red and green change places in this profile, which is sRGB's own else."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    tags = {bytes(data[at : at + 4]): at + 4 for at in range(132, 132 + 12 * int.from_bytes(data[128:132], "big"), 12)}
    red, green = tags[b"rXYZ"], tags[b"gXYZ"]
    data[red : red + 4], data[green : green + 4] = data[green : green + 4], data[red : red + 4]
    named = bytes(data).replace("sRGB".encode("utf-16-be"), "mine".encode("utf-16-be"))
    Image.new("RGB", (8, 8), (204, 51, 102)).convert(mode).save(tmp_path / "a.png", icc_profile=named)
    assert abs(read_frames(tmp_path / "a.png")[0, 4, 4].astype(int) - (51, 204, 102)).max() < 3
    Image.new("RGB", (8, 8), (204, 51, 102)).convert(mode).save(tmp_path / "a.png", icc_profile=named[:200])
    assert (read_frames(tmp_path / "a.png")[0, 4, 4] == (204, 51, 102)).all()


def test_written_videos_say_their_colours(tmp_path: Path, frame: Image8) -> None:
    with open_writer(tmp_path / "a.mp4", fps=8, recipe={}) as writer:
        writer.add(frame)
    with av.open(str(tmp_path / "a.mp4")) as container:
        shown = next(container.decode(video=0))
        assert (shown.colorspace, shown.color_range, shown.color_primaries, shown.color_trc) == (5, 1, 1, 13)


def test_a_recipe_survives_matroska(tmp_path: Path, frame: Image8) -> None:
    recipe = {"prompt": "a red ball", "seed": 1, "settings": {}}
    with open_writer(tmp_path / "a.mp4", fps=8, recipe=recipe) as writer:
        writer.add(frame)
    with av.open(str(tmp_path / "a.mp4")) as source, av.open(str(tmp_path / "a.mkv"), "w") as target:
        stream: Any = target.add_stream_from_template(source.streams.video[0])
        target.metadata.update(source.metadata)
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    assert read_recipe(tmp_path / "a.mkv") == recipe
