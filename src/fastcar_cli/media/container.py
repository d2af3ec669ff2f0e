"""Decodes videos as players show them: the default stream, upright, in sRGB, on a white background."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms

from fastcar_cli.errors import Key, RequestError

Image8 = NDArray[np.uint8]

GROUND = (255, 255, 255, 255)  # the background of transparent pixels: white, as on a page
_WITH_ALPHA = {"vp8": "libvpx", "vp9": "libvpx-vp9"}  # decoders that support transparency, unlike FFmpeg's own
_HDR = (16, 18)  # transfer functions of HDR videos, PQ and HLG, as FFmpeg numbers them
_SDR = {"dst_color_trc": 13, "dst_color_primaries": 1}  # sRGB

_SAVE, _UPRIGHT = "save it as JPEG or PNG", "save it upright, without rotation"


def on_ground(image: Image.Image) -> Image8:
    """An image as uint8 [H, W, 3] in sRGB, with transparent pixels on the background."""
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        whole = _in_srgb(image.convert("RGBA"))
        image = Image.alpha_composite(Image.new("RGBA", whole.size, GROUND), whole)
    elif image.mode == "P":
        image = image.convert("RGB")
    return np.asarray(_in_srgb(image).convert("RGB"))


def _in_srgb(image: Image.Image) -> Image.Image:
    """An image converted from its own colour profile, such as Display P3; a damaged profile is ignored."""
    profile = image.info.pop("icc_profile", None)
    if profile:
        try:
            own = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            if "sRGB" not in ImageCms.getProfileDescription(own):
                to = "RGBA" if image.mode == "RGBA" else "RGB"
                return ImageCms.profileToProfile(image, own, ImageCms.createProfile("sRGB"), outputMode=to) or image
        except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
            pass
    return image


class _Nameless:
    """A file without its name; from a name FFmpeg guesses the format, and renders text files as images of letters."""

    def __init__(self, stream: Any) -> None:
        self.read, self.seek, self.tell, self.close = stream.read, stream.seek, stream.tell, stream.close


@contextmanager
def open_container(path: Path) -> Iterator[Any]:
    """PyAV's container of a video. Raises OSError for other files."""
    import av

    with path.open("rb") as stream:
        try:
            # PyAV 19 reads text that is not UTF-8 by default.
            old = int(av.__version__.partition(".")[0]) < 19
            options: dict[str, Any] = {"metadata_errors": "replace"} if old else {}
            container = av.open(_Nameless(stream), **options)
        except av.FFmpegError as e:
            raise OSError(str(e)) from None
        with container:
            yield container


def in_hdr(path: Path) -> bool:
    """Whether an image is HDR, which Pillow does not report; False for files that PyAV can't open."""
    with suppress(OSError), open_container(path) as container:
        return any(s.codec_context is not None and s.codec_context.color_trc in _HDR for s in container.streams.video)
    return False


def video_frames(path: Path) -> Iterator[Image8]:
    """The frames of a video in order, uint8 [H, W, 3]. Raises RequestError at the first damaged frame."""
    from av.error import DecoderNotFoundError, FFmpegError

    index = -1
    try:
        with open_container(path) as container:
            stream = _shown_stream(container, path)
            for index, frame in enumerate(_decoded(container, stream)):
                if frame.is_corrupt:
                    raise _damaged(path, f"frame {index} is corrupt", index)
                yield _as_shown(frame, stream.sample_aspect_ratio, path)
    except DecoderNotFoundError:
        raise RequestError("is in a format that PyAV does not decode", key="input", value=path, hint=_SAVE) from None
    except FFmpegError as e:
        where = "at its first frame" if index < 0 else f"after frame {index}"
        raise _damaged(path, f"{where}: {e.strerror}", index + 1) from None
    except OSError:
        said = "is not a video or an image that can be read, or it is damaged"
        allowed = "a video, a GIF, an image, a folder of images, or an .npz file with frames"
        raise RequestError(said, key="input", value=path, allowed=allowed) from None


