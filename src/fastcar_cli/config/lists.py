"""Lists in options: comma-separated values, seeds, and shards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from fastcar_cli.errors import RequestError

MOST = 1_000_000  # maximum number of videos in a list, and of cells in a sweep

T = TypeVar("T")


def digits(text: str) -> str:
    """The given number, unchanged. Raises ValueError for grouped digits (1_000) and other scripts, unlike `float`."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def each_of(option: str, text: str, read: Callable[[str], T], what: str, allowed: str) -> tuple[T, ...]:
    """Values of comma-separated text. Raises RequestError for a value that `read` refuses, and for a repeated one."""
    values: list[T] = []
    for part in (p.strip() for p in text.split(",")):
        if not part:
            hint = "separate entries with one comma"
            raise RequestError("has an empty entry", key=option, value=repr(text), hint=hint)
        try:
            value = read(part)
        except ValueError:
            raise RequestError(f"{part!r} is {what}", key=option, value=text, allowed=allowed) from None
        if value in values:
            raise RequestError(f"{part} is given twice", key=option, value=text)
        values.append(value)
    return tuple(values)


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds of "0-3", "0,5,7" or a mixture. Raises RequestError."""

    def read(part: str) -> range:
        match = re.fullmatch(r"([0-9]{1,19})(?:-([0-9]{1,19}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, -1)
        if last < first or last >= 2**63 or last - first >= MOST:
            raise ValueError(part)
        return range(first, last + 1)

    ranges = each_of("seeds", text, read, "neither a seed nor a range", "0-3, 0,5,7 or 0-3,7")
    seeds = Counter(seed for several in ranges for seed in several)
    if (most := seeds.most_common(1))[0][1] > 1:
        raise RequestError(f"{most[0][0]} is given twice", key="seeds", value=text)
    return tuple(seeds)


def shard_of(things: Sequence[T], text: str | None) -> list[T]:
    """The items of shard "k/n": every n-th, so each item is in one shard."""
    k, n = (1, 1) if text is None else parse_shard(text)
    return list(things[k - 1 :: n])


def parse_shard(text: str) -> tuple[int, int]:
    """(3, 8) of "3/8". Raises RequestError."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise RequestError("not a valid shard", key="shard", value=text, allowed="k/n with k from 1 to n, such as 3/8")
    return int(match[1]), int(match[2])
