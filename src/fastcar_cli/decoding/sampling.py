"""From guided logits to codes: temperature, top-k, top-p, one uniform number a draw.

A draw is the inverse of the cumulative distribution at a number that belongs to the video, so what
else is in the batch cannot change it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from fastcar_cli.errors import Key, RunError
from fastcar_cli.models.sampling import SamplingSettings

Logits = Callable[[Tensor, int], Tensor]
"""Logits [rows, codes] of depth d, from the hidden states [rows, width] at depth 0 and the running sum of code
vectors [rows, code_width] after it; called in the order of the depths.
"""


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


def distribution(
    logits: Tensor, temperature: float, top_k: int, top_p: float | Tensor, strict: bool = False
) -> tuple[Tensor, Tensor]:
    """Probabilities after top-k and top-p in falling order, and the codes they belong to, each [P, K].

    Ties with the k-th largest logit stay. The entry that crosses top-p stays, so at least one is; `strict`: so is
    the one after it where those before hold top-p exactly. A top_p that is a tensor, float32 [P, 1] or [1, 1], is not
    read on the host; the result is the same.
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
    """Logits that nothing can be drawn from."""
    return RunError(
        "the model's logits are not finite", hint=("its weights are broken, or too large for this ", Key("dtype"))
    )


def sample(logits: Tensor, uniform: Tensor, settings: SamplingSettings, top_p: float | Tensor) -> Tensor:
    """One code a video, int64 [P], of guided logits [P, K] and uniform numbers in [0, 1) [P].

    `top_p` is the one in force (`SamplingSettings.top_p_of`); a tensor, as in `distribution`, stays on the device. On
    the CPU logits that are NaN or infinite raise RunError.
    """
    if logits.device.type == "cpu" and not bool((logits < math.inf).all()):
        raise not_finite()
    if settings.temperature == 0:
        return logits.argmax(-1)
    probs, order = distribution(logits, settings.temperature, settings.top_k, top_p, settings.top_p_strict)
    cumulative = running_sum(probs)
    # Rounding may leave the last sum below 1: a draw above it takes the last entry that can be drawn.
    last = (probs > 0).sum(-1, keepdim=True) - 1
    rank = torch.searchsorted(cumulative, uniform[:, None] * cumulative[:, -1:], right=True)
    return order.gather(-1, torch.minimum(rank, last))[:, 0]


class CodeSampler:
    """Draws the codes of a position, one depth after another.

    codebooks: a codebook a depth. uniforms [P, T*N, depth] fix the draws.
    """

    def __init__(
        self, codebooks: Sequence[nn.Embedding], settings: SamplingSettings, uniforms: Tensor, tokens_per_frame: int
    ) -> None:
        self._codebooks, self._settings, self._uniforms = codebooks, settings, uniforms
        first, later = settings.top_p_of(0), settings.top_p_of(1)
        # By position on the device, only where it changes.
        self._top_ps: Tensor | None = None
        if first != later:
            self._top_ps = torch.full(uniforms.shape[1:2], later, device=uniforms.device)
            self._top_ps[:tokens_per_frame] = first

    def draw(
        self,
        hidden: Tensor,
        positions: Tensor,
        logits: Logits,
        given: Tensor | None = None,
        kept: list[Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Codes int64 [P n, depth] of n positions of each video and the sums of their vectors [P n, code_width].

        hidden [rows n, width]; positions int64 [P n], those of a video side by side, stay on their device. `given`
        codes [P n, depth] that are not negative are taken instead of drawn ones. Guided logits [P n, codes] are added
        to `kept`.
        """
        settings = self._settings
        top_p = settings.top_p_of(1) if self._top_ps is None else self._top_ps[positions, None]
        videos = torch.arange(len(positions), device=positions.device) // (len(positions) // len(self._uniforms))
        uniforms = self._uniforms[videos, positions]
        x, total = hidden, None
        # On the CPU nothing is drawn where all codes are given: their logits may be anything.
        draws = given is None or given.device.type != "cpu" or bool((given < 0).any())
        codes = []
        for d, book in enumerate(self._codebooks):
            guided = guide(logits(x, d), settings.cfg)
            if kept is not None:
                kept.append(guided.clone())
            if draws:
                code = sample(guided, uniforms[:, d], settings, top_p)
            if given is not None:
                code = torch.where(given[:, d] < 0, code, given[:, d]) if draws else given[:, d]
            codes.append(code)
            vector = book(code)
            total = vector if total is None else total + vector
            x = torch.cat([total, total]) if settings.guided else total
        assert total is not None
        return torch.stack(codes, -1), total


def uniforms(seed: int, tokens: int, depth: int) -> Tensor:
    """The random numbers of one video, float32 [tokens, depth], from its seed alone (drawn on the CPU)."""
    if seed >> 32:
        # Of these torch's generator looks at the lowest 32 bits only.
        return torch.from_numpy(np.random.default_rng(seed).random((tokens, depth), dtype=np.float32))
    return torch.rand(tokens, depth, generator=torch.Generator().manual_seed(seed))
