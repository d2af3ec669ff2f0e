"""Prompts: texts, prompt files, or frames with actions; the protocol of tokenizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.errors import RequestError, Text
from fastcar_cli.system.files import read_text
from fastcar_cli.system.plain_data import parse_json

if TYPE_CHECKING:
    from torch import Tensor


class ActionPart(NamedTuple):
    """Numbers of an action that share a name: their ranges and unit; missing `optional` ones are zero."""

    name: str
    low: tuple[float, ...]
    high: tuple[float, ...]
    unit: str
    optional: bool = False

    def __str__(self) -> str:
        """The name, ranges and unit."""
        ranges = [f"{a:.4g} to {b:.4g}" for a, b in zip(self.low, self.high, strict=True)]
        return f"{self.name}: {', '.join(dict.fromkeys(ranges))} ({self.unit})"


def ranges_of(parts: Sequence[ActionPart]) -> NDArray[np.float64]:
    """Minimum and maximum of each number of an action, [2, A]."""
    return np.concatenate([(part.low, part.high) for part in parts], 1)


class _Input:
    """Frames with a name, and actions; the constructor checks them."""

    actions: NDArray[np.float32] | None
    name: str

    def __post_init__(self) -> None:
        actions = self.actions
        if actions is not None and (actions.ndim != 2 or not np.issubdtype(actions.dtype, np.floating)):
            said = f"{self.name}: actions are {actions.dtype} {list(actions.shape)}"
            raise RequestError(f"{said}, expected floats [frames, numbers]")
        if actions is not None and not np.isfinite(actions).all():
            raise RequestError(f"{self.name}: actions contain NaN or infinite values")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, eq=False)
class Clip(_Input):
    """The first frames of a video, and an action per frame; frames after a model's context are ignored. Raises
    RequestError for other shapes, dtypes or values.
    """

    frames: NDArray[np.uint8] | NDArray[np.float32]  # uint8 [S, H, W, 3], or float32 in 0 .. 1
    actions: NDArray[np.float32] | None = None  # float32 [S, A] or one row less: row t leads from frame t to t + 1
    name: str = "input"  # its name in messages, such as the file's
    text: NDArray[np.float32] | None = None  # text embedding float32 [tokens, width]; the model attends to every row

    def __post_init__(self) -> None:
        floats = self.frames.dtype == np.float32
        if self.frames.ndim != 4 or self.frames.shape[-1] != 3 or not (floats or self.frames.dtype == np.uint8):
            given = f"{self.frames.dtype} {list(self.frames.shape)}"
            raise RequestError(f"{self.name}: frames are {given}, expected uint8 [S, H, W, 3], or float32 in 0 .. 1")
        if floats and not ((self.frames >= 0) & (self.frames <= 1)).all():
            raise RequestError(f"{self.name}: float32 frames are not in 0 .. 1", hint="divide by 255, or give uint8")
        super().__post_init__()


@dataclass(frozen=True, eq=False)
class TokenisedClip(_Input):
    """Like `Clip`, but with the context frames as ids of the model's tokenizer, as recipes store them."""

    ids: tuple[int, ...]
    actions: NDArray[np.float32] | None = None
    name: str = "input"
    text: NDArray[np.float32] | None = None


Prompt = str | Clip | TokenisedClip  # text, or frames and actions for a model to continue


def text_of(prompt: Prompt, model: str = "the model") -> str:
    """The text of a prompt. Raises RequestError for a clip."""
    if not isinstance(prompt, str):
        raise RequestError(f"{model} takes text, not frames", hint="describe the video in a few words")
    return prompt


MOST_NOTICES = 20

OnProgress = Callable[[int, int], None]  # receives the work done and the total


@dataclass(frozen=True)
class Reading:
    """Ids of a prompt, their tokens, unknown words, and tokens chosen by the seed."""

    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    unknown: tuple[str, ...]
    drawn: tuple[str, ...] = ()


