"""Reads frames from a video, a GIF, an image, a folder of images or an array, and recipes from videos.

Frames are decoded one by one, on request. Decoders get streams, so that a playlist can't make them read other files.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from fastcar_cli.errors import Key, RequestError, Text
from fastcar_cli.media.container import in_hdr, on_ground, open_container, video_frames
from fastcar_cli.system.files import OBJECTS, file_text, read_arrays, reason_of
from fastcar_cli.system.plain_data import parse_json

Image8 = NDArray[np.uint8]
Image8OrFloat = Image8 | NDArray[np.float32]  # uint8, or floats in 0 .. 255

IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".avif", ".heic", ".heif")
"""Suffixes of the images in a folder; other files are ignored."""

_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "ICO", "AVIF", "HEIF")
"""Formats to read with Pillow, by its names; not PostScript, for which it runs another program. FFmpeg reads others."""

_MOVING = ("PNG", "WEBP", "GIF", "AVIF")
"""Pillow's names of formats whose further images are frames (in a JPEG they are previews, in HEIF parts)."""

_MAYBE_HDR = ("AVIF", "HEIF", "PNG")

ARRAYS = (".npz", ".npy")  # suffixes of arrays of frames or actions
_KEY = "image"  # key of the frames in iVideoGPT's files

_SIDE = 2**14


def read_frames(path: Path) -> NDArray[Any]:
    """Every frame, [T, H, W, 3]. Raises RequestError as `frames_of` does."""
    return np.stack(list(frames_of(path)))


def read_recipe(path: Path) -> dict[str, Any]:
    """The recipe in a video. Raises RequestError if it has none."""
    try:
        if path.is_dir():
            text = file_text(path / "recipe.json")
        elif path.suffix.lower() == ".gif":
            with Image.open(path, formats=("GIF",)) as image:
                text = image.info.get("comment", b"").decode()
        elif path.suffix.lower() == ".json":
            text = file_text(path)
        else:
            with open_container(path) as video:
                # Matroska writes its names in capitals.
                text = {key.lower(): value for key, value in video.metadata.items()}.get("comment", "")
        recipe = parse_json(text)
    except FileNotFoundError:
        said = "has no fastcar recipe" if path.exists() else "there is no such video"
        raise RequestError(said, where=str(path)) from None
    except (OSError, ValueError, Image.DecompressionBombError):
        raise RequestError(f"{path} has no fastcar recipe", hint="give a video that fastcar wrote") from None
    if isinstance(recipe, dict):
        # The JSON sidecar of a video contains its recipe.
        recipe = recipe.get("recipe", recipe)
    kinds = {"prompt": str, "seed": int, "settings": dict}
    if not isinstance(recipe, dict) or not all(isinstance(recipe.get(k), kind) for k, kind in kinds.items()):
        raise RequestError(f"{path} has no fastcar recipe", hint="give a video that fastcar wrote")
    return recipe


def frames_of(path: Path, key: str | None = None) -> Iterator[Image8OrFloat]:
    """Yield the frames of an input, [H, W, 3] in 0 .. 255, all of one size: uint8, or float32 from an array of floats.

    key: name of the array in an .npz file, by default `image` or the only one with the shape of frames. Raises
    RequestError for unreadable input, and at the first frame that is damaged or of another size.
    """
    if path.is_dir():
        images: Iterator[Image8OrFloat] = _folder(path)
    elif not path.is_file():
        raise _refused(path, "is a pipe or a device" if path.exists() else "there is no such file or folder")
    elif path.suffix.lower() in ARRAYS:
        images = _array(path, key)
    else:
        images = _file(path)
    if key is not None and path.suffix.lower() != ".npz":
        raise RequestError(f"{path} is not an .npz file", key="key", value=key, hint=("leave ", Key("key"), " out"))
    size: tuple[int, ...] = ()
    for index, image in enumerate(images):
        if max(image.shape[:2]) > _SIDE:
            raise _refused(path, f"frame {index} has {_size(image.shape)} pixels", f"allowed: at most {_SIDE} per side")
        if size and image.shape != size:
            message = f"frame {index} has {_size(image.shape)} pixels, but the first frame has {_size(size)}"
            raise _refused(path, message, "resize all frames to the same size")
        size = image.shape
        yield image


def _size(shape: tuple[int, ...]) -> str:
    return f"{shape[1]} x {shape[0]}"


def _folder(folder: Path) -> Iterator[Image8]:
    """The images of a folder, sorted by name, with numbers in names by value."""
    try:
        named = [f for f in folder.iterdir() if f.suffix.lower() in IMAGES and not f.name.startswith(".")]
    except OSError as e:
        raise _refused(folder, f"can't be read: {e.strerror}") from None
    files = [f for f in named if not os.path.isdir(f)]
    if lost := next((f for f in files if not os.path.isfile(f)), None):
        link = f"is a link to {os.readlink(lost)}, which can't be found" if lost.is_symlink() else None
        raise _refused(lost, link or "is a pipe or a device", "delete it, or replace it with an image")
    if not files:
        raise RequestError("contains no image", key="input", value=folder, allowed=", ".join(IMAGES))
    for file in sorted(files, key=lambda f: [(len(p), p) if p.isdigit() else (0, p) for p in _parts(f.name)]):
        yield next(_file(file))


def _parts(name: str) -> list[str]:
    """Split `frame012.png` into "frame", "12", ".png": text and numbers, without leading zeros, in turn."""
    return [p.lstrip("0") if i % 2 else p.lower() for i, p in enumerate(re.split(r"([0-9]+)", name))]


