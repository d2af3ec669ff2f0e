"""A predicted clip on the clock: who takes part, what is forced, what is counted. No timing is asserted."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest
import torch

import fastcar_lab.bench.prediction as clip
from fastcar_cli.cli.app import main
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.errors import RequestError
from fastcar_lab.bench.prediction import PredictedClip, forced, measure, networks
from fastcar_lab.dummy.ivideogpt import shape_of

CODES = replace(shape_of().tokenizer, codes=120, dynamics=120)
SMALL = replace(
    shape_of(),
    decoder=replace(
        shape_of().decoder, width=64, mlp_width=96, layers=2, heads=2, kv_heads=2, vocab=CODES.vocabulary
    ),
    tokenizer=CODES,
)  # fmt: skip
PLAN = PredictedClip(SMALL, frames=5, ratio=0.4, turns=1)


def test_decisions_are_where_something_may_replay() -> None:
    spec = networks(PLAN)["float32"].spec
    decisions = forced(PLAN, spec)
    assert decisions.shape == (2, 1, 50) and decisions.sum() == round(0.4 * 2 * 50)
    assert not decisions[:, :, :17].any() and not decisions[:, :, 17::17].any()
    with pytest.raises(RequestError, match=r"`replay_ratio` 0.9: the first predicted frame") as e:
        forced(PredictedClip(SMALL, frames=5, ratio=0.9), spec)
    assert e.value.hint == f"allowed: at most {31 / 50:.3f}"


@pytest.mark.slow
def test_everybody_decodes_the_same_clip() -> None:
    heard: list[int] = []
    result = measure(PLAN, lambda done, total: heard.append(total - done))
    assert heard == list(range(13, -1, -1))
    names = ["transformers float32", *(f"{f} {k}" for f in ("float32", "int8", "int4") for k in ("dense", "replay"))]
    assert list(result["lines"]) == names and (result["prompt"], result["tokens"]) == (513, 50)
    for name, line in result["lines"].items():
        assert line["seconds"] > 0 and line["tokens_per_s"] == pytest.approx(50 / line["seconds"])
        assert ("of_ceiling" in line) == name.endswith("replay")
    assert result["lines"]["transformers float32"]["vs_transformers"] == 1


@pytest.mark.slow
def test_both_run_the_same_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """At temperature 0 our ids would be those of transformers: the logits of the first position are equal."""
    network = networks(PLAN)["float32"]
    heard: list[torch.Tensor] = []
    transformers = pytest.importorskip("transformers")
    plain = transformers.LlamaForCausalLM.forward

    def forward(self: object, *args: object, **options: object) -> object:
        found = plain(self, *args, **options)
        heard.append(found.logits[:, -1])
        return found

    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", forward)
    clip.theirs(network, PLAN)(0)
    steps: list[torch.Tensor] = []
    run = Decode.steps

    def kept(self: Decode) -> object:
        for step in run(self, keep_logits=True):
            assert step.logits is not None
            steps.append(step.logits[0, :, 0])
            yield step

    monkeypatch.setattr(Decode, "steps", kept)
    clip.ours(network, PLAN, False)(0)
    assert len(steps) == 51 and (steps[1] - heard[0]).abs().max() < 1e-3


@pytest.mark.slow
def test_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(clip.SHAPES, "small", SMALL)
    monkeypatch.setenv("COLUMNS", "200")
    arguments = ["--clip", "small", "--frames", "4", "--replay-ratio", "0.3", "--turns", "1", "--threads", "1"]
    for more in ([], ["--json"]):
        monkeypatch.setattr(sys, "argv", ["fastcar", "lab", "bench", *arguments, *more])
        with pytest.raises(SystemExit) as e:
            main()
        assert not e.value.code
    out = capsys.readouterr().out
    assert "transformers float32" in out and "of its ceiling" in out
    assert json.loads(out.splitlines()[-1])["tokens"] == 33
    monkeypatch.setattr(sys, "argv", ["fastcar", "lab", "bench", "--clip", "small", "--rows", "2"])
    with pytest.raises(SystemExit) as e:
        main()
    assert e.value.code == 2 and "--rows has no effect with --clip" in capsys.readouterr().err
