"""The array of an .npy or .npz file that holds frames or actions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fastcar_cli.errors import Key, RequestError, Text
from fastcar_cli.system.files import OBJECTS, read_arrays

SUFFIXES = (".npz", ".npy")


def numbers_in(
    file: Path,
    option: str,
    names: Sequence[str],
    fits: Callable[[tuple[int, ...]], bool],
    needed: str,
    key: str | None = None,
) -> tuple[NDArray[Any], Text]:
    """The array of a file called `key`, else by the first of `names` that it has, else the only one that fits.

    `fits` says whether an array has the shape `needed`. Also returns what to call the array in an error. Raises
    RequestError that names the option for files that can't be read, none or several such arrays, and other shapes or
    dtypes.
    """
    try:
        arrays = read_arrays(file)
    except (OSError, ValueError) as e:
        why = (isinstance(e, OSError) and e.strerror) or e
        kind = file.suffix.lower().removeprefix(".")
        said = f"can't be read: {why}" if str(why) == OBJECTS else f"is not an {kind} file, or a damaged one ({why})"
        raise RequestError(said, key=option, value=file) from None
    listed = ", ".join(f"{name} {list(array.shape)}" for name, array in [*arrays.items()][:12]) or "none"
    if key is not None and key not in arrays:
        raise RequestError(f"{file} has no such array", key="key", value=key, hint=f"its arrays: {listed}")
    named = [name for name in ([*names] if key is None else [key]) if name in arrays]
    found = named[:1] or [name for name, array in arrays.items() if fits(array.shape)] or [*arrays]
    if len(found) != 1:
        hint: Text = (Key("key"), " names one; ") if option == "input" else ""
        raise RequestError(
            f"holds no array {names[0]!r}, and not just one of shape {needed}",
            key=option,
            value=file,
            hint=(hint, f"its arrays: {listed}"),
        )
    array = arrays[found[0]]
    what = (Key(option), f" {file}" + (f", array {found[0]!r}" if found[0] else ""))
    if not fits(array.shape):
        raise RequestError(f"has shape {list(array.shape)}, needed: {needed}", where=what)
    if array.dtype.kind not in "uif":
        raise RequestError(f"has dtype {array.dtype}, needed: numbers", where=what)
    return array, what
