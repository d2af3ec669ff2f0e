"""A model's excerpt of an input: selected frames, resized as in its training, and their actions."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.actions import Rows, actions_in, has_actions, read_actions
from fastcar_cli.inputs.prompt import ActionPart, Clip
from fastcar_cli.media.reader import Image8, Image8OrFloat, frames_of
from fastcar_cli.system.files import MOST_TEXT, read_arrays, require_regular, why_unread

Pixels = NDArray[np.float32]  # a frame, float32 [H, W, 3] in 0 .. 1


@dataclass(frozen=True)
class Wanted:
    """The part of an input that a model needs."""

    model: str
    frames: int  # S, context and prediction together
    context: int  # C
    height: int
    width: int
    actions: int = 0  # numbers per action, 0 without actions
    parts: tuple[ActionPart, ...] = ()  # names and ranges of these numbers
    repeats: bool = False  # an input of one frame is repeated C times, without actions in between
    short: bool = False  # any number of frames from C to S is enough
    start: int | None = None  # index of the first frame in the input; None: 0 or, with `last`, counted from the end
    step: int = 1  # stride in the input
    whole: bool = False  # all S frames are required, otherwise C are enough
    goal: bool = False  # the last frame comes first (iVideoGPT inference/predict.py)
    last: bool = False  # frames are cropped to the model's size, and only C are read unless `whole`

    @property
    def most(self) -> int:
        """The maximum number of frames to read."""
        return self.context if self.last and not self.whole else self.frames

    @property
    def indices(self) -> range:
        """Indices of the S frames in the input, from 0."""
        start = self.start or 0
        return range(start, start + self.frames * self.step, self.step)


@dataclass(frozen=True)
class Excerpt:
    """A part of an input. `clip`: float32 frames of the model's size, actions, and the file's name; `indices`: the
    indices of these frames in the input, from 0; `source_size`: height and width before resizing.
    """

    clip: Clip
    indices: tuple[int, ...]
    source_size: tuple[int, int]

    @cached_property
    def frames(self) -> Image8:
        """The frames rounded to uint8, for display and comparison."""
        return np.rint(255 * self.clip.frames).astype(np.uint8)


def read_clip(path: Path, wanted: Wanted, actions: Path | None = None, key: str | None = None) -> Excerpt:
    """Read a model's excerpt of an input, with actions from their file or an .npz input. Raises RequestError."""
    if actions is not None and not wanted.actions:
        said = f"the model {wanted.model!r} takes no actions"
        raise RequestError(said, key="actions", value=actions, hint=("leave ", Key("actions"), " out"))
    chosen, size, count = _chosen(path, wanted, key)
    extra = wanted.context - 1 if wanted.repeats and count == 1 else 0
    chosen += chosen * extra
    enough = range(wanted.context, wanted.most) if wanted.short else (wanted.context,)
    if len(chosen) < wanted.most and (wanted.whole or len(chosen) not in enough):
        raise _too_short(path, wanted, count)
    if wanted.goal:
        chosen = chosen[-1:] + chosen[:-1]
    rows = None
    if wanted.actions:
        rows = _actions(path, replace(wanted, frames=wanted.frames - extra), actions)
        rows = np.concatenate([rows[:1]] * extra + [rows])
    clip = Clip(np.stack([image for _, image in chosen]), rows, path.absolute().name)
    return Excerpt(clip, tuple(index for index, _ in chosen), size)


def _chosen(path: Path, wanted: Wanted, key: str | None) -> tuple[list[tuple[int, Pixels]], tuple[int, int], int]:
    """The wanted frames that exist, resized, with their indices; their original size; the number of frames read."""

    def fit(image: Image8OrFloat) -> Pixels:
        if wanted.last:
            return cropped(image, wanted.height, wanted.width)
        return resized(image[None], wanted.height, wanted.width)[0]

    chosen: list[tuple[int, Pixels]] = []
    # Counted from the last frame, whose index is not known in advance.
    back = wanted.last and wanted.start is None
    ends: deque[tuple[int, Image8OrFloat]] = deque(maxlen=(wanted.most - 1) * wanted.step + 1)
    size, count = (0, 0), 0
    for index, image in enumerate(frames_of(path, key)):
        count, size = index + 1, (image.shape[0], image.shape[1])
        if back:
            ends.append((index, image))
        elif index == wanted.indices[len(chosen)]:
            chosen.append((index, fit(image)))
            if len(chosen) == wanted.most:
                break
    if back:
        chosen = [(index, fit(image)) for index, image in [*ends][:: -wanted.step][::-1]]
    return chosen, size, count


