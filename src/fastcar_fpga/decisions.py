"""Replay decisions, saved from a run or synthetic, and the passes in which they were made."""

from __future__ import annotations

import json
import math
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.checkpoints.architectures import spec_from_dict
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.network import Spec
from fastcar_cli.system.files import read_arrays, write_arrays
from fastcar_cli.system.plain_data import Count, Foreign, Size, checked, parse_json
from fastcar_fpga.layer import INDEX_BITS, check_rows
from fastcar_fpga.workload import Workload

Bits = NDArray[np.bool_]
Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Windows:
    """Passes in order, from the first visual token on; row r belongs to video r % videos.

    taken [passes]: input tokens of each video. accepted [passes, videos]: how many became final. replayed [layers,
    rows, inputs]: decisions of all inputs, pass by pass. Raises ValueError if these contradict each other.
    """

    taken: Counts
    accepted: Counts
    replayed: Bits

    def __post_init__(self) -> None:
        taken, accepted, rows = self.taken, self.accepted, self.replayed.shape[1]
        if accepted.ndim != 2 or taken.shape != accepted.shape[:1] or not accepted.size or rows % accepted.shape[1]:
            raise ValueError(f"shapes of taken {taken.shape} and accepted {accepted.shape} do not fit {rows} rows")
        if taken.min() < 1 or accepted.min() < 0 or (accepted > taken[:, None]).any():
            raise ValueError("a pass accepts more tokens than it takes, or takes none")
        if taken.sum() != self.replayed.shape[2]:
            raise ValueError(f"{taken.sum()} input tokens, but decisions for {self.replayed.shape[2]} tokens")

    def within(self, tokens: int) -> Windows:
        """The same in passes of at most `tokens` tokens per video, without passes that only have rejected tokens."""
        parts = -(-self.taken // tokens)
        number = np.repeat(np.arange(len(parts)), parts)
        offset = (np.arange(len(number)) - (parts.cumsum() - parts)[number]) * tokens
        taken = np.minimum(self.taken[number] - offset, tokens)
        accepted = np.clip(self.accepted[number] - offset[:, None], 0, taken[:, None])
        used = (offset == 0) | accepted.any(1)
        inputs = np.repeat(used, taken)
        return Windows(taken[used], accepted[used], self.replayed[:, :, inputs])

    @property
    def first(self) -> Counts:
        """The first input token of each pass and video, [passes, videos]."""
        return self.accepted.cumsum(0) - self.accepted

    @property
    def tokens(self) -> Counts:
        """The input token in each slot (draft x rows + row), [slots, passes]; -1 if the pass leaves it empty."""
        rows, videos = self.replayed.shape[1], self.accepted.shape[1]
        first = np.tile(self.first, rows // videos).T
        drafts = np.arange(self.taken.max())[:, None, None]
        return np.where(drafts < self.taken, first + drafts, -1).reshape(-1, len(self.taken))

    @property
    def slots(self) -> Bits:
        """Which slots replay, [layers, slots, passes]; empty ones do not."""
        layers, _, inputs = self.replayed.shape
        drafts = np.arange(self.taken.max())[:, None]
        there = drafts < self.taken
        column = np.where(there, self.taken.cumsum() - self.taken + drafts, 0).clip(max=inputs - 1)
        by_draft = np.ascontiguousarray((self.replayed[:, :, column] & there).transpose(0, 2, 1, 3))
        return by_draft.reshape(layers, -1, len(self.taken))

    def final(self, tokens: int) -> Bits:
        """Decisions of the first final tokens of each row, [layers, rows, tokens]; ValueError if there are fewer."""
        if self.accepted.sum(0).min() < tokens:
            raise ValueError(f"a video has {self.accepted.sum(0).min()} final tokens, expected {tokens}")
        begin = self.taken.cumsum() - self.taken
        rows, videos = self.replayed.shape[1], self.accepted.shape[1]
        columns = []
        for first, accepted in zip(self.first.T, self.accepted.T, strict=True):
            # The pass in which each token became final.
            number = np.repeat(np.arange(len(accepted)), accepted)[:tokens]
            columns.append(begin[number] + np.arange(tokens) - first[number])
        return np.take_along_axis(self.replayed, np.tile(np.stack(columns), (rows // videos, 1))[None], 2)


@dataclass(frozen=True)
class Decisions:
    """Decisions, and what emulating them requires: replayed [layers, rows, T*N - 1], for the input tokens that became
    final, and the passes, if some took several tokens per video.
    """

    replayed: Bits
    spec: Spec
    prompt: int
    frames: int
    window: int | None
    sinks: int
    note: dict[str, Any]
    windows: Windows | None = None

    def fitting(self) -> Decisions:
        """The same in passes that fit the Index Register. Raises RequestError for more rows than it has bits."""
        rows = self.replayed.shape[1]
        check_rows(rows)
        return self if self.windows is None else replace(self, windows=self.windows.within(INDEX_BITS // rows))


class _Meta(Foreign):
    """A file's description of its decisions."""

    format: Literal["fastcar-decisions"]
    version: Literal[1, 2]  # 1 has no windows
    shape: tuple[Count, Count, Count]
    spec: dict[str, Any]
    prompt: Size
    frames: Size
    window: Size | None = None
    sinks: Count
    note: dict[str, Any]


def save(file: Path, decisions: Decisions) -> None:
    """Write a file: one bit per decision, compressed. Raises RunError if it can't be written."""
    about = dict(vars(decisions), spec=decisions.spec.to_dict())
    bits, windows = about.pop("replayed"), about.pop("windows")
    passes = {}
    if windows is not None:
        bits, passes = windows.replayed, {"taken": windows.taken, "accepted": windows.accepted}
    meta = {"format": "fastcar-decisions", "version": 2, "shape": list(bits.shape), **about}
    write_arrays(file, {"bits": np.packbits(bits), "meta": np.array(json.dumps(meta)), **passes})


def read(file: Path) -> Decisions:
    """Read what `save` wrote. Raises RequestError naming the file for anything else."""
    try:
        if file.is_file() and not zipfile.is_zipfile(file):
            raise RequestError(f"{file} is not a file of replay decisions", hint="give a file from generate --trace")
        data = read_arrays(file)
        meta = checked(_Meta, parse_json(str(data["meta"])), file)
        count = math.prod(meta.shape)
        bits = np.unpackbits(data["bits"])[:count]
        if len(bits) != count:
            raise ValueError("it lacks some of the decisions")
        spec, windows = spec_from_dict(meta.spec), None
        replayed = bits.astype(bool).reshape(meta.shape)
        if "taken" in data:
            windows = Windows(data["taken"].astype(np.int64), data["accepted"].astype(np.int64), replayed)
            last = meta.frames * spec.tokens_per_frame - 1
            replayed = windows.final(min(last, int(windows.accepted.sum(0).min())))
        return Decisions(replayed, spec, meta.prompt, meta.frames, meta.window, meta.sinks, meta.note, windows)
    except FileNotFoundError:
        raise RequestError(f"{file}: there is no such file") from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as e:
        raise RequestError(f"{file} is damaged, or not a file of replay decisions: {e}") from None


def draw(
    work: Workload,
    ratio: float,
    seed: int = 0,
    spread: str = "eligible",
    pair_correlation: float = 0.0,
    profile: str = "flat",
) -> Bits:
    """Synthetic decisions [layers, rows, passes] of a workload with a mean replay ratio over all passes.

    spread: `eligible` leaves out the first frame, `all` spreads the ratio over every pass (our reading of the
    published table). pair_correlation: probability that rows i and i + rows / 2 share their decision. profile: `flat`,
    or `valley`: the middle layers replay least (the outline of the published Figure 5). Raises RequestError if the
    ratio can't be reached.
    """
    layers, rows, passes = work.layers, work.rows, work.steps
    first = work.tokens_per_frame if spread == "eligible" else 0
    if first >= passes:
        raise RequestError(
            "in a video of 1 frame no pass can replay", hint=("use ", Key("frames"), " 2, or ", Key("spread"), " all")
        )
    rate = ratio * passes / (passes - first)
    if rate > 1 + 1e-12:
        raise RequestError(
            f"with {work.frames} frames a ratio of at most {(passes - first) / passes:.4f} is possible",
            key="ratio",
            value=f"{ratio:g}",
            hint=("add ", Key("spread"), " all, so that passes of the first frame may replay"),
        )
    rates = np.full(layers, min(rate, 1.0))
    if profile == "valley" and layers > 1:
        shape, low, high = 0.5 + np.linspace(-1, 1, layers) ** 2, 0.0, 1e6
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (middle, high) if np.minimum(shape * middle, 1).mean() < rate else (low, middle)
        rates = np.minimum(shape * high, 1)
    rng = np.random.default_rng(seed)
    numbers = rng.random((layers, rows, passes))
    if pair_correlation and rows % 2 == 0:
        half = rows // 2
        shared = rng.random((layers, half, passes)) < pair_correlation
        numbers[:, half:] = np.where(shared, numbers[:, :half], numbers[:, half:])
    bits = numbers < rates[:, None, None]
    bits[:, :, :first] = False
    return bits
