"""What a video is continued from: the last pictures of a clip, or a single one, fitted to the size of the model."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.clip import Excerpt, Pixels, resized
from fastcar_cli.inputs.prompt import Clip
from fastcar_cli.media.reader import Image8OrFloat, frames_of


def fitted(image: Image8OrFloat, height: int, width: int) -> Pixels:
    """A picture [h, w, 3] of values 0 .. 255 as float32 [height, width, 3] in 0 .. 1: resized to cover, centre kept.

    Sides are rounded up, bilinear with antialias, as Cosmos-Predict1 does (inference_utils.resize_input).
    """
    h, w = image.shape[:2]
    ratio = max(width / w, height / h)
    sides = math.ceil(ratio * h), math.ceil(ratio * w)
    top, left = (round((side - needed) / 2) for side, needed in zip(sides, (height, width), strict=True))
    return resized(image[None], *sides)[0, top : top + height, left : left + width]


def read_beginning(
    path: Path,
    model: str,
    size: tuple[int, int],
    contexts: Sequence[int],
    *,
    frames: int | None = None,
    start: int | None = None,
    step: int = 1,
    key: str | None = None,
) -> Excerpt:
    """The last pictures of an input, as many as a model continues from, fitted to `size` (height, width).

    `contexts` are the numbers of pictures that will do, from few to many: an input of a single picture gives the
    fewest, any other the most. `frames`, where given, is how many are read instead, those to compare with included.
    `start` is the first picture instead of the one that makes the last the last, `step` how far they lie apart;
    `key` names the array of an .npz file. Raises RequestError for what can't be read and for too few pictures.
    """
    first = start or 0
    most = frames or max(contexts)
    kept: deque[tuple[int, Image8OrFloat]] = deque(maxlen=(most - 1) * step + 1)
    count = 0
    for index, image in enumerate(frames_of(path, key)):
        count = index + 1
        if index >= first:
            kept.append((index, image))
        if start is not None and len(kept) == kept.maxlen:
            break
    needed = frames or (min(contexts) if count == 1 else most)
    # Counted from the last one back, unless the first is given.
    chosen = list(kept)[::step] if start is not None else list(kept)[::-1][::step][::-1]
    if len(chosen) < needed:
        raise _too_few(path, model, contexts, needed, count, len(chosen))
    chosen = chosen[:needed]
    clip = Clip(np.stack([fitted(image, *size) for _, image in chosen]), None, path.absolute().name)
    source: tuple[int, ...] = chosen[0][1].shape
    return Excerpt(clip, tuple(i for i, _ in chosen), (source[0], source[1]))


def _too_few(path: Path, model: str, contexts: Sequence[int], needed: int, count: int, usable: int) -> RequestError:
    has = f"has {count} frame{'s' * (count != 1)}" + (f", {usable} of them to be used" if usable != count else "")
    if needed > max(contexts):
        return RequestError(f"{has}, needed: {needed} to compare with all of the video", key="input", value=path)
    allowed = " or ".join(str(n) for n in contexts)
    return RequestError(
        f"{has}, the model {model!r} continues from the last {needed}",
        key="input",
        value=path,
        hint=f"it takes {allowed}: a longer clip, or a single picture such as the clip's last frame",
    )
