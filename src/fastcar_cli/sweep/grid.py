"""Which cells a sweep has: parsing of the axes, and their cross product with its dense references."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from fastcar_cli.config import choices
from fastcar_cli.config.keys import LARGEST
from fastcar_cli.config.lists import each_of
from fastcar_cli.config.tau import ALLOWED, Tau
from fastcar_cli.decoding.replay.scores import DEFAULT
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.prompt_list import prompts_in

AXES = {
    "score": choices.values(choices.Score),
    "gate": choices.values(choices.Gate),
    "draft": tuple(kind for kind in choices.values(choices.Draft) if kind != "auto"),
}
"""Axes that can be named as a whole, with all their values."""
RATIOS = (0.2, 0.5, 0.8)
"""Replay ratios at which scores are compared where none are named."""
DRAFT_WINDOWS = (4, 8, 16)
"""Windows in which drafts are compared where none are named."""
OFF = "off"


@dataclass(frozen=True)
class Cell:
    """One video of a sweep. tau and ratio None: dense; window None attends to everything.

    A `ratio` is held by a controller that moves tau; either applies to `score`. `draft` is "off" or kind and
    window of drafts, such as "jacobi-16"; they change the time and nothing else.
    """

    prompt: str
    seed: int
    tau: float | None
    window: int | None
    gate: str
    backend: str
    score: str = DEFAULT
    ratio: float | None = None
    draft: str = OFF

    @property
    def reference(self) -> Cell:
        """The dense cell that this one is compared with (itself where it is dense).

        Gate and score decide nothing in a dense run, so all share one dense cell; its gate is called `row`.
        """
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
        level = next((f"{k}{v:g}".replace(".", "p") for k, v in named.items() if v is not None), "dense")
        window = "" if self.window is None else f"-w{self.window}"
        gate = "" if level == "dense" else f"-{self.gate}"
        draft = "" if self.draft == OFF else f"-{self.draft}"
        score = "" if self.score == DEFAULT else f"-{self.score}"
        # What a cell of an earlier version did not have is left out where it is as it was then.
        later = {"score": DEFAULT, "ratio": None, "draft": OFF}
        unlike = {k: v for k, v in self.to_dict().items() if k not in later or v != later[k]}
        digest = hashlib.sha256(json.dumps(unlike, sort_keys=True).encode()).hexdigest()[:10]
        return f"{slug}-s{self.seed}-{level}{window}{gate}{score}{draft}-{self.backend}-{digest}"

    def to_dict(self) -> dict[str, Any]:
        """Its parameters for JSON; tau -inf is the string "-inf"."""
        return asdict(self) | {"tau": Tau.read(self.tau).plain()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Cell:
        """The cell of a document that holds what `to_dict` wrote. Raises ValueError for any other."""
        return _CELL.validate_python(data)


_CELL = TypeAdapter(Cell)


Group = tuple[Cell, ...]
"""A dense cell followed by the cells to compare with it: the unit of work of one worker."""


@dataclass(frozen=True)
class Grid:
    """The axes of a sweep. The dense cell of each prompt, seed, window and backend always belongs to it."""

    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    taus: tuple[float | None, ...]
    windows: tuple[int | None, ...] = (None,)
    gates: tuple[str, ...] = ("row",)
    backends: tuple[str, ...] = ("torch",)
    repeats: int = 1
    scores: tuple[str, ...] = (DEFAULT,)
    ratios: tuple[float, ...] = ()
    drafts: tuple[str, ...] = (OFF,)

    @property
    def levels(self) -> list[tuple[float | None, float | None]]:
        """The levels of the axes tau and ratio, without the dense run: (tau, ratio), one of them None."""
        return [*((t, None) for t in self.taus if t is not None), *((None, r) for r in self.ratios)]

    def groups(self) -> list[Group]:
        """Every group, in the order they are worked on."""
        groups = []
        for prompt in self.prompts:
            for seed in self.seeds:
                for window in self.windows:
                    for backend in self.backends:
                        dense = Cell(prompt, seed, None, window, "row", backend)
                        drafted = tuple(replace(dense, draft=draft) for draft in self.drafts if draft != OFF)
                        replaying = tuple(
                            replace(dense, gate=gate, score=score, tau=tau, ratio=ratio, draft=draft)
                            for draft in self.drafts
                            for score in self.scores
                            for gate in self.gates
                            for tau, ratio in self.levels
                        )
                        groups.append((dense, *drafted, *replaying))
        return groups

    def cells(self) -> Iterator[Cell]:
        """Every cell of every group."""
        return chain.from_iterable(self.groups())

    def __len__(self) -> int:
        """Number of cells."""
        groups = len(self.prompts) * len(self.seeds) * len(self.windows) * len(self.backends)
        replaying = len(self.gates) * len(self.scores) * len(self.levels) * len(self.drafts)
        return groups * (1 + len(set(self.drafts) - {OFF}) + replaying)

    def to_dict(self) -> dict[str, Any]:
        """For JSON, as results.json has it; the dense runs make "off" (null) part of every grid."""
        return {
            "prompts": list(self.prompts),
            "seeds": list(self.seeds),
            "tau": [None, *(Tau.read(t).plain() for t in self.taus if t is not None)],
            "window": list(self.windows),
            "gate": list(self.gates),
            "backend": list(self.backends),
            "score": list(self.scores),
            "ratio": list(self.ratios),
            "draft": list(self.drafts),
            "repeats": self.repeats,
        }


def parse_taus(text: str) -> tuple[float | None, ...]:
    """Thresholds of "off,0,-0.5,-inf". Raises RequestError."""

    def read(part: str) -> float | None:
        value = Tau.read(part).values[0]
        # -0.0 and 0.0 are one threshold and shall be one cell.
        return None if value == math.inf else value + 0.0

    return each_of("tau", text, read, "not a threshold", ALLOWED)


def parse_ratios(text: str) -> tuple[float, ...]:
    """Replay ratios of "0.2,0.5". Raises RequestError."""

    def read(part: str) -> float:
        if not 0 < float(part) < 1:
            raise ValueError(part)
        return float(part)

    return each_of("replay_ratio", text, read, "not a ratio", "numbers between 0 and 1, such as 0.5,0.8")


def parse_windows(text: str) -> tuple[int | None, ...]:
    """Windows of "off,256". Raises RequestError."""

    def read(part: str) -> int | None:
        if part.lower() == "off":
            return None
        if not (re.fullmatch("[0-9]{1,10}", part) and 1 <= int(part) <= LARGEST):
            raise ValueError(part)
        return int(part)

    return each_of("window", text, read, "not a window", "'off' and numbers of tokens")


def parse_drafts(kinds: str, windows: str | None) -> tuple[str, ...]:
    """Drafts of kinds "off,jacobi" in each of some windows "8,16". Raises RequestError."""

    def read(part: str) -> int:
        if not re.fullmatch("[0-9]{1,4}", part) or not 1 <= int(part) <= 1024:
            raise ValueError(part)
        return int(part)

    sizes: tuple[int, ...] = DRAFT_WINDOWS[-1:]
    if windows is not None:
        sizes = each_of("draft_window", windows, read, "not a draft length", "numbers of tokens, 1 to 1024")
    drafts: list[str] = []
    for kind in parse_names("draft", kinds, choices.values(choices.Draft)):
        drafts += [OFF] if kind == OFF else [f"{kind}-{size}" for size in sizes]
    return tuple(drafts)


def parse_names(option: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Comma-separated words out of `allowed`. Raises RequestError with the allowed ones."""

    def read(part: str) -> str:
        if part not in allowed:
            raise ValueError(part)
        return part

    return each_of(option, text, read, "unknown", ", ".join(allowed))


