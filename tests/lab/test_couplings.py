"""Other rules for drafts: what they draw, against the model's distribution by enumeration."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding.drafts.drafts import Drafter, DraftSettings
from fastcar_cli.decoding.engine import Decode, begin
from fastcar_cli.errors import RequestError
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.couplings import LOSSLESS, CoupledDraws, Rule, contest

TOKENS, FRAME, CODES, WINDOW, VIDEOS = 5, 2, 3, 3, 8000
COARSE = 1.5 * torch.randn(TOKENS + WINDOW, CODES**2, CODES, generator=torch.Generator().manual_seed(1))
FINE = 1.5 * torch.randn(TOKENS + WINDOW, CODES**2, CODES, CODES, generator=torch.Generator().manual_seed(2))
"""Logits of a chain of tokens of two codes: by position, last token, and for the finer code by the coarser one."""


class Misdrawn(CoupledDraws):
    """Draws anew from p where a draft is rejected, and not from what p has more than q."""

    def couple(self, p: Tensor, q: Tensor, code: Tensor) -> Tensor:
        """See `CoupledDraws`."""
        row = torch.arange(len(code))
        stays = torch.rand(len(code)) * q[row, code] < p[row, code]
        return torch.where(stays, code, torch.multinomial(p, 1)[:, 0])


def deviation(rule: str, draws_of: type[CoupledDraws] = CoupledDraws) -> float:
    """Chi-squared of the last two tokens of many drawn chains: 80 is expected, with a deviation of 13."""
    torch.manual_seed(0)
    chosen = Rule.parse(rule)
    layout = SimpleNamespace(delimiters=(), together=False, stride=FRAME)
    model = SimpleNamespace(spec=SimpleNamespace(codes=CODES, layout=layout), device=torch.device("cpu"))
    model.codebooks, model.given = [None, None], lambda tokens, conditions: torch.full((1, tokens), -1)
    draws = draws_of(cast(Any, model), SamplingSettings(), torch.rand(VIDEOS, TOKENS, 2), WINDOW, chosen, 0)
    drafter = Drafter(draws, DraftSettings(chosen.kind, WINDOW), FRAME, 1)
    while min(draws.done) < TOKENS:
        inputs = drafter.inputs(WINDOW)
        positions = inputs.tokens(VIDEOS, draws.buffer.device).T.flatten() + 1
        last = draws.drawn(inputs).new_zeros(len(positions))
        video = torch.arange(len(positions)) // inputs.count
        later = positions > 0
        last[later] = (draws.buffer[video[later], positions[later] - 1] * torch.tensor([CODES, 1])).sum(-1)

        def forward(codes: Tensor, positions: Tensor = positions, last: Tensor = last) -> Tensor:
            return torch.stack([COARSE[positions, last], FINE[positions, last, codes[:, 0]]])

        draws.settle(positions, forward)
        draws.advance(inputs, drafter.accepted(inputs))
    p = torch.eye(CODES**2)[0]
    for t in range(TOKENS):
        steps = (COARSE[t].softmax(-1)[..., None] * FINE[t].softmax(-1)).flatten(1)
        before, p = p, p @ steps
    expected = (before[:, None] * steps).flatten() * VIDEOS
    pairs = (draws.codes[:, -2:].flatten(1) * torch.tensor([27, 9, 3, 1])).sum(-1)
    return float(((pairs.bincount(minlength=81) - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("rule", LOSSLESS)
def test_a_lossless_rule_draws_from_the_distribution_of_the_model(rule: str) -> None:
    assert deviation(rule) < 80 + 5 * 13


@pytest.mark.parametrize("rule", [rule for rule in LOSSLESS if rule != "gumbel"])
def test_the_count_sees_a_wrong_coupling(rule: str) -> None:
    assert deviation(rule, Misdrawn) > 80 + 10 * 13


def _decoded(rule: str | None, **keys: Any) -> Decode:
    config = {"model": "mini", "generation.frames": 3, "runtime.threads": 1, "draft.kind": "jacobi", "draft.window": 8}
    pipe = VideoPipeline.from_config(RunConfig().changed(config | keys))
    decode = begin(pipe.model, ["a red ball rolling to the right on the grass"], [3], pipe.settings)[0]
    return (decode if rule is None else contest(decode, Rule.parse(rule), 3)).run()


def test_a_relaxed_rule_at_1_keeps_the_likeliest_codes_and_at_0_every_draft() -> None:
    exact, strict = (_decoded(rule, **{"sampling.temperature": 0.0}) for rule in (None, "relaxed:1"))
    assert torch.equal(exact.codes, strict.codes) and exact.drafter and strict.drafter
    assert [p.accepted for p in exact.drafter.passes] == [p.accepted for p in strict.drafter.passes]
    loose = _decoded("relaxed:1e-30")
    assert loose.drafter and not np.array_equal(loose.codes, _decoded(None).codes)
    assert all(p.accepted == (p.taken,) for p in loose.drafter.passes[:-1])


@pytest.mark.parametrize("text", ["jacobi", "relaxed", "relaxed:0", "relaxed:2", "coarse:half", "sjd:0.5"])
def test_an_unknown_rule_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        Rule.parse(text)
    assert "scd-maximal, rejection, relaxed:E" in str(refused.value.allowed)
