"""Actions from .npz, .npy, CSV, TSV or JSON files: one row of numbers per frame.

If a model names the numbers of an action (`ActionPart`), files may contain them by name, as RLDS does, or as bins.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fastcar_cli.config.lists import digits
from fastcar_cli.errors import Key, RequestError, Text
from fastcar_cli.inputs.prompt import ActionPart, ranges_of
from fastcar_cli.media.reader import ARRAYS, numbers_in
from fastcar_cli.system.files import read_text
from fastcar_cli.system.plain_data import parse_json

Rows = NDArray[np.float32]

KEYS = ("action", "actions")  # keys of actions in an .npz file (the first one is iVideoGPT's) or in a JSON object
BINNED = "action_bins"  # key of bins 0 to 255 instead of numbers; in a CSV file, column names begin with `bin`

_ALLOWED = ".npz, .npy, .csv, .tsv or .json"
_LIKE_A_NUMBER = re.compile(r"[-+.]?\d|[-+]?(?:nan|inf)", re.I)
_TABLE = TypeAdapter(list[list[float]], config=ConfigDict(strict=True))


def read_actions(path: Path, width: int, wanted: Sequence[int] | None = None, parts: Sequence[ActionPart] = ()) -> Rows:
    """The actions of a clip, float32 [S, width]; without `wanted` all rows of the file.

    width: numbers per action. wanted: indices of the clip's S frames in the input, ascending. A file with S or S - 1
    rows has a row per frame of the clip. A longer file has a row per frame of the input, and the rows `wanted` are
    used. A missing last action is zero. parts: names of the numbers. Raises RequestError if the file does not fit.
    """
    if not path.is_file():
        kind = "is a pipe or a device" if path.exists() else "there is no such file"
        raise RequestError("is a folder" if path.is_dir() else kind, key="actions", value=path)
    suffix = path.suffix.lower()
    if suffix in ARRAYS:
        return actions_in(path, width, wanted, parts, own=False)
    if suffix not in (".csv", ".tsv", ".json"):
        raise RequestError(f"unknown suffix {suffix!r}", key="actions", value=path, allowed=_ALLOWED)
    what = (Key("actions"), f" {path}")
    text = read_text(path, what, "utf-8-sig")
    if suffix == ".json":
        table = _json(text, what, parts)
    else:
        table = _csv(text, what, len(wanted or ()))
        table = _centres(table, what, parts) if parts and text.lstrip().lower().startswith("bin") else table
    return _fit(table, what, width, wanted, own=False)


def actions_in(
    path: Path, width: int, wanted: Sequence[int] | None, parts: Sequence[ActionPart] = (), *, own: bool = True
) -> Rows:
    """Like `read_actions`, for an .npz or .npy file. With `own` it is the input itself, with a row per input frame."""
    needed, option, keys = f"[frames, {width}]", "input" if own else "actions", _keys_in(path)
    if named := [part.name for part in parts if part.name in keys]:
        what: Text = (Key(option), f" {path}")
        found = {name: numbers_in(path, option, (), lambda shape: True, "numbers", name)[0] for name in named}
        return _fit(joined(found, parts, what), what, width, wanted, own=own)
    table, what = numbers_in(path, option, (*KEYS, BINNED), lambda shape: len(shape) == 2, needed)
    binned = parts and BINNED in keys and not keys & {*KEYS}
    return _fit(_centres(table, what, parts) if binned else table, what, width, wanted, own=own)


def _keys_in(path: Path) -> set[str]:
    if path.suffix.lower() != ".npz":
        return set()
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return {*arrays}
    except (OSError, EOFError, ValueError, BadZipFile):
        return set()  # `numbers_in` says why


def has_actions(path: Path, parts: Sequence[ActionPart] = ()) -> bool:
    """Whether an input is an .npz file with actions."""
    return bool(_keys_in(path) & {*KEYS, *((BINNED, *(part.name for part in parts)) if parts else ())})


def joined(named: Mapping[str, Any], parts: Sequence[ActionPart], what: Text) -> NDArray[np.float64]:
    """Concatenate actions by name, each [S, n], or [n] for one action, to float64 [S, width]; a single number needs no
    list. Raises RequestError for missing and unknown names, and for other shapes.
    """
    widths, arrays = {part.name: len(part.low) for part in parts}, dict[str, NDArray[np.float64]]()
    missing = [part.name for part in parts if part.name not in named and not part.optional]
    if wrong := missing or sorted({*named} - {*widths}):
        said = f"has {'no' if missing else 'an unknown'} key {wrong[0]!r}"
        raise RequestError(said, where=what, allowed=", ".join(widths))
    for name, value in named.items():
        try:
            array = np.asarray(value, np.float64)
        except (TypeError, ValueError):
            array = np.zeros((0, 0, 0))
        array = array.reshape(-1, 1) if widths[name] == 1 and array.ndim < 2 else np.atleast_2d(array)
        if array.shape[1:] != (widths[name],):
            said = f"{name!r} has shape {list(array.shape)}, expected {widths[name]} numbers per frame"
            raise RequestError(said, where=what)
        arrays[name] = array
    if len(frames := {*map(len, arrays.values())}) > 1:
        raise RequestError("has keys with different numbers of frames", where=what)
    return np.hstack([arrays.get(name, np.zeros((*frames, width))) for name, width in widths.items()])


def _centres(table: Sequence[Any] | NDArray[Any], what: Text, parts: Sequence[ActionPart]) -> list[Any]:
    """The centres of bins 0 to 255; rows of another width stay unchanged. Raises RequestError for other bins."""
    low, high = ranges_of(parts)
    rows = [np.asarray(row, np.float64) for row in table]
    for index, row in enumerate(rows):
        if not np.isin(row, np.arange(256)).all():
            raise RequestError(f"row {index} has bins that are not whole numbers from 0 to 255", where=what)
    return [low + (row + 0.5) / 256 * (high - low) if row.shape == low.shape else row for row in rows]


def _csv(text: str, what: Text, frames: int) -> list[list[float]]:
    """Rows of numbers separated by commas, semicolons or tabs, for `frames` frames; the first line may name columns.

    Names are words, or 0, 1, 2, ... as pandas writes them. Raises RequestError if these may also be a row of numbers.
    Empty lines, lines that begin with #, and lines without numbers at the end are skipped.
    """
    lines = ["" if line.lstrip().startswith("#") else line for line in text.split("\n")]
    first = next((line for line in lines if line.strip()), "")
    separator = next((s for s in "\t;" if s in first), ",")
    try:
        reader = csv.reader(lines, strict=True, delimiter=separator)
        table = [(number, [cell.strip() for cell in line]) for number, line in enumerate(reader, 1) if line]
    except csv.Error as e:
        raise RequestError(f"is not a CSV file ({e})", where=what) from None
    filled = [at for at, (_, cells) in enumerate(table) if any(cells)]
    table = table[filled[0] : filled[-1] + 1] if filled else []
    names = table[0][1] if table else []
    if not any(_LIKE_A_NUMBER.match(cell) for cell in names):
        table = table[1:]
    rows = []
    for number, cells in table:
        if not any(cells):
            raise RequestError(f"line {number} has no numbers", where=what)
        for cell in cells:
            try:
                float(digits(cell))
            except ValueError:
                raise RequestError(f"line {number} has {cell[:40]!r}, expected numbers", where=what) from None
        rows.append([float(cell) for cell in cells])
    if len(rows) < 2 or names != [*map(str, range(len(rows[0])))]:
        return rows
    if "." in text.partition(first)[2] or len(rows) == frames + 1:
        return rows[1:]
    if len(rows) == frames:
        hint = f"name columns with words, or write the action {separator.join(f'{n}.0' for n in range(len(rows[0])))}"
        raise RequestError(f"line 1 ({first.strip()}) may be column names or an action", where=what, hint=hint)
    return rows


def _json(text: str, what: Text, parts: Sequence[ActionPart]) -> Any:
    """A list of numbers per frame, at the top level or under the key `action`; or numbers by name, for all frames or
    per frame, which may also be under that key.
    """
    try:
        data = parse_json(text)
    except ValueError:
        raise RequestError("is not valid JSON", where=what) from None
    bins = isinstance(data, dict) and bool(parts) and BINNED in data
    data = data[BINNED] if bins else _inner(data)
    if parts and isinstance(data, dict):
        return joined(data, parts, what)
    if parts and isinstance(data, list) and data and all(isinstance(row, dict) for row in data):
        return np.vstack([joined(_inner(row), parts, (what, f", frame {at}")) for at, row in enumerate(data)])
    try:
        table = _TABLE.validate_python(data)
    except ValidationError:
        hint = "write a list per frame, such as [[0.1, 0], [0.2, 0]]"
        raise RequestError("is not a list of lists of numbers", where=what, hint=hint) from None
    return _centres(table, what, parts) if bins else table


def _inner(data: Any) -> Any:
    """The value under the key of actions if an object has it, otherwise the data."""
    return next((data[k] for k in KEYS if k in data), data) if isinstance(data, dict) else data


def _fit(
    table: Sequence[Any] | NDArray[Any], what: Text, width: int, wanted: Sequence[int] | None, *, own: bool
) -> Rows:
    """Select the rows of the clip's frames from a table, and check them."""
    if wanted is None:
        return _fit(table, what, width, range(len(table) + 1), own=False)[:-1]
    for index, row in enumerate(table):
        if len(row) != width:
            raise RequestError(f"row {index} has {len(row)} numbers, but the model takes {width} per frame", where=what)
    frames = len(wanted)
    chosen = range(frames) if not own and len(table) in (frames, frames - 1) else wanted
    # The last frame's action is never used.
    if len(table) <= chosen[max(frames - 2, 0)]:
        need = f"{frames - 1}: one for each of {frames} frames except the last"
        raise RequestError(f"has {len(table)} rows, expected {need}", where=what)
    out = np.zeros((frames, width), np.float32)
    with np.errstate(over="ignore"):
        for at, index in enumerate(chosen[: frames - (chosen[-1] >= len(table))]):
            out[at] = np.asarray(table[index], np.float64)
            if not np.isfinite(out[at]).all():
                raise RequestError(f"row {index} has a number that is not finite in float32", where=what)
    return out
