"""Plain data from files that anybody may have written: JSON, and dataclasses that are made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

_MAY_BE_ZERO = {"actions", "cfg", "ch", "num_res_blocks", "projector_layers", "temperature", "top_k"}
_MAY_BE_NEGATIVE = {"shadow"}
_MOST = 2**31 - 1


def parse_json(text: str) -> Any:
    """What a JSON text holds. Raises ValueError for any other text, and for one that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_values(made: Any, path: str = "") -> None:
    """Hold the fields of a dataclass, and of those in it, to their types and to what sizes and settings can be.

    Numbers are finite and above 0, but for the few that may be less. Raises ValueError that names the field.
    """
    hints = get_type_hints(type(made))
    for field in fields(made):
        _check(getattr(made, field.name), hints[field.name], field.name, f"{path}{field.name}")


def _check(value: Any, hint: Any, name: str, path: str) -> None:
    kinds = [kind for kind in (get_args(hint) if get_origin(hint) is not tuple else ()) or (hint,)]
    if value is None and type(None) in kinds:
        return
    kind = next(kind for kind in kinds if kind is not type(None))
    if is_dataclass(kind):
        if not isinstance(value, kind):  # type: ignore[arg-type]
            raise ValueError(f"{path} is {value!r}, needed: a mapping")
        check_values(value, f"{path}.")
    elif get_origin(kind) is tuple:
        _check_tuple(value, get_args(kind), name, path)
    elif kind in (int, float):
        _check_number(value, kind is int, name, path)
    elif not isinstance(value, kind):
        raise ValueError(f"{path} is {value!r}, needed: {kind.__name__}")


def _check_tuple(value: Any, kinds: Sequence[Any], name: str, path: str) -> None:
    endless = kinds[-1] is ...
    if not isinstance(value, tuple) or (not endless and len(value) != len(kinds)):
        raise ValueError(f"{path} is {value!r}, needed: a list" + ("" if endless else f" of {len(kinds)}"))
    for i, entry in enumerate(value):
        _check(entry, kinds[0] if endless else kinds[i], name, f"{path}[{i}]")


def _check_number(value: Any, whole: bool, name: str, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        raise ValueError(f"{path} is {value!r}, needed: {'an integer' if whole else 'a number'}")
    least = -math.inf if name in _MAY_BE_NEGATIVE else 0
    if not (value >= least and abs(value) <= _MOST) or (value == 0 and name not in _MAY_BE_ZERO | _MAY_BE_NEGATIVE):
        bound = "" if least < 0 else " from 0 up" if name in _MAY_BE_ZERO else " above 0"
        raise ValueError(f"{path} is {value!r}, needed: a number{bound} and up to {_MOST}")
