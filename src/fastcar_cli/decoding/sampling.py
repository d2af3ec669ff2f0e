"""From guided logits to codes: temperature, top-k, top-p, one uniform number a draw.

A draw is the inverse of the cumulative distribution at a number that belongs to the video, so what
else is in the batch cannot change it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SamplingSettings:
    """Guidance scale (1 is none), temperature (0 is greedy), top-k (0 is off), top-p (1 is off).

    `first_frame_top_p` replaces top_p in frame 0, where a rare code may begin an object.
    """

    cfg: float = 3.0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    first_frame_top_p: float | None = None

    def top_p_of(self, frame: int) -> float:
        """The top-p in force in this frame."""
        return self.first_frame_top_p if frame == 0 and self.first_frame_top_p is not None else self.top_p


def guide(logits: Tensor, cfg: float) -> Tensor:
    """U + cfg * (c - u) of logits [2 P, K], conditional rows first: [P, K]. With cfg 1: [P, K] as they are."""
    if cfg == 1.0:
        return logits
    c, u = logits.chunk(2)
    return u + cfg * (c - u)


def running_sum(probs: Tensor) -> Tensor:
    """Sums along the codes of [P, K], in an order of additions that does not change from run to run.

    On CUDA a single row goes to a scan whose order does; beside a second row it goes to one that is fixed.
    """
    if probs.is_cuda and len(probs) == 1:
        return torch.cat([probs, probs]).cumsum(-1)[:1]
    return probs.cumsum(-1)


def distribution(logits: Tensor, temperature: float, top_k: int, top_p: float | Tensor) -> tuple[Tensor, Tensor]:
    """Probabilities after top-k and top-p in falling order, and the codes they belong to, each [P, K].

    Ties with the k-th largest logit are kept. The entry that crosses top-p is kept, so at least one is.
    A top_p that is a tensor, float32 [1], is not looked at on the host; the result is the same.
    """
    logits = logits.float() / temperature
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    if 0 < top_k < values.shape[-1]:
        values = values.masked_fill(values < values[..., top_k - 1 : top_k], float("-inf"))
    probs = values.softmax(-1)
    if isinstance(top_p, Tensor) or top_p < 1.0:
        before = running_sum(probs) - probs
        kept = probs.masked_fill(before >= top_p, 0.0)
        kept = kept / kept.sum(-1, keepdim=True)
        probs = torch.where(top_p < 1.0, kept, probs) if isinstance(top_p, Tensor) else kept
    return probs, order


def sample(logits: Tensor, uniform: Tensor, settings: SamplingSettings, frame: int) -> Tensor:
    """One code a video, int64 [P], of guided logits [P, K] and uniform numbers in [0, 1) [P]."""
    return draw(logits, uniform, settings, settings.top_p_of(frame))


def draw(logits: Tensor, uniform: Tensor, settings: SamplingSettings, top_p: float | Tensor) -> Tensor:
    """As `sample`, with the top-p in force given; a tensor [1] stays on the device."""
    if settings.temperature == 0:
        return logits.argmax(-1)
    probs, order = distribution(logits, settings.temperature, settings.top_k, top_p)
    cumulative = running_sum(probs)
    # Rounding may leave the last sum below 1: a draw above it takes the last entry that can be drawn.
    last = (probs > 0).sum(-1, keepdim=True) - 1
    place = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    return order.gather(-1, torch.minimum(place, last))[:, 0]


def uniforms(seed: int, tokens: int, depth: int) -> Tensor:
    """The random numbers of one video, float32 [tokens, depth], from its seed alone (drawn on the CPU)."""
    return torch.rand(tokens, depth, generator=torch.Generator().manual_seed(seed))
