"""Writes frames and the recipe to an MP4 (H.264), GIF or folder of PNGs, under a hidden name until complete."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops
from PIL.GifImagePlugin import getdata, getheader

from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.media.reader import read_recipe
from fastcar_cli.system import files
from fastcar_cli.system.signals import uninterrupted

Image8 = NDArray[np.uint8]
SUFFIXES = (".mp4", ".gif")  # suffixes of files; a name without suffix is a folder of PNGs
MOST_GIF_FPS = 50  # a GIF counts in hundredths of a second, and viewers slow down frames of one hundredth


def check_target(path: Path, fps: int | None = None, *, force: bool = True) -> None:
    """Raise RequestError if a video can't be written to this path, whose parents may be missing. Without `force` also
    raise it for a file that fastcar did not write.
    """
    if str(path) == os.devnull:
        return
    if not path.name or path.name.lower() in SUFFIXES:
        raise RequestError(f"{path}: has no file name", hint="add a name: video.mp4, or frames for a folder of PNGs")
    if path.suffix and path.suffix.lower() not in SUFFIXES:
        allowed = ".mp4, .gif, or a name without suffix for a folder of PNGs"
        raise RequestError(f"{path}: unknown suffix {path.suffix!r}", allowed=allowed)
    if sys.platform == "win32" and (why := files.refused_on_windows(path.name)) is not None:
        raise RequestError(f"{path}: Windows does not allow this name: {why}")
    if fps is not None and fps > MOST_GIF_FPS and path.suffix.lower() == ".gif":
        raise RequestError(f"{path}: a GIF can't have {fps} frames per second", allowed=f"1 to {MOST_GIF_FPS}, or .mp4")
    parent = next((p for p in files.target_of(path).absolute().parents if os.path.exists(p)), Path("/"))
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        why = f"the folder {parent} is not writable" if parent.is_dir() else f"{parent} is not a folder"
        raise RequestError(f"{path}: {why}")
    try:
        path.lstat()
    except OSError as e:
        if not isinstance(e, FileNotFoundError):
            raise RequestError(f"{path.name[:80]}: {e.strerror}") from None
    if path.suffix and path.is_dir():
        raise RequestError(f"{path} is a folder")
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise RequestError(f"{path} is a pipe or a device, expected a file or a folder", hint="/dev/null is allowed")
    if path.suffix and path.exists() and not force and recipe_in(path) is None:
        raise RequestError(f"{path} exists and fastcar did not write it", hint="add --force to overwrite it")
    if not path.suffix and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RequestError(f"{path} exists and is not an empty folder", hint="name a new folder")


def recipe_in(path: Path) -> dict[str, Any] | None:
    """The recipe of an existing video; None for any other file."""
    try:
        return read_recipe(path)
    except RequestError:
        return None


def default_name(prompt: str, seed: int, folder: Path = Path("."), suffix: str = ".mp4") -> Path:
    """A name from prompt and seed, `a-red-ball-s7.mp4`: at most 60 letters, marks and digits, and 150 bytes."""
    letters = (c if unicodedata.category(c)[0] in "LMN" else " " for c in unicodedata.normalize("NFC", prompt.lower()))
    slug = "-".join("".join(letters).split())[:60].encode()[:150].decode(errors="ignore").rstrip("-") or "video"
    return folder / f"{slug}-s{seed}{suffix}"


@dataclass
class Writer:
    """Writes frames one by one; only `close` makes the file visible. As a context manager it aborts on exceptions."""

    path: Path  # the requested path, after `close` the path of the file
    fps: int
    scale: int
    recipe: dict[str, Any]
    new: bool
    aside: bool = False  # rename an existing video with a different recipe to `renamed` instead of replacing it
    renamed: Path | None = field(default=None, init=False)
    frames: int = field(default=0, init=False)
    width: int = field(default=0, init=False)
    height: int = field(default=0, init=False)
    _done: bool = field(default=False, init=False)
    _divisor: ClassVar[int] = 1  # sides of a frame are cropped to multiples of this

    def __post_init__(self) -> None:
        with self._guard():
            self._open()

    def add(self, image: Image8) -> None:
        """Append one frame, uint8 [H, W, 3]."""
        if self.scale > 1:
            h, w = image.shape[:2]
            larger = Image.fromarray(image).resize((w * self.scale, h * self.scale), Image.Resampling.BICUBIC)
            image = np.asarray(larger)
        self.height, self.width = (side - side % self._divisor for side in image.shape[:2])
        image = np.ascontiguousarray(image[: self.height, : self.width])
        with uninterrupted():
            with self._guard():
                self._write(image)
            self.frames += 1

    def close(self) -> None:
        """Finish the file and rename it to `path`; without frames there is no file."""
        if not self.frames:
            self.abort()
        if self._done:
            return
        with uninterrupted():
            with self._guard():
                self._finish()
            self._done = True

    def abort(self) -> None:
        """Discard the file."""
        if not self._done:
            self._done = True
            with contextlib.suppress(Exception):
                self._discard()

    @contextlib.contextmanager
    def _guard(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError, RuntimeError) as e:
            self.abort()
            raise RunError(f"{self.path} could not be written: {files.reason_of(e)}") from None

    def _open(self) -> None: ...

    def _write(self, image: Image8) -> None: ...

    def _finish(self) -> None: ...

    def _discard(self) -> None: ...

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        (self.abort if kind else self.close)()


class _FileWriter(Writer):
    def _open(self) -> None:
        self._hidden = files.hidden_beside(self.path if self.new else files.target_of(self.path), files.empty_file)

    def _finish(self) -> None:
        """Give the hidden file its name."""
        if self.aside and self.path.exists() and recipe_in(self.path) != json.loads(json.dumps(self.recipe)):
            self.renamed = files.set_aside(files.target_of(self.path))
        self.path = files.publish(self._hidden, self.path, new=self.new)

    def _discard(self) -> None:
        self._hidden.unlink(missing_ok=True)


class _Mp4Writer(_FileWriter):
    _divisor = 2  # H.264 in yuv420p needs even sides

    def _open(self) -> None:
        import av
        from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

        super()._open()
        # With a plain file PyAV would print further errors of a full disk. FFmpeg opens the file again by its name, and
        # reads a relative name up to a colon as a protocol.
        self._file = files.LenientFile(self._hidden.absolute(), "w")
        flags = {"movflags": "+faststart+use_metadata_tags"}
        self._container: Any = av.open(self._file, "w", format="mp4", options=flags)
        self._container.metadata["comment"] = json.dumps(self.recipe)
        # x264's output depends on options and threads.
        options = {"crf": "16", "preset": "medium", "x264-params": "cpu-independent=1"}
        self._stream: Any = self._container.add_stream("libx264", self.fps, options=options)
        self._stream.pix_fmt = "yuv420p"
        encoder = self._stream.codec_context
        encoder.thread_count = 1
        # Without these tags players assume BT.709 for large frames.
        encoder.colorspace, encoder.color_range = Colorspace.ITU601, ColorRange.MPEG
        encoder.color_primaries, encoder.color_trc = 1, 13  # sRGB: BT.709's primaries, IEC 61966-2-1
        # PyAV's default reformatter belongs to the thread and has threads that a later fork would wait for.
        self._reformatter: Any = VideoReformatter()

    def _write(self, image: Image8) -> None:
        import av

        if not self.frames:
            self._stream.height, self._stream.width = image.shape[:2]
        frame = self._reformatter.reformat(av.VideoFrame.from_ndarray(image, format="rgb24"), format="yuv420p")
        frame.pts, frame.time_base = self.frames, Fraction(1, self.fps)
        self._container.mux(self._stream.encode(frame))
        self._raise()

    def _finish(self) -> None:
        self._container.mux(self._stream.encode())
        self._container.close()
        self._file.close()
        # Free memory: the writers of a run live until its end.
        self._container = self._stream = self._reformatter = None
        self._raise()
        super()._finish()

    def _discard(self) -> None:
        with contextlib.suppress(Exception):
            self._container.close()
        with contextlib.suppress(Exception):
            self._file.close()
        super()._discard()

    def _raise(self) -> None:
        if self._file.error is not None:
            raise self._file.error


class _GifWriter(_FileWriter):
    """Writes a GIF with one palette, block by block, because Pillow's `save` merges equal frames into one."""

    def _open(self) -> None:
        super()._open()
        self._images: list[Image.Image] = []

    def _write(self, image: Image8) -> None:
        self._images.append(Image.fromarray(image))

    def _finish(self) -> None:
        size = self._images[0].size
        strip = Image.new("RGB", (size[0], size[1] * len(self._images)))
        for i, image in enumerate(self._images):
            strip.paste(image, (0, i * size[1]))
        # Few colours are stored exactly. With many, median cut would spend nearly all on a large background.
        method = Image.Quantize.FASTOCTREE if strip.getcolors(256) is None else Image.Quantize.MEDIANCUT
        palette = strip.quantize(256, method, dither=Image.Dither.NONE)
        frames = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in self._images]
        header, _ = getheader(frames[0], info={"loop": 0, "comment": json.dumps(self.recipe).encode()})
        with self._hidden.open("wb") as file:
            file.writelines(header)
            before = None
            for i, image in enumerate(frames):
                # A frame that equals the previous one stores only its first pixel.
                changed = None if before is None else ImageChops.difference(before, image).getbbox() or (0, 0, 1, 1)
                box = changed or (0, 0, *size)
                # Hundredths of a second, rounded so that the total duration is right.
                delay = round(100 * (i + 1) / self.fps) - round(100 * i / self.fps)
                file.writelines(getdata(image.crop(box), box[:2], duration=10 * delay))
                before = image
            file.write(b";")
        self._images.clear()
        super()._finish()


