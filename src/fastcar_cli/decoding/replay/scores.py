"""Scores of the gate: the higher a score, the smaller the expected change of a block's MLP output.

The temporal attention score is the method's own; the others are for comparison. Each is a small function of a
`BlockState`, registered by name. What a score has `remembered` of a token, it gets one frame later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fastcar_cli.decoding.replay.replay import temporal_attention_score


@dataclass(frozen=True)
class BlockState:
    """One block at one visual token, between attention and MLP, all rows. Valid only during the call."""

    layer: int  # index of the block
    t: int  # the input token
    tas_definition: str  # definition of TAS, `attention` or `released`
    input: Tensor  # the residual stream before the block, [rows, width]
    query: Tensor  # queries before rotation, [rows, heads, head_dim]
    rotated: Tensor  # queries after rotation
    aligned_key: Tensor  # the aligned token's keys, rotated, [rows, kv_heads, head_dim]
    attention: Tensor  # what attention added, [rows, width]
    after: Tensor  # the residual stream that the MLP reads, [rows, width]
    replayable: Tensor  # the MLP output that a replay would take, [rows, width]
    noise: Tensor  # random numbers in [0, 1) for this layer and token, [rows]
    mlp: Callable[[Tensor], Tensor]  # what the block's MLP would add to a residual stream [rows, width]


Of = Callable[[BlockState, Tensor], Tensor]
Remembered = Callable[[BlockState], Tensor]


class Score(NamedTuple):
    """A score: `of(state, before)` gives [rows]; `remembered(state)` is what the next frame gets as `before`."""

    of: Of
    remembered: Remembered | None
    description: str


# Scores by name, the method's own first.
SCORES: dict[str, Score] = {}
DEFAULT = "tas"
_NOTHING = torch.empty(0)


def score(name: str, remembered: Remembered | None = None) -> Callable[[Of], None]:
    """Register a score; its docstring is its description."""

    def register(of: Of) -> None:
        SCORES[name] = Score(of, remembered, (of.__doc__ or "").strip().rstrip("."))

    return register


def change(now: Tensor, before: Tensor) -> Tensor:
    """|now - before| / |before| of vectors [rows, ...], float32 [rows]."""
    now, before = now.float().flatten(1), before.float().flatten(1)
    return (now - before).norm(dim=1) / before.norm(dim=1).clamp_min(1e-12)


@score(DEFAULT)
def _tas(state: BlockState, _: Tensor) -> Tensor:
    """Temporal attention score, as `--tas` defines it."""
    return temporal_attention_score(
        state.rotated if state.tas_definition == "attention" else state.query, state.aligned_key
    )


@score("input", remembered=lambda state: state.input)
def _input(state: BlockState, before: Tensor) -> Tensor:
    """Minus the relative change of the block's input since the aligned token."""
    return -change(state.input, before)


@score("attention", remembered=lambda state: state.attention)
def _attention(state: BlockState, before: Tensor) -> Tensor:
    """Minus the relative change of the attention output since the aligned token."""
    return -change(state.attention, before)


@score("query", remembered=lambda state: state.query)
def _query(state: BlockState, before: Tensor) -> Tensor:
    """Cosine similarity of the queries of token and aligned token, before rotation, mean over heads."""
    return torch.cosine_similarity(state.query.float(), before.float(), dim=-1).mean(1)


@score("random")
def _random(state: BlockState, _: Tensor) -> Tensor:
    """Random number, from the video's seed."""
    return state.noise


@score("oracle")
def _oracle(state: BlockState, _: Tensor) -> Tensor:
    """Minus |true MLP output - cached output|; requires computing the MLP."""
    return -(state.mlp(state.after).float() - state.replayable.float()).norm(dim=-1)


class GateScorer:
    """A score on one batch, with its stored values of the last frame."""

    def __init__(self, name: str, frame: int, first: int) -> None:
        """`frame`: tokens per frame; `first`: the first token whose aligned token is known."""
        self._score, self._frame, self._first = SCORES[name], frame, first
        self._before: dict[tuple[int, int], Tensor] = {}

    def __call__(self, state: BlockState) -> Tensor:
        """The score of every row, [rows]; NaN without an aligned token. Call it for tokens in order."""
        place, remembered = (state.layer, state.t % self._frame), self._score.remembered
        before = self._before.get(place, _NOTHING)
        if remembered is not None:
            self._before[place] = remembered(state).clone()
        if state.t < self._first or (remembered is not None and not len(before)):
            return state.noise * torch.nan
        return self._score.of(state, before)


def noise(uniforms: Tensor, layers: int, rows: int) -> Tensor:
    """Random numbers in [0, 1) for the score `random`, [T*N, layers, rows], on the CPU, seeded by a video's first
    uniform.
    """
    videos = len(uniforms)
    each = []
    for first in uniforms[:, 0, 0].tolist():
        generator = torch.Generator().manual_seed(int(first * 2**53))
        each.append(torch.rand(uniforms.shape[1], layers, rows // videos, generator=generator))
    return torch.stack(each, -1).flatten(2)
