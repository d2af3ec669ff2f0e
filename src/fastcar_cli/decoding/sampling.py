"""From guided logits to codes: temperature, top-k, top-p, and one uniform number per code.

A code is the inverse cumulative distribution at one of the video's own numbers, whatever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.errors import Key, RunError
from fastcar_cli.models.sampling import SamplingSettings

Logits = Callable[[Tensor, int], Tensor]
"""Logits [rows, codes] of depth d, from the hidden states [rows, width] at depth 0 and the running sum of code
vectors [rows, code_width] after it; called in the order of the depths.
"""


def guide(logits: Tensor, cfg: float) -> Tensor:
    """Guided logits u + cfg * (c - u) [P, K] of logits [2 P, K], conditional rows first. cfg 1: [P, K], unchanged."""
    if cfg == 1.0:
        return logits
    c, u = logits.chunk(2)
    return u + cfg * (c - u)


def running_sum(probs: Tensor) -> Tensor:
    """Cumulative sums over the codes, [P, K], in a fixed order of additions, which CUDA has only from two rows on."""
    if probs.is_cuda and len(probs) == 1:
        return torch.cat([probs, probs]).cumsum(-1)[:1]
    return probs.cumsum(-1)


def distribution(
    logits: Tensor, temperature: float, top_k: int, top_p: float | Tensor, strict: bool = False
) -> tuple[Tensor, Tensor]:
    """Probabilities after top-k and top-p in falling order, and the codes they belong to, each [P, K].

    Ties with the k-th largest logit stay. The entry that crosses top-p stays; `strict`: so does the one after it if
    those before it sum to exactly top-p. A top_p that is a tensor, float32 [P, 1] or [1, 1], is not read on the host.
    """
    logits = logits.float() / temperature
    values, order = logits.sort(dim=-1, descending=True, stable=True)
    if 0 < top_k < values.shape[-1]:
        values = values.masked_fill(values < values[..., top_k - 1 : top_k], float("-inf"))
    probs = values.softmax(-1)
    if isinstance(top_p, Tensor) or top_p < 1.0:
        before = running_sum(probs) - probs
        kept = probs.masked_fill(before > top_p if strict else before >= top_p, 0.0)
        kept = kept / kept.sum(-1, keepdim=True)
        probs = torch.where(top_p < 1.0, kept, probs) if isinstance(top_p, Tensor) else kept
    return probs, order


def not_finite() -> RunError:
    """The error for logits that are not finite."""
    return RunError(
        "the model's logits are NaN or infinite", hint=("use another ", Key("dtype"), ", or download the weights again")
    )


def sample(logits: Tensor, uniform: Tensor, settings: SamplingSettings, top_p: float | Tensor) -> Tensor:
    """Sample one code per video, int64 [P], from guided logits [P, K] with uniform numbers in [0, 1) [P].

    `top_p`: see `distribution`. On the CPU logits that are NaN or infinite raise RunError.
    """
    if logits.device.type == "cpu" and not bool((logits < math.inf).all()):
        raise not_finite()
    if settings.temperature == 0:
        return logits.argmax(-1)
    probs, order = distribution(logits, settings.temperature, settings.top_k, top_p, settings.top_p_strict)
    cumulative = running_sum(probs)
    # Rounding may leave the last sum below 1: larger numbers select the last possible entry.
    last = (probs > 0).sum(-1, keepdim=True) - 1
    rank = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    return order.gather(-1, torch.minimum(rank, last))[:, 0]


def drawing(seed: int, depth: int) -> Callable[[int], Tensor]:
    """A function that gives a video's random numbers, from its seed alone: float32 [n, depth] of the next n tokens."""
    if seed >> 32:
        # torch's generator uses only the lowest 32 bits of a seed.
        large = np.random.default_rng(seed)
        return lambda tokens: torch.from_numpy(large.random((tokens, depth), dtype=np.float32))
    generator = torch.Generator().manual_seed(seed)
    return lambda tokens: torch.rand(tokens, depth, generator=generator, device="cpu")


def uniforms(seed: int, tokens: int, depth: int) -> Tensor:
    """The random numbers of a whole video, see `drawing`."""
    return drawing(seed, depth)(tokens)
