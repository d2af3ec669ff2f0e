"""Cache attentive replay: the gate on TAS, the cache of one frame of MLP outputs, and its counts.

A block's MLP output for token j is the one used for the aligned token j - N if the temporal
attention score exceeds tau (strictly), else it is computed; either way it is stored for the next
frame (FastCar, arXiv 2505.14709, section 4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastcar_cli.decoding.controller import Controller

Compute = Callable[[Tensor, Sequence[int] | None], Tensor]
"""MLP branch of residual inputs [n, width] of these rows (None: all), [n, width]."""


@dataclass(frozen=True)
class ReplayStats:
    """What was replayed. Ratios count layers x rows x (T*N - 1) passes, as the released code does;
    `eligible_ratio` leaves the first frame out.
    """

    ratio: float
    eligible_ratio: float
    by_layer: list[float]
    by_frame: list[float]


def temporal_attention_score(q: Tensor, k_aligned: Tensor) -> Tensor:
    """Mean over heads of <q, k_aligned> / sqrt(head_dim), [rows].

    q [rows, heads, head_dim], k_aligned [rows, kv_heads, head_dim]; a key head serves its group of
    query heads.
    """
    rows, heads, d = q.shape
    if k_aligned.shape[1] != heads:
        q = q.view(rows, k_aligned.shape[1], -1, d).sum(2)
    return (q * k_aligned).sum((1, 2)) * (d**-0.5 / heads)


class ReplayCache:
    """MLP outputs of the last frame, [layers, rows, N, width], with the gate that replays them.

    taus: one threshold a layer, None for a layer that never replays. `pairs` [rows] names the video
    of each row and makes the rows of a video decide together on their mean TAS (`--gate pair`).
    `max_age` bounds how often in a row one value may be replayed. A `controller` sets the thresholds
    as it goes, instead of `taus`.
    """

    def __init__(
        self,
        taus: Sequence[float | None],
        *,
        rows: int,
        tokens_per_frame: int,
        tokens: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        pairs: bool = False,
        max_age: int | None = None,
        keep_tas: bool = False,
        controller: Controller | None = None,
    ) -> None:
        layers = len(taus)
        self.controller = controller
        self.taus = tuple(taus)
        self.frame = tokens_per_frame
        self.pairs, self.max_age = pairs, max_age
        self.outputs = torch.zeros(layers, rows, tokens_per_frame, width, dtype=dtype, device=device)
        self.replayed = torch.zeros(layers, rows, tokens - 1, dtype=torch.bool, device=device)
        self.ages = torch.zeros(layers, rows, tokens_per_frame, dtype=torch.int16, device=device)
        self.forced: Tensor | None = None
        """Decisions bool [layers, rows, T*N - 1] to take instead of the gate's, for measuring at an exact ratio."""
        self.tas = (
            torch.full((layers, rows, tokens - 1), float("nan"), dtype=torch.float32, device=device)
            if keep_tas
            else None
        )

    def wants(self, layer: int, t: int) -> bool:
        """Whether input token t of this layer may replay, so that its TAS is needed."""
        return t >= self.frame and self.taus[layer] is not None

    def decide(self, layer: int, t: int, scores: Tensor) -> Tensor:
        """Which rows replay, bool [rows], from their TAS [rows]."""
        tau: float | Tensor | None = self.taus[layer]
        assert tau is not None
        if self.controller is not None:
            tau = self.controller.thresholds(t, self.replayed, self.ages)[layer]
        if self.tas is not None:
            self.tas[layer, :, t] = scores
        scores = self.gated(scores)
        if self.controller is not None:
            self.controller.observe(layer, t, scores)
        hit = scores > tau if self.forced is None else self.forced[layer, :, t]
        if self.max_age is not None:
            age = self.ages[layer, :, t % self.frame]
            young = age < self.max_age
            if self.pairs:
                young = young.view(2, -1).all(0).repeat(2)
            hit = hit & young
            age.copy_(torch.where(hit, age + 1, torch.zeros_like(age)))
        self.replayed[layer, :, t] = hit
        return hit

    def gated(self, scores: Tensor) -> Tensor:
        """The scores [..., rows] that are compared with tau: each row's own, or the mean of its pair."""
        return scores.unflatten(-1, (2, -1)).mean(-2).repeat(*[1] * (scores.dim() - 1), 2) if self.pairs else scores

    def apply(self, layer: int, t: int, x: Tensor, scores: Tensor | None, compute: Compute) -> Tensor:
        """The MLP branch of input token t, [rows, width]: replayed rows are read, the rest computed.

        x [rows, width] is the residual stream after attention; scores its TAS, None where `wants`
        says no. Rows that replay never reach `compute`.
        """
        slot = self.outputs[layer, :, t % self.frame]
        if scores is None:
            y = compute(x, None)
            slot.copy_(y)
            return y
        flags = self.decide(layer, t, scores).tolist()
        if all(flags):
            return slot
        if not any(flags):
            y = compute(x, None)
            slot.copy_(y)
            return y
        rows = [i for i, flag in enumerate(flags) if not flag]
        slot[rows] = compute(x[rows], rows)
        return slot

    def stats(self, passes: int, rows: Sequence[int] | None = None) -> ReplayStats:
        """Counts over the first `passes` input tokens, of some rows only if asked."""
        seen = self.replayed[:, :, :passes].float()
        if rows is not None:
            seen = seen[:, list(rows)]
        if passes == 0:
            return ReplayStats(0.0, 0.0, [0.0] * seen.shape[0], [])
        by_frame = [float(f.mean()) for f in seen.split(self.frame, dim=2)]
        eligible = seen[:, :, self.frame :]
        return ReplayStats(
            float(seen.mean()),
            float(eligible.mean()) if eligible.numel() else 0.0,
            [float(v) for v in seen.mean((1, 2))],
            by_frame,
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the cached outputs."""
        return self.outputs.nbytes