def cropped(image: Image8OrFloat, height: int, width: int) -> Pixels:
    """The centre of a frame [h, w, 3], `resized` to cover height and width, float32 in 0 .. 1. Sides are rounded up, as
    Cosmos-Predict1 does (inference_utils.resize_input).
    """
    h, w = image.shape[:2]
    ratio = max(width / w, height / h)
    sides = math.ceil(ratio * h), math.ceil(ratio * w)
    top, left = (round((side - needed) / 2) for side, needed in zip(sides, (height, width), strict=True))
    return resized(image[None], *sides)[0, top : top + height, left : left + width]


def resized(images: NDArray[Any], height: int, width: int) -> NDArray[np.float32]:
    """Frames [T, h, w, 3] of values 0 .. 255 as float32 [T, height, width, 3] in 0 .. 1, as iVideoGPT was trained.
    Bilinear with antialias, not cropped: the aspect ratio may change (iVideoGPT inference/utils.py, NPZParser).
    """
    x = torch.from_numpy(np.array(images, np.float32)).permute(0, 3, 1, 2) / 255.0
    if x.shape[2:] != (height, width):
        x = torch.nn.functional.interpolate(x, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return x.permute(0, 2, 3, 1).clamp(0, 1).contiguous().numpy()


def _actions(path: Path, wanted: Wanted, actions: Path | None) -> Rows:
    width = wanted.actions
    if actions is not None:
        return read_actions(actions, width, wanted.indices, wanted.parts)
    if has_actions(path, wanted.parts):
        return actions_in(path, width, wanted.indices, wanted.parts)
    needed = f"{width} numbers for each of {wanted.frames} frames except the last"
    hint = "give ", Key("actions"), " FILE (.npz, .npy, .csv, .tsv or .json)"
    raise RequestError(f"the model {wanted.model!r} needs actions: {needed}", hint=hint)


def _too_short(path: Path, wanted: Wanted, count: int) -> RequestError:
    start, step, most, context = wanted.start or 0, wanted.step, wanted.most, wanted.context
    how = ([f"from index {start}"] if start else []) + ([f"in steps of {step}"] if step > 1 else [])
    need = f"{start + (most - 1) * step + 1}" + (f" to read {most} of them {' '.join(how)}" if how else "")
    if not wanted.whole and (most > context or not how):
        need += f", or at least {context} for the context" if most > context else " context frames"
    here = len(range(start, count, step))
    hint: tuple[str | Key, ...] = ("give a longer clip",)
    if wanted.last and not wanted.whole:
        hint = ("give a longer clip, or a single image such as its last frame",)
    elif here > context:
        hint += (", or ", Key("frames"), f" {here}")
    return RequestError(f"has {count} frame{'s' * (count != 1)}, expected {need}", key="input", value=path, hint=hint)


WORDS = 512  # rows of a text embedding, padding included


def read_embedding(path: Path) -> NDArray[np.float32]:
    """The array [n, width] or [1, n, width] in a file, zero-padded to [`WORDS`, width]. Raises RequestError."""
    try:
        require_regular(path, MOST_TEXT)
        if path.suffix == ".safetensors":
            arrays = {key: tensor.float().numpy() for key, tensor in load_file(str(path)).items()}
        elif path.suffix in (".pt", ".pth"):
            loaded = torch.load(path, map_location="cpu", weights_only=True)
            named = loaded.items() if isinstance(loaded, dict) else [("", loaded)]
            arrays = {key: tensor.float().numpy() for key, tensor in named}
        else:
            arrays = read_arrays(path)
    except Exception as e:  # an untrusted file can make zipfile, numpy and safetensors raise anything
        reason = (isinstance(e, OSError) and e.strerror) or why_unread(e)
        raise RequestError(f"can't be read: {reason}", key="text_embedding", value=path) from None
    arrays = {key: array[0] if array.ndim == 3 and len(array) == 1 else array for key, array in arrays.items()}
    shapes = [list(array.shape) for array in arrays.values()]
    if len(shapes) != 1 or len(shapes[0]) != 2 or not 1 <= shapes[0][0] <= WORDS:
        allowed = f"one array [1 to {WORDS}, width]"
        raise RequestError(f"has arrays of shapes {shapes}", key="text_embedding", value=path, allowed=allowed)
    (array,) = arrays.values()
    if array.dtype.kind != "f" or not np.isfinite(array).all():
        raise RequestError("has values that are not floats or not finite", key="text_embedding", value=path)
    return np.pad(array.astype(np.float32), ((0, WORDS - len(array)), (0, 0)))