def read_prompts(file: Path) -> tuple[list[str], list[str]]:
    """The prompts of a file, each once, and notices. Raises RequestError, also for a line that repeats another."""
    listed = prompts_in(file, (Key("prompts"), f" {file}"))
    first: dict[str, int] = {}
    for number, line in listed.prompts.items():
        if line in first:
            raise RequestError(
                f"line {number} repeats line {first[line]}: {line!r}",
                key="prompts",
                value=file,
                hint=("more videos of a prompt come from more ", Key("seeds")),
            )
        first[line] = number
    return list(first), [f"{file}: {listed.repeated} entries repeat a prompt and share its video"] * (
        listed.repeated > 0
    )


def join_prompts(given: Sequence[str], file: Path | None) -> tuple[list[str], list[str]]:
    """Prompts of the command line and of a file together, and notices. Raises RequestError."""
    texts = [t.strip() for t in given]
    notices: list[str] = []
    if any(not t for t in texts):
        raise RequestError("the prompt is empty", hint="describe the video in a few words")
    if file is not None:
        more, notices = read_prompts(file)
        texts += more
    for i, text in enumerate(texts):
        if text in texts[:i]:
            raise RequestError(
                f"the prompt {text!r} is given twice", hint=("more videos of a prompt come from more ", Key("seeds"))
            )
    if not texts:
        raise RequestError("no prompt given", hint=("give one, or a file of them: ", Key("prompts")))
    return texts, notices
