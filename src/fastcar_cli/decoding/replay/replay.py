"""Cache attentive replay: the rule, and one batch under it (FastCar, arXiv 2505.14709, section 4).

A block's MLP output for token j is the one used for the aligned token j - N if the temporal
attention score (TAS) exceeds tau (strictly), else it is computed; either way it is stored for the
next frame. Everything else that decides (the age of a value, decisions forced for measuring, a
controller that moves tau, the first frame) is turned into thresholds here, once a pass, before the
pass runs. What executes a pass only compares: a row replays where its score > its threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.inputs import Inputs, Restore, kept
from fastcar_cli.decoding.replay.controller import Controller, Size, Target


@dataclass(frozen=True)
class ReplayRule:
    """When a block replays.

    Attributes:
        tau: the thresholds.
        tas_definition: of the temporal attention score, `attention` (q and k rotated) or `released` (q before rotation,
            as the published code has it).
        pairs: whether the two rows of a guided video decide together, on their mean score.
        max_age: how often in a row one value may be replayed; None: without end, 0: never.
        replay_delimiters: whether tokens that part frames may replay too, where the model has such.
        target: a replay ratio that a controller keeps by moving the thresholds, instead of `tau`.
        score: what is compared with tau, a name of `scores.SCORES`. Everything here says TAS for it, as it is by
            default.
        first_frame: decoded frame that may be the first to replay, counted from 0.

    """

    tau: Tau = OFF
    tas_definition: str = "attention"
    pairs: bool = False
    max_age: int | None = None
    replay_delimiters: bool = False
    target: Target | None = None
    score: str = "tas"
    first_frame: int = 0

    @property
    def off(self) -> bool:
        """Whether nothing ever replays."""
        return self.tau.off and self.target is None


def temporal_attention_score(q: Tensor, k_aligned: Tensor) -> Tensor:
    """Mean over heads of <q, k_aligned> / sqrt(head_dim), [rows, ...].

    q [rows, heads, ..., head_dim], k_aligned [rows, kv_heads, ..., head_dim]; a key head serves its group
    of query heads.
    """
    heads, d = q.shape[1], q.shape[-1]
    if k_aligned.shape[1] != heads:
        q = q.unflatten(1, (k_aligned.shape[1], -1)).sum(2)
    return (q * k_aligned).sum((1, -1)) * (d**-0.5 / heads)


def replays(scores: Tensor, thresholds: Tensor | float) -> Tensor:
    """Which scores replay, bool: strictly above the threshold. NaN computes, so that it shows."""
    return scores > thresholds


@dataclass(frozen=True)
class ReplayStats:
    """What was replayed. Ratios count layers x rows x (T*N - 1) passes, as the released code does;
    `eligible_ratio` counts only what may replay: not the first frame, nor delimiters that are kept dense.
    """

    ratio: float
    eligible_ratio: float
    by_layer: list[float]
    by_frame: list[float]


Token = int | Tensor
"""An input token: of all rows, or int64 [rows], which is not looked at on the host."""


def _at(tensor: Tensor, index: Token) -> Tensor:
    """One index of the last dimension of [layers, rows, n], or an index a row: [layers, rows]."""
    if isinstance(index, Tensor):
        return tensor.gather(-1, index[None, :, None].expand(len(tensor), -1, -1))[..., 0]
    return tensor[..., index]


class Replay:
    """The rule at work on one batch: the MLP outputs of the last frame, and what was decided.

    Attributes:
        outputs: MLP outputs used in the last frame, [layers, rows, N, width].
        by_token: decisions, bool [T*N - 1 + slack, layers, rows]; the executor of a pass writes them.
        replayed: the same memory by input token, [layers, rows, T*N - 1].
        scored: layers whose TAS is wanted, bool [layers], on the CPU.
        tas: kept scores, float32 [layers, rows, T*N - 1], NaN where none was computed; None where they are not kept.
        controller: moves the thresholds; None where tau is given.
        passes: decisions of each pass with several input tokens, bool [count, layers, rows], rejected ones too.

    """

    def __init__(
        self,
        rule: ReplayRule,
        size: Size,
        *,
        width: int,
        dtype: torch.dtype,
        keep_tas: bool = False,
        slack: int = 0,
        delimiters: Sequence[int] = (),
        aligned: int = 0,
    ) -> None:
        layers, rows, frame, device = size.layers, size.rows, size.frame, size.device
        self.rule, self.frame = rule, frame
        self.first = max(0, frame - aligned, rule.first_frame * frame)
        """The first input token whose aligned token is known."""
        self._aligned = aligned
        self._rows = torch.arange(rows, device=device)
        self._dense = torch.zeros(frame, dtype=torch.bool, device=device)
        if not rule.replay_delimiters:
            self._dense[list(delimiters)] = True
        self._computed = self._dense.tolist()
        self.outputs = torch.zeros(layers, rows, frame, width, dtype=dtype, device=device)
        self.nbytes = self.outputs.nbytes
        """Bytes of the cached outputs."""
        self.by_token = torch.zeros(size.tokens - 1 + slack, layers, rows, dtype=torch.bool, device=device)
        self._decisions = self.by_token.permute(1, 2, 0)
        self.replayed = self._decisions[..., : size.tokens - 1]
        self._tas = torch.full(self._decisions.shape, math.nan, device=device) if keep_tas else None
        self.tas = None if self._tas is None else self._tas[..., : size.tokens - 1]
        self.controller: Controller | None = None
        if rule.target is not None:
            dense = () if rule.replay_delimiters else delimiters
            self.controller = Controller(rule.target, size, rule.max_age, dense, -(-self.first // frame))
        taus = torch.tensor(rule.tau.by_layer(layers), dtype=torch.float32)
        self.scored = (taus < math.inf) | (keep_tas or rule.target is not None)
        self._taus = taus[:, None].repeat(1, rows).to(device)
        self._forced: Tensor | None = None
        self.passes: list[Tensor] = []
        self._ages = torch.zeros(layers, rows, frame, dtype=torch.int16, device=device)

    def force(self, decisions: Tensor) -> None:
        """Take these decisions, bool [layers, rows, T*N - 1], instead of the scores', to measure at an exact ratio."""
        taus = torch.where(decisions.to(self.replayed.device), -math.inf, math.inf)
        self._forced = taus.new_full(self.by_token.shape, math.inf)
        self._forced[: taus.shape[2]] = taus.permute(2, 0, 1)
        self.scored = torch.ones_like(self.scored)

    def prefill(self, layer: int, outputs: Tensor) -> None:
        """Keep what the MLP of a layer gave for the prompts' last tokens, where they lie as those of a frame do.

        outputs [rows, tokens, width], all of the prompt. At most the last frame is kept.
        """
        if kept := min(self._aligned, self.frame):
            places = torch.arange(-kept, 0, device=outputs.device) % self.frame
            self.outputs[layer, :, places] = outputs[:, -kept:]

    def gateable(self, passes: int) -> Tensor:
        """Which of the first input tokens may replay, bool [passes]."""
        places = torch.arange(passes, device=self._dense.device)
        return (places >= self.first) & ~self._dense[places % self.frame]

    def eligible(self, t: Token) -> bool:
        """Whether an input token may have an aligned token whose MLP output is known."""
        return isinstance(t, Tensor) or t >= self.first

    def thresholds(self, t: Token) -> Tensor:
        """What scores at an input token must exceed, float32 [layers, rows]."""
        taus = self._taus
        if not self.eligible(t):
            return torch.full_like(taus, math.inf)
        if self.controller is not None:
            assert isinstance(t, int)
            taus = self.controller.thresholds(t, self.replayed, self._ages)
        if self._forced is not None:
            taus = self._forced[t, :, self._rows].T if isinstance(t, Tensor) else self._forced[t]
        if self.rule.max_age is not None:
            young = _at(self._ages, t % self.frame) < self.rule.max_age
            if self.rule.pairs:
                young = young.unflatten(1, (2, -1)).all(1).repeat(1, 2)
            taus = torch.where(young, taus, math.inf)
        if isinstance(t, Tensor):
            return torch.where((t >= self.first) & ~self._dense[t % self.frame], taus, math.inf)
        return torch.full_like(taus, math.inf) if self._computed[t % self.frame] else taus

    def horizon(self, t: int) -> int:
        """How many input tokens from t on have thresholds that no decision from t on changes."""
        return self.frame if self.controller is None else self.controller.horizon(t)

    def decide(self, layer: int, t: Token, scores: Tensor, thresholds: Tensor) -> None:
        """Write which rows replay in a layer at an eligible input token; scores and thresholds are [rows]."""
        rows = self._rows if isinstance(t, Tensor) else slice(None)
        self._decisions[layer, rows, t] = replays(self.gated(scores), thresholds)

    def flags(self, layer: int, t: Token) -> list[bool]:
        """Which rows replay in a layer at an input token."""
        if not self.eligible(t):
            return [False]
        return self._decisions[layer, self._rows if isinstance(t, Tensor) else slice(None), t].tolist()

    def keep_pass(self, inputs: Inputs) -> None:
        """Keep what a pass with several input tokens decided, before some are taken back."""
        if inputs.common is not None:
            decided = self.by_token[inputs.common : inputs.common + inputs.count].clone()
        else:
            of_rows = inputs.of_rows(len(self._rows), self._rows.device)
            decided = self.by_token[of_rows, :, self._rows].transpose(1, 2)
        self.passes.append(decided)

    def kept(self, t: Tensor) -> list[Restore]:
        """What the MLP outputs of input tokens t, int64 [drafts, rows], will overwrite."""
        return [kept(self.outputs[:, :, None], t % self.frame)]

    def gated(self, scores: Tensor) -> Tensor:
        """The scores [..., rows] that are compared: each row's own, or the mean of its pair."""
        if not self.rule.pairs:
            return scores
        return scores.unflatten(-1, (2, -1)).mean(-2).repeat(*[1] * (scores.dim() - 1), 2)

    @property
    def learns(self) -> bool:
        """Whether `finish` does anything."""
        return self.rule.max_age is not None or self._tas is not None or self.controller is not None

    def finish(self, t: Token, scores: Tensor, final: Tensor | None = None) -> None:
        """Learn from a final input token: from its decisions in `replayed` and its scores [layers, rows].

        Scores of layers that are not scored mean nothing. final: bool [rows], the rows in which it is; None: all.
        """
        if self.rule.max_age is not None:
            slot = t % self.frame
            age = _at(self._ages, slot)
            ages = torch.where(_at(self._decisions, t), age + 1, 0).to(torch.int16)
            self._put(self._ages, slot, ages if final is None else torch.where(final, ages, age))
        if self._tas is not None:
            self._put(self._tas, t, torch.where(t >= self.first, scores, math.nan) if isinstance(t, Tensor) else scores)
        if self.controller is not None:
            assert isinstance(t, int)
            self.controller.observe(t, self.gated(scores))

    def _put(self, tensor: Tensor, index: Token, values: Tensor) -> None:
        """Write [layers, rows] to one index of the last dimension of [layers, rows, n], or to an index a row."""
        if isinstance(index, Tensor):
            tensor.scatter_(-1, index[None, :, None].expand(len(tensor), -1, -1), values[..., None])
        else:
            tensor[..., index] = values

    def counts(self) -> Tensor:
        """A copy of what `finish` counts up, for `restore`: how often in a row each value was replayed."""
        return self._ages.clone()

    def restore(self, counts: Tensor) -> None:
        """Put back what `counts` gave."""
        self._ages.copy_(counts)

    def stats(self, passes: int, rows: Sequence[int] | None = None) -> ReplayStats:
        """Counts over the first `passes` input tokens, of some rows only if asked."""
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
        """Let go of the cached outputs; decisions and scores stay."""
        self.outputs = self.outputs.new_empty(0)
