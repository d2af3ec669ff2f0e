"""Cache attentive replay: the rule, and its state for one batch (FastCar, arXiv 2505.14709, section 4).

A block's MLP output for token j is that of the aligned token j - N if the temporal attention score (TAS) > tau, else it
is computed; either way it is stored for the next frame. Ages, forced decisions, the controller and the first frame are
turned into thresholds here, once per pass; executors only compare scores with thresholds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.inputs import Inputs, Restore, snapshot
from fastcar_cli.decoding.replay.controller import Controller, Size, Target


@dataclass(frozen=True)
class ReplayRule:
    """When a block replays."""

    tau: Tau = OFF
    tas_definition: str = "attention"  # `released`: q before rotation, as in the published code; else both rotated
    pairs: bool = False  # whether the two rows of a guided video decide together, on their mean score
    max_age: int | None = None  # how many times in a row one value may be replayed; None: no limit, 0: never
    replay_delimiters: bool = False  # whether delimiters may replay too
    target: Target | None = None  # a replay ratio that a controller reaches by moving the thresholds, instead of `tau`
    score: str = "tas"  # what is compared with tau, a name of `scores.SCORES`; called TAS here, the default
    first_frame: int = 0  # first decoded frame that may replay, from 0

    @property
    def off(self) -> bool:
        """Whether replay is off."""
        return self.tau.off and self.target is None


def temporal_attention_score(q: Tensor, k_aligned: Tensor) -> Tensor:
    """Mean over heads of <q, k_aligned> / sqrt(head_dim), [rows, ...]; a key head serves a group of query heads.

    q [rows, heads, ..., head_dim], k_aligned [rows, kv_heads, ..., head_dim].
    """
    heads, d = q.shape[1], q.shape[-1]
    if k_aligned.shape[1] != heads:
        q = q.unflatten(1, (k_aligned.shape[1], -1)).sum(2)
    return (q * k_aligned).sum((1, -1)) * (d**-0.5 / heads)


def replays(scores: Tensor, thresholds: Tensor | float) -> Tensor:
    """Whether each score is strictly above its threshold, bool. NaN does not replay, so that it stays visible."""
    return scores > thresholds


@dataclass(frozen=True)
class ReplayStats:
    """Ratios over layers x rows x (T*N - 1) decisions, as released; eligible: only those that may replay."""

    ratio: float
    eligible_ratio: float
    by_layer: list[float]
    by_frame: list[float]


class Replay:
    """The rule applied to one batch: MLP outputs of the last frame, thresholds and decisions."""

    def __init__(self, rule: ReplayRule, size: Size, *, keep_tas: bool = False) -> None:
        layers, rows, frame, device = size.layers, size.rows, size.frame, size.device
        self.rule, self.frame, self._rows, self._aligned, self._opening = rule, frame, rows, size.aligned, size.opening
        # The first input token whose aligned token is known.
        self.first = self._scored_from = max(size.opening, frame - size.aligned, rule.first_frame * frame)
        self.outputs = torch.zeros(layers, rows, frame, size.width, dtype=size.dtype, device=device)
        self.nbytes = self.outputs.nbytes
        tokens, dense = torch.arange(size.tokens - 1 + size.slack), () if rule.replay_delimiters else size.delimiters
        self._gated = (tokens >= self.first) & ~torch.isin(tokens % frame, torch.tensor(dense, dtype=torch.int64))
        self.by_token = torch.zeros(len(tokens), layers, rows, dtype=torch.bool, device=device)
        self.replayed = self.by_token.permute(1, 2, 0)[..., : size.tokens - 1]
        # Tables [tokens, rows, layers], as `Inputs.of` reads them. Scores that were not computed are NaN.
        self._decisions = self.by_token.mT
        self._tas = torch.full_like(self.by_token, math.nan, dtype=torch.float32).mT if keep_tas else None
        self.tas = None if self._tas is None else self._tas.permute(2, 1, 0)[..., : size.tokens - 1]
        # How many times in a row each output was replayed; counted only with `max_age`.
        self.ages = torch.zeros(frame, rows, layers, dtype=torch.int16, device=device)
        self.controller: Controller | None = None  # moves the thresholds
        taus = torch.tensor(rule.tau.by_layer(layers), dtype=torch.float32)
        # Layers that need scores, on the CPU.
        self.scored = (taus < math.inf) | (keep_tas or rule.target is not None)
        if rule.target is not None:
            dense_frames = -((size.opening - self.first) // frame)
            self.controller = Controller(rule.target, size, rule.max_age, dense, dense_frames)
            # Tokens that may replay get the controller's threshold.
            taus = torch.full_like(taus, -math.inf)
        self._thresholds = self._where_gated(taus[:, None].expand(-1, rows)).mT
        # Decisions of each pass with several input tokens, bool [count, layers, rows], also rejected ones.
        self.passes: list[Tensor] = []

    def _where_gated(self, thresholds: Tensor) -> Tensor:
        """Thresholds [tokens, layers, rows] (or [layers, rows] for all), infinity for tokens that never replay."""
        gated = self._gated.to(self.outputs.device)[:, None, None]
        return torch.where(gated, thresholds.to(self.outputs.device), math.inf)

    def move(self, begin: int, decoded: bool) -> None:
        """Make visual token `begin` the first after the prompts. `decoded`: its frame is the first of the context and
        never replays; else it follows frames of the prompts, whose MLPs all ran.
        """
        self.ages.zero_()
        self._thresholds[begin : begin + (self.frame if decoded else self._opening)] = math.inf
        if not decoded:
            self._scored_from = max(self.first, begin + self._opening)
            self.by_token[begin - 1] = False
            if self._tas is not None:
                self._tas[begin - 1] = math.nan

    def force(self, decisions: Tensor) -> None:
        """Use these decisions, bool [layers, rows, T*N - 1], instead of scores, to measure at an exact ratio."""
        forced = torch.full(self.by_token.shape, math.inf)
        forced[: decisions.shape[2]].masked_fill_(decisions.cpu().permute(2, 0, 1), -math.inf)
        self._thresholds = self._where_gated(forced).mT
        self.controller, self.scored = None, torch.ones_like(self.scored)

    def prefill(self, layer: int, outputs: Tensor) -> None:
        """Store MLP outputs [rows, tokens, width] of the prompts' last tokens, up to a frame, in their slots."""
        if count := min(self._aligned, self.frame - self._opening):
            places = torch.arange(-count, 0, device=outputs.device) % self.frame
            self.outputs[layer, :, places] = outputs[:, -count:]

    def gateable(self, passes: int) -> Tensor:
        """Which of the first input tokens are eligible for replay, bool [passes]."""
        return self._gated[:passes].to(self.outputs.device)

    def reached(self, inputs: Inputs) -> bool:
        """Whether any input may have an aligned token with a cached MLP output."""
        return max(inputs.first) + inputs.count > self.first

    def thresholds(self, inputs: Inputs) -> Tensor:
        """Thresholds for the scores of the inputs, float32 [count, layers, rows]."""
        taus = inputs.of(self._thresholds)
        if self.controller is not None:
            assert inputs.common is not None
            own = self.controller.thresholds(inputs.common, self.replayed, self.ages.permute(2, 1, 0))
            taus = taus.maximum(own.T)
        if self.rule.max_age is not None:
            young = self.ages[inputs.index(self.ages, ring=True)] < self.rule.max_age
            if self.rule.pairs:
                young = young.unflatten(1, (2, -1)).all(1).repeat(1, 2, 1)
            taus = torch.where(young, taus, math.inf)
        return taus.mT

    def horizon(self, t: int) -> int:
        """Number of input tokens from t on whose thresholds no decision from t on changes."""
        return self.frame if self.controller is None else self.controller.horizon(t)

    def snapshot(self, tokens: Tensor) -> Restore:
        """Copy the MLP outputs that input tokens int64 [drafts, rows] will overwrite."""
        return snapshot(self.outputs[:, :, None], tokens % self.frame)

    def gated(self, scores: Tensor) -> Tensor:
        """The scores [..., rows] to compare: each row's own, or the mean of its pair."""
        if not self.rule.pairs:
            return scores
        return scores.unflatten(-1, (2, -1)).mean(-2).repeat(*[1] * (scores.dim() - 1), 2)

    def advance(
        self, inputs: Inputs, accepted: tuple[int, ...] | None, flags: Tensor, scores: Tensor, record: bool = True
    ) -> None:
        """Record a pass: which MLPs replayed, bool [layers, rows, count], and scores float32 of the same shape.

        The first `accepted` inputs of each video are final; None: all. Scores of layers outside `scored`
        have no meaning. Without `record` only ages are updated.
        """
        flags = flags.permute(2, 1, 0)
        index = inputs.index(self._decisions)
        if record:
            self._decisions[index] = flags
        if record and inputs.count > 1:
            self.passes.append(flags.mT.clone())
        if record and self._tas is not None:
            known = inputs.tokens(self._rows, flags.device)[..., None] >= self._scored_from
            self._tas[index] = torch.where(known, scores.permute(2, 1, 0), math.nan)
        if self.rule.max_age is not None:
            places = inputs.index(self.ages, ring=True)
            before = self.ages[places]
            ages = torch.where(flags, before + 1, 0).to(torch.int16)
            if accepted is not None and min(accepted) < inputs.count:
                of_rows = torch.tensor(accepted * (self._rows // len(accepted)), device=flags.device)
                final = torch.arange(inputs.count, device=flags.device)[:, None] < of_rows
                ages = torch.where(final[..., None], ages, before)
            self.ages[places] = ages
        if record and self.controller is not None:
            assert accepted is not None
            final_inputs = Inputs(inputs.first, min(accepted))
            self.controller.observe(final_inputs, self.gated(scores[..., : final_inputs.count].movedim(-1, 0)))

    def holding(self) -> Callable[[Inputs], None]:
        """A function that restores the decisions and scores that inputs have now."""
        tables = [(table, table.clone()) for table in (self._decisions, self._tas) if table is not None]

        def put_back(inputs: Inputs) -> None:
            for table, before in tables:
                table[inputs.index(table)] = inputs.of(before)

        return put_back

    def stats(self, passes: int, rows: Sequence[int] | None = None) -> ReplayStats:
        """Ratios over the first `passes` input tokens, of all rows or of `rows`."""
        seen = self.replayed[:, :, :passes].float()
        if rows is not None:
            seen = seen[:, list(rows)]
        if passes == 0:
            return ReplayStats(0.0, 0.0, [0.0] * seen.shape[0], [])
        by_frame = [float(f.mean()) for f in seen.split(self.frame, dim=2)]
        eligible = seen[:, :, self.gateable(passes)]
        return ReplayStats(
            float(seen.mean()),
            float(eligible.mean()) if eligible.numel() else 0.0,
            [float(v) for v in seen.mean((1, 2))],
            by_frame,
        )

    def release(self) -> None:
        """Free the cached outputs; decisions and scores stay."""
        self.outputs = self.outputs.new_empty(0)