class _PngWriter(Writer):
    def _open(self) -> None:
        self._hidden = files.hidden_beside(files.target_of(self.path), Path.mkdir)

    def _write(self, image: Image8) -> None:
        import imageio.v3 as iio

        iio.imwrite(self._hidden / f"{self.frames:04d}.png", image, plugin="pillow")

    def _finish(self) -> None:
        (self._hidden / "recipe.json").write_text(json.dumps(self.recipe, indent=1) + "\n", encoding="utf-8")
        self.path = files.publish_folder(self._hidden, self.path)

    def _discard(self) -> None:
        shutil.rmtree(self._hidden, ignore_errors=True)


def open_writer(
    path: Path, *, fps: int, scale: int = 1, recipe: dict[str, Any], new: bool = False, aside: bool = False
) -> Writer:
    """A writer for this path. Raises RequestError if it can't be written. An existing file is replaced; with `new`, and
    for a folder, the new name gets a number instead; with `aside` a video with a different recipe is renamed first.
    """
    check_target(path, fps)
    if not (parent := files.target_of(path).parent).is_dir():
        raise RequestError(f"{path}: the folder {parent} does not exist")
    kinds: dict[str, type[Writer]] = {".mp4": _Mp4Writer, ".gif": _GifWriter, "": _PngWriter}
    kind = Writer if str(path) == os.devnull else kinds[path.suffix.lower()]
    return kind(path, fps, scale, recipe, new, aside)