def _file(path: Path) -> Iterator[Image8]:
    """The images of an image file, or the frames of a video."""
    try:
        Image.init()
        with contextlib.suppress(ImportError):
            importlib.import_module("pillow_heif").register_heif_opener()
        with Image.open(path, formats=[name for name in _FORMATS if name in Image.OPEN]) as image:
            if image.format not in _MAYBE_HDR or not in_hdr(path):
                count = getattr(image, "n_frames", 1)
                if image.format == "TIFF" and count > 1:
                    raise _refused(path, f"has {count} images, possibly previews", "save each as a file in a folder")
                # The poster of an animated PNG is not one of its frames.
                first = int(getattr(image, "default_image", False))
                for index in range(first, count if image.format in _MOVING else 1):
                    image.seek(index)
                    yield _rgb(image, path)
                return
    except UnidentifiedImageError:
        pass
    except RequestError:
        raise
    except Image.DecompressionBombError:
        assert Image.MAX_IMAGE_PIXELS is not None
        most = f"at most {2 * Image.MAX_IMAGE_PIXELS:,}"
        said, hint = "has too many pixels", "resize it first"
        raise RequestError(said, key="input", value=path, allowed=most, hint=hint) from None
    except Exception as e:  # a damaged file can make Pillow raise anything
        if isinstance(e, PermissionError):
            raise _refused(path, f"can't be read: {e.strerror}") from None
        why = str(e).strip().partition("\n")[0] or type(e).__name__
        if "MAX_TEXT" in why:
            raise _refused(path, "has more text metadata than Pillow reads", "save it without metadata") from None
        raise _refused(path, f"is a damaged image ({why[:120]})") from None
    yield from video_frames(path)


def _rgb(image: Image.Image, file: Path) -> Image8:
    """Pixels as viewers show them: rotated by the camera's tag, on the background, in RGB."""
    if image.mode.startswith(("I", "F")):
        raise _refused(file, "has more than 8 bits per colour", "save it with 8 bits per colour")
    if max(image.size) > _SIDE:
        raise _refused(file, f"has {image.width} x {image.height} pixels", f"allowed: at most {_SIDE} per side")
    return on_ground(ImageOps.exif_transpose(image))


def _refused(path: Path, message: str, hint: Text | None = None) -> RequestError:
    return RequestError(message, key="input", value=path, hint=hint)


def _array(path: Path, key: str | None) -> Iterator[Image8OrFloat]:
    """The frames of an array [T, H, W, 3] of numbers 0 .. 255, of any numeric dtype."""
    needed = "[frames, height, width, 3]"
    array, what = numbers_in(
        path, "input", (_KEY,), lambda s: len(s) == 4 and s[3] == 3 and 0 not in s[1:], needed, key
    )
    floats = array.dtype.kind == "f"
    for index, row in enumerate(array):
        low, high = row.min(), row.max()
        if not (low >= 0 and high <= 255):
            raise RequestError(f"frame {index} has values from {low:g} to {high:g}, expected 0 .. 255", where=what)
        if floats and 0 < high <= 1 and (row != np.rint(row)).any():
            said = f"frame {index} has fractions from {low:g} to {high:g}, expected 0 .. 255"
            raise RequestError(said, where=what, hint="multiply values 0 .. 1 by 255")
        yield row.astype(np.float32 if floats else np.uint8)


def numbers_in(
    file: Path,
    option: str,
    names: Sequence[str],
    fits: Callable[[tuple[int, ...]], bool],
    needed: str,
    key: str | None = None,
) -> tuple[NDArray[Any], Text]:
    """An array of an .npz or .npy file (named `key`, else one of `names`, else the only one that fits), and its name.

    The name is for errors. fits: whether an array has the shape `needed`. Raises RequestError, which names the option,
    for unreadable files, for no or several such arrays, and for other shapes or dtypes.
    """
    try:
        arrays = read_arrays(file)
    except (OSError, ValueError) as e:
        kind, why = file.suffix.lower().removeprefix("."), reason_of(e)
        said = f"can't be read: {why}" if why == OBJECTS else f"is not an {kind} file, or a damaged one ({why})"
        raise RequestError(said, key=option, value=file) from None
    listed = ", ".join(f"{name} {list(array.shape)}" for name, array in [*arrays.items()][:12]) or "none"
    if key is not None and key not in arrays:
        raise RequestError(f"{file} has no such array", key="key", value=key, hint=f"its arrays: {listed}")
    named = [name for name in ([*names] if key is None else [key]) if name in arrays]
    found = named[:1] or [name for name, array in arrays.items() if fits(array.shape)] or [*arrays]
    if len(found) != 1:
        hint: Text = ("choose one with ", Key("key"), "; ") if option == "input" else ""
        said = f"has neither an array {names[0]!r} nor exactly one array of shape {needed}"
        raise RequestError(said, key=option, value=file, hint=(hint, f"its arrays: {listed}"))
    array = arrays[found[0]]
    what = (Key(option), f" {file}" + (f", array {found[0]!r}" if found[0] else ""))
    if not fits(array.shape):
        raise RequestError(f"has shape {list(array.shape)}, expected {needed}", where=what)
    if array.dtype.kind not in "uif":
        raise RequestError(f"has dtype {array.dtype}, expected numbers", where=what)
    return array, what
