"""`--replay-ratio`: the controller keeps its target on any scores, and on the real model."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.processes import Run
from support.tiny import tiny_model

from fastcar_cli import RunConfig, VideoPipeline
from fastcar_cli.config.run_config import load_config
from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.replay.controller import Size, Target, max_ratio
from fastcar_cli.decoding.replay.replay import Replay, ReplayRule, replays
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.errors import RequestError
from fastcar_cli.models.sampling import SamplingSettings

LAYERS, FRAME = 3, 12


def _replay(
    ratio: float | None, frames: int, videos: int = 1, rows: int = 1, frame: int = FRAME, **options: object
) -> Replay:
    target = None if ratio is None else Target(ratio, str(options.pop("scope", "global")))
    rule = ReplayRule(Tau((-math.inf,)), target=target, **options)  # type: ignore[arg-type]
    return Replay(rule, Size(LAYERS, rows * videos, videos, frame, frames * frame, width=1))


def _feed(replay: Replay, scores: torch.Tensor) -> torch.Tensor:
    """Decide on scores [layers, rows, passes] in decoding order; all decisions."""
    for t in range(replay.frame, scores.shape[2]):
        now, inputs = scores[:, :, t], Inputs((t,))
        flags = replays(replay.gated(now), replay.thresholds(inputs)[0])
        replay.advance(inputs, (1,), flags[..., None], now[..., None])
    return replay.replayed


def _stream(kind: str, rows: int, frames: int, seed: int, scale: float, frame: int = FRAME) -> torch.Tensor:
    """Scores of a kind, [layers, rows, passes], of any size and offset."""
    rng = np.random.default_rng(seed)
    passes = frames * frame - 1
    t = np.arange(passes)
    noise = rng.standard_normal((LAYERS, rows, passes))
    scores = {
        "noise": noise,
        "by place": rng.standard_normal(frame)[t % frame] + 0.1 * noise,
        "by layer": 5.0 * np.arange(LAYERS)[:, None, None] + noise,
        "rising": t + 0.0 * noise,
        "falling": -t + 0.1 * noise,
        "constant": np.full_like(noise, rng.standard_normal()),
        "two values": np.sign(noise),
        "jumping": noise + 50.0 * (t > passes // 2),
        "heavy tails": rng.standard_cauchy(noise.shape),
    }[kind]
    return torch.tensor(scores * scale + 100 * scale * rng.standard_normal(), dtype=torch.float32)


KINDS = ["noise", "by place", "by layer", "rising", "falling", "constant", "two values", "jumping", "heavy tails"]


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    scope=st.sampled_from(["global", "layer"]),
    part=st.floats(0.01, 1.0),
    frames=st.integers(2, 8),
    videos=st.integers(1, 2),
    pairs=st.booleans(),
    scale=st.sampled_from([1e-3, 1.0, 1e3]),
    frame=st.sampled_from([2, 12, 50]),
    seed=st.integers(0, 1000),
)
def test_any_scores_meet_the_target_within_a_setting(  # type: ignore[no-untyped-def]
    kind, scope, part, frames, videos, pairs, scale, frame, seed
) -> None:
    ratio = part * max_ratio(frames, frame)
    scores = _stream(kind, 2 * videos, frames, seed, scale, frame)
    cache = _replay(ratio, frames, videos, 2, frame, scope=scope, pairs=pairs)
    replayed = _feed(cache, scores)
    passes = frames * frame - 1
    groups = replayed.view(LAYERS, 2, videos, passes).float()
    shares = groups.mean((1, 3)) if scope == "layer" else groups.mean((0, 1, 3))
    assert float((shares - ratio).abs().max()) <= max(1, frame // 16) / passes + 1e-6
    assert not replayed[:, :, :frame].any()
    if pairs:
        assert torch.equal(replayed[:, :videos], replayed[:, videos:])
    again = _replay(ratio, frames, videos, 2, frame, scope=scope, pairs=pairs)
    assert torch.equal(_feed(again, scores), replayed)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    part=st.floats(0.05, 1.0),
    frames=st.integers(2, 10),
    max_age=st.integers(1, 3),
    seed=st.integers(0, 1000),
)
def test_an_age_limit_is_never_broken_and_the_target_still_met(kind, part, frames, max_age, seed) -> None:  # type: ignore[no-untyped-def]
    ratio = part * max_ratio(frames, FRAME, max_age)
    replayed = _feed(_replay(ratio, frames, 1, 2, max_age=max_age), _stream(kind, 2, frames, seed, 1.0))
    by_place = torch.nn.functional.pad(replayed, (0, 1)).view(LAYERS, 2, frames, FRAME)
    windows = by_place.unfold(2, max_age + 1, 1) if frames > max_age else by_place.new_zeros(1, 1)
    assert not windows.all(-1).any()
    assert abs(float(replayed.float().mean()) - ratio) <= 1 / (frames * FRAME - 1) + 1e-6


@given(frames=st.integers(2, 12), max_age=st.one_of(st.none(), st.integers(1, 12)))
def test_the_maximum_is_what_always_replaying_reaches(frames: int, max_age: int | None) -> None:
    cache = _replay(None, frames, max_age=max_age)
    replayed = _feed(cache, torch.zeros(LAYERS, 1, frames * FRAME - 1))
    assert float(replayed.float().mean()) == pytest.approx(max_ratio(frames, FRAME, max_age))


def test_decisions_do_not_look_ahead() -> None:
    scores = _stream("noise", 1, 5, 4, 1.0)
    other = scores.clone()
    other[:, :, 30:] += 7.0
    first, second = (_feed(_replay(0.5, 5), s) for s in (scores, other))
    assert torch.equal(first[:, :, :30], second[:, :, :30])
    assert not torch.equal(first, second)


def test_higher_scores_replay_first() -> None:
    scores = _stream("by place", 1, 8, 2, 1.0)
    replayed = _feed(_replay(0.4, 8), scores)
    eligible = scores[:, :, 2 * FRAME :]
    hits = replayed[:, :, 2 * FRAME :]
    assert float(eligible[hits].mean()) > float(eligible[~hits].mean()) + 1.0


def test_what_shares_the_batch_changes_nothing() -> None:
    model = tiny_model()
    prompts = [[1, 4, 5, 2], [1, 6, 7, 8, 2], [1, 2], [1, 2]]
    noise = torch.stack([uniforms(s, 16, 3) for s in (5, 6)])
    for pairs in (False, True):
        wanted = DecodeSettings(4, SamplingSettings(cfg=2.0, top_k=6), ReplayRule(target=Target(0.5), pairs=pairs))
        both = Decode.of(model, prompts, wanted, noise)
        alone = Decode.of(model, [prompts[1], prompts[3]], wanted, noise[1:])
        for decode in (both, alone):
            for _ in decode.steps():
                pass
        assert both.replay is not None and alone.replay is not None
        assert torch.equal(both.replay.replayed[:, 1::2], alone.replay.replayed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scope", "cfg", "ratios"),
    [
        ("global", 1.0, (0.2, 0.85)),
        pytest.param("layer", 2.0, (0.5, 0.8), marks=pytest.mark.slow),
    ],
)
def test_the_bundled_model_meets_its_target_on_any_prompt(scope: str, cfg: float, ratios: tuple[float, ...]) -> None:
    pipe = VideoPipeline.from_config(RunConfig.from_dict({"model": "mini", "sampling": {"cfg": cfg}}))
    prompts = [
        "a big red ball rolling to the right on the grass",
        "a small green boat on the sea",
        "something at night",
    ]
    seeds = [11, 12, 13]
    for ratio in ratios:
        run = pipe.with_settings(rule=ReplayRule(target=Target(ratio, scope)))
        for _ in run.stream(prompts, seeds):
            pass
        for i in range(len(prompts)):
            replay = run.report(i)["replay"]
            assert abs(replay["ratio"] - ratio) <= 0.03
            if scope == "layer":
                assert max(abs(r - ratio) for r in replay["by_layer"]) <= 0.03


def test_report_recipe_and_table_name_the_ratio_kept(run: Run, tmp_path) -> None:  # type: ignore[no-untyped-def]
    call = ("generate", "a blue car", "--seed", "4", "--frames", "3")
    done = run(*call, "--replay-ratio", "0.5", "--set", "replay.controller=layer", "-o", "a.mp4", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tau"] is None
    assert (report["replay"]["controller"], report["replay"]["target"]) == ("layer", 0.5)
    assert len(set(report["replay"]["taus"])) == report["model"]["layers"]
    assert abs(report["replay"]["ratio"] - 0.5) <= 0.03
    again = run("generate", "--from", "a.mp4", "-o", "b.mp4")
    assert "at the end; target: 50.0% of MLPs replay (tau: layer)" in " ".join(again.stdout.split())
    assert (tmp_path / "a.mp4").read_bytes() == (tmp_path / "b.mp4").read_bytes()
    fixed = run("generate", "--from", "a.mp4", "--tau", "-1", "-o", "c.mp4", "--json")
    report = json.loads(fixed.stdout)
    assert (report["tau"], report["replay"]["controller"], report["replay"]["taus"]) == (-1.0, None, None)


def test_the_later_layer_wins() -> None:
    assert load_config("mini", [], {"replay.ratio": 0.8}).replay.tau.off
    assert load_config(None, ["replay.ratio=0.8"], {"replay.tau": -2.0}).replay.ratio is None
    assert load_config(None, ["replay.ratio=0.8"], {"replay.tau": "off"}).replay.ratio is None


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--tau", "-2", "--replay-ratio", "0.8"], "can't be used together"),
        (["--tau", "off", "--replay-ratio", "0.8"], "can't be used together"),
        (["--replay-ratio", "0.9"], "at most 0.8748"),
        (["--replay-ratio", "0.8", "--max-replay-age", "1"], "--max-replay-age 1 allow at most 0.499"),
        (["--replay-ratio", "0.1", "--frames", "1"], "at most 0"),
        (["--replay-ratio", "0"], "greater than 0"),
        (["--replay-ratio", "1.5"], "less than 1"),
        (["--replay-ratio", "nan"], "--replay-ratio"),
        (["--replay-ratio", "half"], "--replay-ratio"),
        (["--set", "replay.tau=-2", "--set", "replay.ratio=0.5"], "no ratio while 'replay.tau' is -2"),
        (["--replay-ratio", "0.5", "--set", "replay.controller=each"], "'global' or 'layer'"),
    ],
)
def test_a_wrong_ratio_is_refused(run: Run, arguments: list[str], says: str) -> None:
    done = run("generate", "a red ball", "-o", "x.mp4", *arguments)
    assert done.returncode == 2
    assert says in " ".join(done.stderr.replace("│", " ").split())
    assert "Traceback" not in done.stderr


def test_a_file_with_both_is_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "run.yaml"
    file.write_text("replay: {tau: -2, ratio: 0.8}\n")
    with pytest.raises(RequestError, match="replay.ratio"):
        load_config(str(file))


def test_a_plan_counts_the_replay_replay(run: Run) -> None:
    done = run("generate", "a red ball", "--replay-ratio", "0.5", "--dry-run", "--json")
    assert json.loads(done.stdout)["replay_cache_bytes"] > 0


def test_the_engine_refuses_what_cannot_be_reached() -> None:
    with pytest.raises(ValueError, match="at most"):
        _replay(0.99, 4)
