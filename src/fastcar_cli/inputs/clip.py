"""The part of an input that a model is given: frames chosen, resized as it was trained, with their actions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.actions import Rows, actions_in, has_actions, read_actions
from fastcar_cli.inputs.prompt import Clip
from fastcar_cli.media.reader import Image8, frames_of

Pixels = NDArray[np.float32]
"""Of a frame, float32 [H, W, 3] in 0 .. 1."""


@dataclass(frozen=True)
class Wanted:
    """What is to be read for a model.

    `frames` is S, context and prediction together, `context` C; `height` and `width` in pixels; `actions` how many
    numbers an action has, 0 for a model without actions. `start` is the first frame of the input that is used
    and `step` how many frames lie from one to the next. With `whole` all S frames have to be there,
    otherwise the context alone will do. With `goal` the last of them comes first, as models want it that are shown
    where to end (iVideoGPT inference/predict.py, goal conditioning).
    """

    model: str
    frames: int
    context: int
    height: int
    width: int
    actions: int = 0
    start: int = 0
    step: int = 1
    whole: bool = False
    goal: bool = False

    @property
    def indices(self) -> range:
        """The frames of the input, S of them, counted from 0."""
        return range(self.start, self.start + self.frames * self.step, self.step)


@dataclass(frozen=True)
class Excerpt:
    """A part of an input, ready for a model.

    Attributes:
        clip: what it is to a model. Frames are float32 [S, H, W, 3], or [C, H, W, 3] where the input holds the context
            alone; of actions [S, A] the last is never used; the name is that of the file or folder without its path.
        indices: which frames of the input these are, counted from 0.
        source_size: height and width before resizing, in pixels.

    """

    clip: Clip
    indices: tuple[int, ...]
    source_size: tuple[int, int]

    @cached_property
    def frames(self) -> Image8:
        """Its frames rounded to uint8, to be shown and compared with."""
        return np.rint(255 * self.clip.frames).astype(np.uint8)


def read_clip(path: Path, wanted: Wanted, actions: Path | None = None, key: str | None = None) -> Excerpt:
    """Read from an input what a model wants.

    actions: a file with them; without one those of an .npz input are taken. key: of the frames in an .npz input.
    Raises RequestError for what can't be read, too few frames, and actions that are missing, unwanted or do not fit.
    """
    if actions is not None and not wanted.actions:
        raise RequestError(
            f"the model {wanted.model!r} takes no actions", key="actions", value=actions, hint="leave them out"
        )
    chosen, size, count = _chosen(path, wanted, key)
    alone = len(chosen) == wanted.context and not wanted.whole
    if len(chosen) < wanted.frames and not alone:
        raise _too_short(path, wanted, count)
    turn = -1 if wanted.goal else 0
    indices = list(wanted.indices[: len(chosen)])
    rows = _actions(path, wanted, actions) if wanted.actions else None
    clip = Clip(np.stack(chosen[turn:] + chosen[:turn]), rows, path.absolute().name)
    return Excerpt(clip, tuple(indices[turn:] + indices[:turn]), size)


def _chosen(path: Path, wanted: Wanted, key: str | None) -> tuple[list[Pixels], tuple[int, int], int]:
    """The frames wanted, as many as there are, resized; their size before, and how many frames were counted."""
    chosen: list[Pixels] = []
    size, count = (0, 0), 0
    for index, image in enumerate(frames_of(path, key)):
        count, size = index + 1, (image.shape[0], image.shape[1])
        if index == wanted.indices[len(chosen)]:
            chosen.append(resized(image[None], wanted.height, wanted.width)[0])
            if len(chosen) == wanted.frames:
                break
    return chosen, size, count


def resized(images: NDArray[Any], height: int, width: int) -> NDArray[np.float32]:
    """Frames [T, h, w, 3] of values 0 .. 255 as float32 [T, height, width, 3] in 0 .. 1, as iVideoGPT was trained.

    Bilinear with antialias, without cropping: the aspect ratio is not kept (iVideoGPT inference/utils.py, NPZParser).
    """
    x = torch.from_numpy(np.array(images, np.float32)).permute(0, 3, 1, 2) / 255.0
    if x.shape[2:] != (height, width):
        x = torch.nn.functional.interpolate(x, (height, width), mode="bilinear", align_corners=False, antialias=True)
    return x.permute(0, 2, 3, 1).clamp(0, 1).contiguous().numpy()


def _actions(path: Path, wanted: Wanted, actions: Path | None) -> Rows:
    width = wanted.actions
    if actions is not None:
        return read_actions(actions, width, wanted.indices)
    if has_actions(path):
        return actions_in(path, width, wanted.indices)
    raise RequestError(
        f"the model {wanted.model!r} needs actions: {width} numbers for each of {wanted.frames} frames but the last",
        hint=(Key("actions"), " FILE (.npz, .npy, .csv, .tsv or .json)"),
    )


def _too_short(path: Path, wanted: Wanted, count: int) -> RequestError:
    start, step, frames = wanted.start, wanted.step, wanted.frames
    how = ([f"begin with number {start}"] if start else []) + ([f"are {step} apart"] if step > 1 else [])
    need = f"{wanted.indices[-1] + 1}" + (f" for {frames} that {' and '.join(how)}" if how else "")
    need += "" if wanted.whole else f", or just the {wanted.context} that the model continues from"
    here = len(range(start, count, step))
    hint = ("a longer clip", *((", or ", Key("frames"), f" {here}") if here > wanted.context else ()))
    return RequestError(f"has {count} frame{'s' * (count != 1)}, needed: {need}", key="input", value=path, hint=hint)