def _damaged(path: Path, how: str, whole: int) -> RequestError:
    hint = ("a smaller ", Key("frames"), " may end before the damaged part") if whole else None
    return RequestError(f"is a damaged video ({how})", key="input", value=path, hint=hint)


def _shown_stream(container: Any, path: Path) -> Any:
    """The default stream, ignoring covers. Raises RequestError for HEIF, for which PyAV returns single tiles."""
    from av.stream import Disposition

    streams = [s for s in container.streams.video if not s.disposition & Disposition.attached_pic]
    brands = container.metadata.get("compatible_brands", "")
    if "heic" in brands or ("mif1" in brands and len(streams) > 1):
        hint = f"{_SAVE}, or pip install 'fastcar[heif]'"
        raise RequestError("is HEIF, which PyAV supports only in part", key="input", value=path, hint=hint)
    if not streams:
        raise RequestError("has no video stream except cover images", key="input", value=path)
    return next((s for s in streams if s.disposition & Disposition.default), streams[0])


def _decoded(container: Any, stream: Any) -> Iterator[Any]:
    """The frames of a stream. Raises FFmpegError for incomplete packets."""
    from av import CodecContext
    from av.error import DecoderNotFoundError, FFmpegError, InvalidDataError

    # No frame threads, which hide the decoder's errors.
    decoder: Any = stream.codec_context
    if decoder is None:
        raise DecoderNotFoundError(0, "no decoder")
    if stream.metadata.get("alpha_mode") == "1" and decoder.name in _WITH_ALPHA:
        decoder = CodecContext.create(_WITH_ALPHA[decoder.name], "r")
    elif decoder.name == "mjpeg":
        # Otherwise the frames of a truncated or damaged JPEG have no error flag.
        decoder.options = {"err_detect": "explode"}
    try:
        for packet in container.demux(stream):
            if packet.is_corrupt:
                raise InvalidDataError(0, "data are missing")
            yield from decoder.decode(packet)
    except FFmpegError:
        # The decoder may still have reordered frames from before the error.
        with suppress(FFmpegError):
            yield from decoder.decode(None)
        raise


def _as_shown(frame: Any, aspect: Any, path: Path) -> Image8:
    """A frame as players show it: square pixels, sRGB, turned by the display matrix, opaque on the background."""
    import av

    if frame.interlaced_frame:
        raise RequestError("is interlaced", key="input", value=path, hint="deinterlace it, e.g. ffmpeg -vf yadif")
    clear = frame.format.has_palette or any(part.is_alpha for part in frame.format.components)
    high = frame.color_trc in _HDR
    if high and int(av.__version__.partition(".")[0]) < 18:
        raise RequestError("is in HDR, which needs PyAV 18", key="input", value=path, hint="save the video in SDR")
    image = frame.to_ndarray(format="rgba" if clear else "rgb24", **(_SDR if high else {}))
    image = on_ground(Image.fromarray(image)) if clear else image
    if aspect and aspect != 1:
        wide = Image.fromarray(image).resize((max(1, round(frame.width * aspect)), frame.height))
        image = np.asarray(wide)
    try:
        matrix = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV has no name for some other side data
        if frame.rotation:
            said = "has a rotation (display matrix) that PyAV can't read"
            raise RequestError(said, key="input", value=path, hint=_UPRIGHT) from None
        matrix = None
    return image if matrix is None else _turned(image, np.frombuffer(bytes(matrix), np.int32)[[0, 1, 3, 4]], path)


def _turned(image: Image8, matrix: NDArray[np.int32], path: Path) -> Image8:
    """Turn an image by a matrix a, b, c, d, which moves (x, y) to (a x + c y, b x + d y); only the signs matter."""
    a, b, c, d = np.sign(np.where(abs(matrix) < abs(matrix).max() / 100, 0, matrix))
    if not (a or b or c or d):  # some programs write zeros
        return image
    if a and d and not b and not c:
        return image[:: int(d), :: int(a)]
    if b and c and not a and not d:
        return image.swapaxes(0, 1)[:: int(b), :: int(c)]
    said = "has a rotation (display matrix) by an angle other than 0, 90, 180 or 270 degrees"
    raise RequestError(said, key="input", value=path, hint=_UPRIGHT)
