"""From targets to thresholds: the search on made-up curves, and the command on a tiny and on the bundled model."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.processes import Run
from support.sweeping import BALL, STAR, TINY_METRICS, cell_files, results, sweep, tiny_folder

from fastcar_cli.config.run_config import load_config
from fastcar_cli.config.tau import Tau
from fastcar_cli.errors import RunError
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.sweep import find, held_out
from fastcar_cli.sweep.target import Target, parse_target
from fastcar_lab.worlds.mini.captions import caption
from fastcar_lab.worlds.mini.scene import scenes_of, split_combinations

TAS = np.random.default_rng(0).normal(-1, 2, 5000).astype(np.float32)


class _Curve:
    """Stands for decoding: lines of a summary from a function of tau to (replay ratio, SSIM)."""

    def __init__(self, curve: Callable[[float], tuple[float, float]]) -> None:
        self.lines: dict[float, dict[str, Any]] = {}
        self._curve = curve

    def line(self, tau: float) -> dict[str, Any]:
        ratio, ssim = self._curve(tau)
        setting = {"tau": tau, "ratio": None, "score": "tas", "window": None, "gate": "row", "backend": "torch"}
        return self.lines.setdefault(
            tau, {**setting, "replay_ratio": ratio, "eligible_ratio": ratio / 0.875, "ssim": ssim}
        )


def _target(text: str) -> Target:
    request = SimpleNamespace(metrics=("psnr", "ssim"), windows=None, gates=None, backends=None, shard=None)
    return parse_target(text, request)  # type: ignore[arg-type]


def _search(text: str, curve: Callable[[float], tuple[float, float]]) -> tuple[_Curve, float | None, bool]:
    search = _Curve(curve)
    best, reached = find.narrow(search, find.Ranks(TAS), _target(text))
    return search, best, reached


def _logistic(middle: float, width: float) -> Callable[[float], tuple[float, float]]:
    """Replay falls from 0.875 to 0 around a threshold; SSIM rises with it."""

    def curve(tau: float) -> tuple[float, float]:
        share = 1.0 if tau == -math.inf else 1 / (1 + math.exp(min(60.0, (tau - middle) / width)))
        return 0.875 * share, 1 - 0.5 * share**3

    return curve


@settings(deadline=None)
@given(st.floats(0.1, 0.85), st.floats(-6, 4), st.floats(0.3, 3))
def test_ratios_are_met_in_few_steps_on_smooth_curves(wanted: float, middle: float, width: float) -> None:
    search, best, reached = _search(f"replay={wanted:.3f}", _logistic(middle, width))
    assert reached and best is not None
    assert abs(search.lines[best]["replay_ratio"] - wanted) <= 0.03
    assert len(search.lines) <= find.STEPS + 1


@settings(deadline=None)
@given(st.floats(0.55, 0.995), st.floats(-5, 3), st.floats(0.3, 2))
def test_qualities_are_met_with_nearly_all_the_replay_they_allow(wanted: float, middle: float, width: float) -> None:
    curve = _logistic(middle, width)
    search, best, reached = _search(f"ssim>={wanted:.3f}", curve)
    assert reached and best is not None and search.lines[best]["ssim"] >= round(wanted, 3)
    allowed = 0.875 * (2 * (1 - round(wanted, 3))) ** (1 / 3)
    assert search.lines[best]["replay_ratio"] >= allowed - 0.03


def test_what_can_not_be_reached_names_the_best() -> None:
    search, best, reached = _search("replay=0.95", _logistic(-1, 1))
    assert not reached and best == -math.inf and len(search.lines) == 1
    search, best, reached = _search("ssim>=1.1", _logistic(-1, 1))
    assert not reached and best is not None
    assert search.lines[best]["ssim"] == max(x["ssim"] for x in search.lines.values())
    line = search.lines[best]
    with pytest.raises(RunError, match="best found is ssim"):
        _target("ssim>=1.1").verdict({"reached": False, "best": {**line, "value": line["ssim"]}})


def test_cliffs_are_reported_and_a_ratio_inside_one_is_out_of_reach() -> None:
    def curve(tau: float) -> tuple[float, float]:
        return (0.8, 0.5) if tau < -1.2345 else (0.1, 0.99)

    search, _, reached = _search("replay=0.5", curve)
    assert not reached
    cliffs = find.cliffs(search.lines, _target("replay=0.5"), find.Ranks(TAS).spread)
    assert cliffs and all(c["from"] <= -1.2345 <= c["to"] for c in cliffs)
    smooth = _Curve(_logistic(-1, 2))
    for tau in np.linspace(-8, 6, 60):
        smooth.line(float(tau))
    assert find.cliffs(smooth.lines, _target("replay=0.5"), find.Ranks(TAS).spread) == []


def test_a_quality_that_all_replay_keeps_needs_no_search() -> None:
    search, best, reached = _search("ssim>=0.4", _logistic(-1, 1))
    assert (best, reached, len(search.lines)) == (-math.inf, True, 1)


def test_an_unreachable_target_fails_and_says_so(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    ask = [BALL, STAR, "--model", model, "--metrics", TINY_METRICS, "--seeds", "0-1", "-o", tmp_path / "d"]
    done = sweep(*ask, "--find", "replay=0.97")
    assert isinstance(done.exception, RunError)
    # 11 of 15 passes can replay in 4 frames of 4 positions.
    assert "best found is replay 0.7333 at tau -inf" in str(done.exception)
    assert results(tmp_path / "d")["find"]["reached"] is False and not (tmp_path / "d" / "found.yaml").exists()


@pytest.mark.slow
def test_a_configuration_found_names_the_score_of_the_search(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    ask = [BALL, "--model", model, "--metrics", TINY_METRICS, "--seeds", "0-3", "-o", tmp_path / "d"]
    sweep(*ask, "--score", "query", "--find", "eligible=0.4")
    found = load_config(str(tmp_path / "d" / "found.yaml")).replay
    assert found.score == "query" and found.tau == Tau.read(results(tmp_path / "d")["find"]["best"]["tau"])


@pytest.mark.slow
def test_a_search_resumes_where_it_stopped_and_its_configuration_is_taken(run: Run, tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    ask = [BALL, STAR, "--model", model, "--metrics", TINY_METRICS, "--seeds", "0-3", "-o", tmp_path / "d"]
    first = sweep(*ask, "--find", "eligible=0.4")
    assert first.exit_code == 0 or isinstance(first.exception, RunError), first.exception
    data, before = results(tmp_path / "d")["find"], cell_files(tmp_path / "d")
    assert data["reached"] and abs(data["best"]["eligible_ratio"] - 0.4) <= 0.03
    assert set(data["validation"]["seeds"]).isdisjoint(range(4)) and data["validation"]["videos"] == 8
    sweep(*ask, "--find", "eligible=0.4")
    assert results(tmp_path / "d")["find"] == data and cell_files(tmp_path / "d") == before
    assert load_config(str(tmp_path / "d" / "found.yaml")).replay.tau == Tau.read(data["best"]["tau"])
    done = run("generate", BALL, "--config", str(tmp_path / "d" / "found.yaml"), "--seed", "2", "-o", "c.mp4", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    cells = [c for c in results(tmp_path / "d")["cells"] if c["tau"] == data["best"]["tau"] and c["seed"] == 2]
    assert report["replay"]["ratio"] == next(c for c in cells if c["prompt"] == BALL)["replay"]["ratio"]


class _Judges:
    """Stands for decoding held-out videos too: the curve of all of them lies `shift` above that of those searched."""

    def __init__(self, curve: Callable[[float], tuple[float, float]], shift: float) -> None:
        self.samples: list[Any] = [curve]
        self._curve, self._shift = curve, shift

    def line(self, tau: float, *_: Any) -> dict[str, Any]:
        return {"tau": tau, "replay_ratio": min(0.875, self._curve(tau)[0] + self._shift)}


@settings(deadline=None)
@example(wanted=0.21875, middle=2.0, width=2.0, shift=0.0625)
@given(st.floats(0.2, 0.75), st.floats(-4, 2), st.floats(0.5, 2), st.floats(-0.1, 0.1))
def test_a_threshold_moves_to_what_fits_all_videos_but_keeps_the_searched_ones(
    wanted: float, middle: float, width: float, shift: float
) -> None:
    text, curve = f"replay={wanted:.3f}", _logistic(middle, width)
    search, best, _ = _search(text, curve)
    assert best is not None
    judges = _Judges(curve, shift)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held_out, "evaluate", lambda samples, _, tau, __: search.line(tau))
        ends = (float(TAS.min()), float(TAS.max()))
        check = held_out.HeldOut(None, search.lines, ends, _target(text), None, lambda *_: None)  # type: ignore[arg-type]
        moved = check.move(judges, best)  # type: ignore[arg-type]
    goal = round(wanted, 3)
    assert abs(curve(moved)[0] - goal) <= 0.03
    before, after = (abs(judges.line(t)["replay_ratio"] - goal) for t in (best, moved))
    assert after <= before
    # Within what the searched videos allow, all of them meet the target.
    assert after <= max(0.012, abs(shift) - 0.015)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("wanted", [0.7, 0.8])
def test_the_bundled_model_meets_a_ratio_on_other_prompts_and_seeds(wanted: float, tmp_path: Path) -> None:
    prompts = tmp_path / "p.txt"
    prompts.write_text(f"{BALL}\n{STAR}\na small blue car drives left on the road\na green boat on the sea\n")
    done = sweep("--prompts", prompts, "--seeds", "0-1", "--find", f"replay={wanted}", "-o", tmp_path / "d")
    assert done.exit_code == 0, done.exception
    assert abs(results(tmp_path / "d")["find"]["validation"]["value"] - wanted) <= 0.03
    pipe = VideoPipeline.from_config(load_config(str(tmp_path / "d" / "found.yaml")))
    rng = random.Random(50)
    # Captions of the training split: the command holds out others.
    captions = [caption(rng.choice(scenes_of(c)), rng) for c in rng.sample(split_combinations()[0], 64)]
    for _ in pipe.stream(captions, list(range(5000, 5064))):
        pass
    ratios = [pipe.report(i)["replay"]["ratio"] for i in range(64)]
    assert abs(float(np.mean(ratios)) - wanted) <= 0.03
