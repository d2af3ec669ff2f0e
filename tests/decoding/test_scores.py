"""Scores that a gate can go by, measured again from what blocks put out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest
import torch
from support.processes import Run
from support.sweeping import BALL, tiny_folder
from support.tiny import tiny_model
from torch import Tensor

from fastcar_cli.config.keys import ReplayKeys
from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.replay.scores import SCORES, noise
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.errors import RequestError
from fastcar_cli.models.sampling import SamplingSettings

PROMPTS = [[1, 4, 5, 2], [1, 2]]
FRAMES, N, LAYERS = 3, 4, 3
CODES = torch.randint(0, 9, (1, FRAMES * N, 3), generator=torch.Generator().manual_seed(2))


class _Kept:
    """MLP outputs and residual streams of every block and visual token, [tokens][layers]."""

    def __init__(self) -> None:
        self.mlp: dict[tuple[int, int], Tensor] = {}
        self.out: dict[tuple[int, int], Tensor] = {}

    def __call__(self, layer: int, t: int, mlp: Tensor, out: Tensor) -> None:
        self.mlp[layer, t], self.out[layer, t] = mlp.clone(), out.clone()


def _decode(score: str, tau: Tau = OFF, seed: int = 5) -> tuple[Decode, _Kept]:
    """A guided video with given codes; scores are kept."""
    rule = ReplayRule(tau, score=score)
    asked = DecodeSettings(FRAMES, SamplingSettings(cfg=2.0), rule, keep_tas=True)
    decode = Decode.of(tiny_model(), PROMPTS, asked, uniforms(seed, FRAMES * N, 3)[None])
    kept = _Kept()
    decode.observers.watch = kept
    for _ in decode.steps(CODES):
        pass
    assert decode.executor_name == "torch"
    return decode, kept


def _by_hand(score: str, decode: Decode, kept: _Kept, layer: int, t: int) -> Tensor:
    block = decode.model.llm.blocks[layer]

    def input_of(at: int) -> Tensor:
        return kept.out[layer - 1, at].double()

    def queries(at: int) -> Tensor:
        return block.self_attn.q_proj(block.input_layernorm(input_of(at).float())).unflatten(-1, (2, -1)).double()

    def attention_of(at: int) -> Tensor:
        return kept.out[layer, at].double() - kept.mlp[layer, at].double() - input_of(at)

    if score == "oracle":
        return -(kept.mlp[layer, t] - kept.mlp[layer, t - N]).norm(dim=-1)
    if score == "query":
        a, b = queries(t), queries(t - N)
        return ((a * b).sum(-1) / a.norm(dim=-1) / b.norm(dim=-1)).mean(-1)
    of = input_of if score == "input" else attention_of
    return -(of(t) - of(t - N)).norm(dim=-1) / of(t - N).norm(dim=-1)


@pytest.mark.parametrize("score", ["input", "attention", "query", "oracle"])
def test_a_score_is_what_it_says(score: str) -> None:
    decode, kept = _decode(score)
    assert decode.replay is not None and decode.replay.tas is not None
    assert bool(decode.replay.tas[:, :, :N].isnan().all())
    for layer in range(1, LAYERS):
        for t in range(N, FRAMES * N - 1):
            want = _by_hand(score, decode, kept, layer, t).float()
            torch.testing.assert_close(decode.replay.tas[layer, :, t], want, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("score", list(SCORES))
def test_every_score_decides(score: str) -> None:
    dense, _ = _decode(score)
    assert dense.replay is not None and dense.replay.tas is not None
    middle = float(dense.replay.tas[:, :, N : 2 * N].median())
    decode, _ = _decode(score, Tau((middle,)))
    assert decode.replay is not None and decode.replay.tas is not None
    assert torch.equal(decode.replay.replayed, decode.replay.tas > middle)
    assert 0 < decode.replay.stats(decode.passed).eligible_ratio < 1


def test_the_oracle_knows_what_a_replay_would_be_wrong_by() -> None:
    dense, _ = _decode("oracle")
    assert dense.replay is not None and dense.replay.tas is not None
    decode, kept = _decode("oracle", Tau((float(dense.replay.tas.nanmedian()),)))
    assert decode.replay is not None and decode.replay.tas is not None
    hits, scores = decode.replay.replayed, decode.replay.tas
    assert bool(hits.any())
    computed = (~hits[:, :, N:]).nonzero().tolist()
    for layer, row, i in computed:
        off = (kept.mlp[layer, i + N][row] - kept.mlp[layer, i][row]).norm()
        assert float(scores[layer, row, i + N]) == pytest.approx(-float(off), abs=1e-5)


def test_random_numbers_belong_to_the_video() -> None:
    two = torch.stack([uniforms(s, FRAMES * N, 3) for s in (1, 2)])
    both = noise(two, LAYERS, 4)
    assert torch.equal(both[:, :, [1, 3]], noise(two[1:], LAYERS, 2))
    assert torch.equal(both[:N], noise(two[:, :N], LAYERS, 4))
    assert not torch.equal(both[:, :, 0], both[:, :, 1])
    assert float(both.min()) >= 0 and float(both.max()) < 1


def test_configuration_knows_every_score() -> None:
    assert get_args(ReplayKeys.model_fields["score"].annotation) == tuple(SCORES)
    assert all(entry.description for entry in SCORES.values())


def test_other_executors_are_refused_by_name_and_left_by_auto() -> None:
    rule = ReplayRule(Tau((0.0,)), score="input")
    asked = DecodeSettings(FRAMES, SamplingSettings(cfg=2.0), rule, executor="native")
    decode = Decode.of(tiny_model(), PROMPTS, asked, torch.zeros(1, FRAMES * N, 3))
    with pytest.raises(RequestError, match="`executor` native: only torch has the score input"):
        decode.start()


def test_generate_names_the_score(run: Run, tmp_path: Path) -> None:
    words = ["generate", BALL, "--seed", "1", "--model", str(tiny_folder(tmp_path / "model"))]
    done = run(*words, "--score", "input", "--replay-ratio", "0.5", "--json", "-o", "a.mp4")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["replay"]["score"], report["kernels"]["name"]) == ("input", "torch")
    assert report["kernels"]["why"] == "only torch has the score input"
    assert report["replay"]["ratio"] == pytest.approx(0.5, abs=0.07)
    again = run("generate", "--from", "a.mp4", "--model", str(tmp_path / "model"), "--json", "-o", "b.mp4")
    assert json.loads(again.stdout)["replay"] == report["replay"]


def test_wrong_requests_are_one_sentence(run: Run, tmp_path: Path) -> None:
    done = run("generate", "a red ball", "--score", "magic", "--tau", "-2")
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert all(name in done.stderr for name in SCORES)
    words = ["generate", BALL, "--score", "query", "--model", str(tiny_folder(tmp_path / "model")), "--seed", "1"]
    done = run(*words, "--tau", "-2", "--executor", "native")
    assert done.returncode == 2 and "--executor native: only torch has the score query" in done.stderr
    done = run(*words)
    assert "--score has no effect" in done.stderr
