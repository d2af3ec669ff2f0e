"""Actions from .npz, .npy or JSON files: one row of numbers a frame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fastcar_cli.errors import Key, RequestError, Text
from fastcar_cli.media.arrays import SUFFIXES, numbers_in
from fastcar_cli.system.files import read_text
from fastcar_cli.system.plain_data import parse_json

Rows = NDArray[np.float32]

KEYS = ("action", "actions")
"""Of the actions in an .npz file (the first one is iVideoGPT's) or in a JSON object."""

_TABLE = TypeAdapter(list[list[float]], config=ConfigDict(strict=True))


def read_actions(path: Path, width: int, wanted: Sequence[int]) -> Rows:
    """The actions of a clip, float32 [S, width].

    width: numbers an action has. wanted: which frames of the input make the clip (S of them), in rising order. A file
    of S or S - 1 rows is the clip's own; of a longer one, whose rows are those of the input's frames, the rows `wanted`
    are taken. The last frame's action may be missing and is zero then. Raises RequestError that says what does not fit.
    """
    if not path.is_file():
        kind = "is a pipe or a device" if path.exists() else "there is no such file"
        raise RequestError("is a folder" if path.is_dir() else kind, key="actions", value=path)
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return actions_in(path, width, wanted, own=False)
    if suffix != ".json":
        raise RequestError(f"unknown suffix {suffix!r}", key="actions", value=path, allowed=".npz, .npy or .json")
    what = (Key("actions"), f" {path}")
    try:
        data = parse_json(read_text(path, what, "utf-8-sig"))
    except ValueError:
        raise RequestError("is not a JSON file", where=what) from None
    if isinstance(data, dict):
        data = next((data[k] for k in KEYS if k in data), None)
    try:
        table = _TABLE.validate_python(data)
    except ValidationError:
        hint = "such as [[0.1, 0], [0.2, 0]]"
        raise RequestError("is not a list of lists of numbers", where=what, hint=hint) from None
    return _fit(table, what, width, wanted, own=False)


def actions_in(path: Path, width: int, wanted: Sequence[int], *, own: bool = True) -> Rows:
    """As `read_actions`, from an .npz or .npy file. With `own` it is the input itself: its rows are its frames'."""
    needed = f"[frames, {width}]"
    array, what = numbers_in(path, "input" if own else "actions", KEYS, lambda shape: len(shape) == 2, needed)
    return _fit(array, what, width, wanted, own=own)


def has_actions(path: Path) -> bool:
    """Whether an input is an .npz file that brings its actions."""
    if path.suffix.lower() != ".npz":
        return False
    with np.load(path, allow_pickle=False) as arrays:  # which was read before, for its frames
        return any(key in arrays for key in KEYS)


def _fit(table: Sequence[Any] | NDArray[Any], what: Text, width: int, wanted: Sequence[int], *, own: bool) -> Rows:
    """Rows of the clip's frames out of a table, checked."""
    for index, row in enumerate(table):
        if len(row) != width:
            raise RequestError(f"row {index} has {len(row)} numbers, the model takes {width} a frame", where=what)
    frames = len(wanted)
    direct = not own and len(table) in (frames, frames - 1)
    chosen = range(frames) if direct else wanted
    # The last frame's action is never looked at.
    if len(table) <= chosen[max(frames - 2, 0)]:
        need = f"{frames - 1}, one for each of {frames} frames but the last"
        raise RequestError(f"has {len(table)} rows, needed: {need}", where=what)
    out = np.zeros((frames, width), np.float32)
    with np.errstate(over="ignore"):
        for at, index in enumerate(chosen[: frames - (chosen[-1] >= len(table))]):
            out[at] = np.asarray(table[index], np.float64)
            if not np.isfinite(out[at]).all():
                raise RequestError(f"row {index} has numbers that are not finite in float32", where=what)
    return out
