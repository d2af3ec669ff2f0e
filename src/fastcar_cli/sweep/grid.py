"""The cells of a sweep: parses the axes, and forms their cross product with the dense references."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, product
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fastcar_cli.config.choices import AXES
from fastcar_cli.config.keys import LARGEST
from fastcar_cli.config.lists import each_of
from fastcar_cli.config.tau import ALLOWED, Tau
from fastcar_cli.decoding.replay.scores import DEFAULT
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.prompt import Listed, prompts_in
from fastcar_cli.system.plain_data import Size

WHOLE = {name: tuple(word for word in AXES[name] if word != "auto") for name in ("score", "gate", "draft")}
"""Axes that --axis selects with all their values."""
OFF = "off"


@dataclass(frozen=True)
class Cell:
    """One video of a sweep. `draft` changes only the time."""

    prompt: str
    seed: int
    tau: float | None  # None, like ratio, in a dense cell
    window: int | None  # None: full attention
    gate: str
    backend: str
    score: str = DEFAULT  # that tau or ratio applies to
    ratio: float | None = None  # a controller adjusts tau to reach it
    draft: str = OFF  # "off", or kind and draft length, such as "jacobi-16"

    @property
    def reference(self) -> Cell:
        """The dense cell to compare this one with (itself if dense); all gates and scores share it."""
        return replace(self, tau=None, ratio=None, gate="row", score=DEFAULT, draft=OFF)

    @property
    def dense(self) -> bool:
        """Whether this is a reference."""
        return self.tau is None and self.ratio is None and self.draft == OFF

    @property
    def id(self) -> str:
        """Name of its files: readable, and unique by a hash over its parameters."""
        slug = re.sub(r"[^a-z0-9]+", "-", self.prompt.lower()).strip("-")[:40].strip("-") or "video"
        named = {"tau": self.tau, "ratio": self.ratio}
        parts = [next((f"{k}{v:g}".replace(".", "p") for k, v in named.items() if v is not None), "dense")]
        parts += [] if self.window is None else [f"w{self.window}"]
        parts += [] if parts[0] == "dense" else [self.gate]
        parts += [name for name in (self.score, self.draft) if name not in (DEFAULT, OFF)]
        # Parameters that earlier versions did not have count only if they differ from the default.
        later = {"score": DEFAULT, "ratio": None, "draft": OFF}
        unlike = {k: v for k, v in self.to_dict().items() if k not in later or v != later[k]}
        digest = hashlib.sha256(json.dumps(unlike, sort_keys=True).encode()).hexdigest()[:10]
        return "-".join([slug, f"s{self.seed}", *parts, self.backend, digest])

    def to_dict(self) -> dict[str, Any]:
        """The parameters for JSON; tau -inf is the string "-inf"."""
        return asdict(self) | {"tau": Tau.read(self.tau).plain()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Cell:
        """The cell of a document with the keys of `to_dict`. Raises ValueError for any other."""
        return _CELL.validate_python(data)


_CELL = TypeAdapter(Cell)

Group = tuple[Cell, ...]  # a dense cell followed by the cells to compare with it: the unit of work of one worker


@dataclass(frozen=True)
class Grid:
    """The axes of a sweep. The dense cell of each prompt, seed, window and backend always belongs to it."""

    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    tau: tuple[float | None, ...]
    window: tuple[int | None, ...] = (None,)
    gate: tuple[str, ...] = ("row",)
    backend: tuple[str, ...] = ("torch",)
    score: tuple[str, ...] = (DEFAULT,)
    ratio: tuple[float, ...] = ()
    draft: tuple[str, ...] = (OFF,)
    repeats: Size = 1

    @property
    def levels(self) -> list[tuple[float | None, float | None]]:
        """The levels of the axes tau and ratio, without the dense run: (tau, ratio), one of them None."""
        return [*((t, None) for t in self.tau if t is not None), *((None, r) for r in self.ratio)]

    def groups(self) -> list[Group]:
        """Every group, in the order in which they run."""
        groups = []
        for prompt, seed, window, backend in product(self.prompts, self.seeds, self.window, self.backend):
            dense = Cell(prompt, seed, None, window, "row", backend)
            drafted = (replace(dense, draft=draft) for draft in self.draft if draft != OFF)
            replaying = (
                replace(dense, draft=draft, score=score, gate=gate, tau=tau, ratio=ratio)
                for draft, score, gate, (tau, ratio) in product(self.draft, self.score, self.gate, self.levels)
            )
            groups.append((dense, *drafted, *replaying))
        return groups

    def cells(self) -> Iterator[Cell]:
        """Every cell of every group."""
        return chain.from_iterable(self.groups())

    def __len__(self) -> int:
        """Number of cells."""
        groups = len(self.prompts) * len(self.seeds) * len(self.window) * len(self.backend)
        replaying = len(self.gate) * len(self.score) * len(self.levels) * len(self.draft)
        return groups * (1 + len(set(self.draft) - {OFF}) + replaying)

    def joined(self, more: Grid) -> Grid:
        """The axes of both grids: new values go last, but seeds and ratios ascend, and thresholds descend from off."""
        both = {k: (*a, *(v for v in getattr(more, k) if v not in a)) for k, a in vars(self).items() if k != "repeats"}
        both |= {"seeds": tuple(sorted(both["seeds"])), "ratio": tuple(sorted(both["ratio"]))}
        both["tau"] = tuple(sorted(both["tau"], key=lambda t: -math.inf if t is None else -t))
        return Grid(**both, repeats=max(self.repeats, more.repeats))

    def to_dict(self) -> dict[str, Any]:
        """For JSON; tau always includes "off" (null), because every grid has dense runs."""
        taus = [None, *(Tau.read(t).plain() for t in self.tau if t is not None)]
        return {k: [*v] if isinstance(v, tuple) else v for k, v in asdict(self).items()} | {"tau": taus}


def _tau(part: str) -> float | None:
    value = Tau.read(part).values[0]
    # -0.0 and 0.0 are one threshold and one cell.
    return None if value == math.inf else value + 0.0


def _ratio(part: str) -> float:
    if not 0 < float(part) < 1:
        raise ValueError(part)
    return float(part)


def _tokens(part: str, most: int = LARGEST) -> int:
    if not (re.fullmatch("[0-9]{1,10}", part) and 1 <= int(part) <= most):
        raise ValueError(part)
    return int(part)


_READERS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "tau": (_tau, "not a threshold", ALLOWED),
    "replay_ratio": (_ratio, "not a ratio", "numbers between 0 and 1, such as 0.5,0.8"),
    "window": (
        lambda part: None if part.lower() == OFF else _tokens(part),
        "not a window",
        "'off' and numbers of tokens",
    ),
    "draft_window": (partial(_tokens, most=1024), "not a draft length", "numbers of tokens, 1 to 1024"),
}


def parse_axis(name: str, text: str) -> tuple[Any, ...]:
    """Values of a comma-separated option, such as "off,0,-0.5,-inf" of tau. Raises RequestError."""
    return parse_names(name, text, AXES[name]) if name in AXES else each_of(name, text, *_READERS[name])


def parse_names(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Comma-separated words from `allowed`. Raises RequestError with the allowed ones."""

    def read(part: str) -> str:
        if part not in allowed:
            raise ValueError(part)
        return part

    return each_of(option, text, read, "unknown", ", ".join(allowed))


def join_prompts(given: Sequence[str], file: Path | None) -> tuple[list[str], list[str]]:
    """Prompts of the command line and of a file together, and notices. Raises RequestError, also for a repeated one."""
    listed = Listed({}, "") if file is None else prompts_in(file, (Key("prompts"), f" {file}"))
    lines: dict[str, int] = {}
    for line, text in [*((0, t.strip()) for t in given), *listed.prompts.items()]:
        if not text:
            raise RequestError("the prompt is empty", hint="describe the video in a few words")
        if text in lines:
            twice = RequestError(f"the prompt {text!r} is given twice", hint=_MORE)
            said = f"line {line} repeats line {lines[text]}: {text!r}"
            raise RequestError(said, key="prompts", value=file, hint=_MORE) if lines[text] else twice
        lines[text] = line
    if not lines:
        raise RequestError("no prompt given", hint=("give a prompt, or a file of prompts: ", Key("prompts")))
    notices = [f"{file}: {listed.repeated} entries repeat a prompt and share its video"] if listed.repeated else []
    return list(lines), notices


_MORE = ("for more videos of a prompt, add ", Key("seeds"))
