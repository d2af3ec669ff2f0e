"""Other rules for drafts: what they draw, against the model's distribution by enumeration."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding.drafts.drafts import Drafter, DraftSettings
from fastcar_cli.decoding.engine import Decode, begin
from fastcar_cli.errors import RequestError
from fastcar_cli.models.bundled.patch_tokenizer import PatchTokenizerSpec
from fastcar_cli.models.bundled.steered import SteeredSpec
from fastcar_cli.models.bundled.steered_checkpoint import FORMAT
from fastcar_cli.models.decoder import DecoderSpec
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
    assert torch.equal(exact.codes, strict.codes)
    assert [p.accepted for p in exact.drafter.passes] == [p.accepted for p in strict.drafter.passes]
    loose = _decoded("relaxed:1e-30")
    assert not np.array_equal(loose.codes, _decoded(None).codes)
    assert all(p.accepted == (p.taken,) for p in loose.drafter.passes[:-1])


@pytest.mark.parametrize("text", ["jacobi", "relaxed", "relaxed:0", "relaxed:2", "coarse:half", "sjd:0.5"])
def test_an_unknown_rule_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        Rule.parse(text)
    assert "scd-maximal, rejection, relaxed:E" in str(refused.value.allowed)


@pytest.fixture(scope="module")
def steered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a tiny random model that continues frames of `table-actions` as actions say."""
    tokenizer = PatchTokenizerSpec(grid=8, patch=16, plain=8, period=2, parts=(2, 2), code_width=4, widths=(8, 8))
    decoder = DecoderSpec(
        width=32, layers=2, heads=2, kv_heads=2, mlp_width=32, vocab=tokenizer.codes, max_positions=5 * 64
    )
    spec = SteeredSpec(name="tiny", frames=5, fps=10, decoder=decoder, tokenizer=tokenizer, context=3, actions=2)
    torch.manual_seed(0)
    weights = {name: torch.randn(tensor.shape) for name, tensor in spec.network().state_dict().items()}
    folder = tmp_path_factory.mktemp("steered")
    (folder / "config.json").write_text(json.dumps({"format": FORMAT, "spec": spec.to_dict()}), encoding="utf-8")
    save_file(weights, str(folder / "model.safetensors"))
    return folder


def _against(model: Path, *arguments: str) -> str:
    rules = ["--windows", "8", "--kinds", "jacobi", "--against", "gumbel,sjd", "--prompts", "1", "--json"]
    command = ["lab", "drafts", "--model", str(model), *rules, *arguments]
    return CliRunner().invoke(app, command, catch_exceptions=False).stdout


def test_other_rules_continue_clips_as_actions_say(steered: Path) -> None:
    likeliest, drawn = json.loads(_against(steered, "--temperature", "0,1"))["models"]
    (line,) = likeliest["windows"]
    # At temperature 0 nothing is left to a rule, if all see the same clip and actions.
    for rule in ("gumbel", "sjd"):
        assert all(line[rule][part] == line["jacobi"][part] for part in ("first_frame", "later_frames"))
    (line,) = drawn["windows"]
    shares = [line[rule]["later_frames"] for rule in ("jacobi", "gumbel", "sjd")]
    assert len(set(shares)) == 3 and all(1 < share <= 8 for share in shares)


def test_other_rules_are_refused_where_the_context_rolls(steered: Path) -> None:
    with pytest.raises(RequestError, match="other rules run in one context") as refused:
        _against(steered, "--set", "generation.frames=6", "--set", "generation.context_policy=roll")
    assert refused.value.allowed == "at most 5"
