"""Damage to files, drawn at random: values of a document, its text, its bytes, or something else than a file."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBERS = (-1, 0, 1, 3, 7, 24, 10**6, 2**31 - 1, 2**31, 2**63, 2**64, 10**40, 10**400, 0.5, -1e300, 1e-300)
ODD: tuple[Any, ...] = (
    *NUMBERS, float("nan"), float("inf"), None, True, "", "x", "\ud800", "a\0b", "../..", "nan",
    [], {}, [[]], [None], {"a": 1},
    [1, 2, 3], ["x"] * 3, [0.5] * 5000,
)  # fmt: skip
TEXTS = (
    *("", "{", "[" * 5000, "[" * 100_000, "NaN", '{"a": Infinity}', '"\\ud800"', "\x00", "null", "[]", "1" * 5000),
    *('{"a":' * 3000, "\ufeff{}", "&a [*a]", "\x85\u2028", "a: " * 400, "- \n" * 400, "!!python/name:os.system x", "0"),
)


def _places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value of a document."""
    items = data.items() if isinstance(data, dict) else enumerate(data[:20]) if isinstance(data, list) else ()
    return [path, *(place for key, value in items for place in _places(value, (*path, key)))]


def changed(data: Any, rng: random.Random) -> Any:
    """The document with one value changed or taken out."""
    *way, last = rng.choice(_places(data)[1:] or [(0,)])
    at = data
    for key in way:
        at = at[key]
    if isinstance(at, dict) and rng.random() < 0.15:
        del at[last]
    elif isinstance(at, (dict, list)):
        at[last] = rng.choice(ODD)
    return data


def no_file(file: Path, rng: random.Random, *, pipe: bool = True) -> str:
    """Put a folder or a device where a file is; with `pipe` perhaps a pipe that nobody writes to."""
    file.unlink()
    makers: list[Callable[[Path], Any]] = [os.mkdir, lambda path: os.symlink("/dev/zero", path)]
    rng.choice([*makers, os.mkfifo] if pipe else makers)(file)
    return "no file"


def spoil(file: Path, rng: random.Random) -> str:
    """Cut a file, or change eight bytes of it."""
    data = bytearray(file.read_bytes())
    if rng.random() < 0.5:
        file.write_bytes(data[: rng.randrange(len(data) + 1)])
        return "cut"
    for _ in range(8):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    file.write_bytes(data)
    return "bytes"


def damage_json(file: Path, rng: random.Random, *, pipe: bool = True) -> str:
    """Damage a JSON file; returns what was done."""
    kind = rng.random()
    if kind < 0.75:
        file.write_text(json.dumps(changed(json.loads(file.read_text()), rng)))
        return "a value"
    if kind < 0.85:
        file.write_text(rng.choice(TEXTS))
        return "another text"
    return no_file(file, rng, pipe=pipe) if kind < 0.9 else spoil(file, rng)