class PromptReader(Protocol):
    """Protocol of a model's tokenizer, as the pipeline uses it."""

    def read(self, prompt: Prompt, on_progress: OnProgress | None = None) -> Reading:
        """Token ids of a prompt. Raises RequestError for an invalid prompt."""

    def complete(self, reading: Reading, seed: int) -> Reading:
        """The reading, completed with the seed if the prompt leaves open what the model needs."""

    def blank(self) -> tuple[int, ...]:
        """Ids of the blank prompt (the unconditional row)."""

    def conditions(self, prompts: Sequence[Prompt], frames: int) -> Tensor | None:
        """Conditions of videos with this many frames, besides their prompts; see `Network.added`."""

    def notices(self, prompt: Prompt, model: str) -> list[str]:
        """Notes for the user before the run. Raises RequestError for a prompt that the model can't draw."""


def first_of(notices: Sequence[str]) -> list[str]:
    """The first notices on many prompts, and the number of the others."""
    more = len(notices) - MOST_NOTICES
    return [*notices] if more <= 0 else [*notices[:MOST_NOTICES], f"{more:,} more notes on prompts are not shown"]


def clips_of(inputs: Any, actions: Any = None) -> list[Clip]:
    """Clips from arrays or tensors, frames [rows, S, H, W, 3] and actions [rows, S, A]. Raises RequestError."""
    frames = np.asarray(inputs)
    moves = None if actions is None else np.asarray(actions, dtype=np.float32)
    if frames.ndim != 5:
        raise RequestError(f"inputs have shape {list(frames.shape)}, expected [rows, S, H, W, 3]")
    if moves is not None and (moves.ndim != 3 or len(moves) != len(frames)):
        raise RequestError(f"actions have shape {list(moves.shape)}, expected [{len(frames)}, S, A]")
    return [Clip(f, None if moves is None else moves[i], f"row {i}") for i, f in enumerate(frames)]


class Listed(NamedTuple):
    """The prompts of a file by number, the unit of the numbers, and the count of repeated entries."""

    prompts: dict[int, str]
    unit: str
    repeated: int = 0


def prompts_in(file: Path, where: Text) -> Listed:
    """Read the prompts of a text file, one per line except empty lines and lines that begin with #, or of JSON.

    A .json file contains a list, a .jsonl file an entry per line: strings, or objects with "prompt_en" (VBench) or
    "prompt"; repeated ones count once. Raises RequestError with a message that begins with `where`.
    """
    text = read_text(file, where, "utf-8-sig")
    numbered = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
    lines = {number: line for number, line in numbered if line and not line.startswith("#")}
    if file.suffix.lower() in (".json", ".jsonl"):
        try:
            # A piped JSON Lines text is copied to a .json file, so the content decides.
            by_line = file.suffix.lower() == ".jsonl" or (len(lines) > 1 and all(map(_is_json, lines.values())))
            entries = [parse_json(line) for line in lines.values()] if by_line else parse_json(text)
        except ValueError as e:
            raise RequestError(f"is not valid JSON: {e}", where=where) from None
        if not isinstance(entries, list):
            raise RequestError(f"the top level is a {type(entries).__name__}, expected a list", where=where)
        texts = [_text(entry, i, where) for i, entry in enumerate(entries)]
        single = [*dict.fromkeys(texts)]
        listed = Listed(dict(enumerate(single, 1)), "prompt", len(texts) - len(single))
    else:
        listed = Listed(lines, "line")
        if any(_is_json(part) for part in (text, *[*lines.values()][:1])):
            raise RequestError("is JSON", where=where, hint="rename it .json, or .jsonl if each line is an entry")
    if not listed.prompts:
        raise RequestError("has no prompt", where=where, hint="write one prompt per line; # begins a comment")
    return listed


def _text(entry: Any, number: int, where: Text) -> str:
    value = entry.get("prompt_en", entry.get("prompt")) if isinstance(entry, dict) else entry
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"entry {number} is not a text, and has no text under 'prompt_en' or 'prompt'", where=where)
    return value.strip()


def _is_json(text: str) -> bool:
    try:
        return text.lstrip()[:1] in ("[", "{") and bool(parse_json(text))
    except ValueError:
        return False
