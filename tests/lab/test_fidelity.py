"""The bundled model draws what the prompt says (a small sample here; `-m slow` for the whole measurement)."""

from __future__ import annotations

import pytest

from fastcar_cli.config.run_config import load_config
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.evaluation import fidelity
from fastcar_lab.worlds.mini.scene import split_combinations
from fastcar_lab.worlds.mini.world import WORLD

BARS = {"background": 0.98, "color": 0.98, "shape": 0.92, "motion": 0.92, "size": 0.9, "all": 0.85}


def test_captions_are_of_combinations_never_trained_on() -> None:
    trained = set(split_combinations()[0])
    captions = WORLD.held_out(100, 2)
    assert len({c for _, c in captions}) > 90
    assert not any(scene.combination in trained for scene, _ in captions)


@pytest.mark.slow
def test_tokenizer_keeps_pictures() -> None:
    quality = WORLD.tokenizer_quality("mini", 30, 4)
    assert quality["psnr_db"] >= 33
    assert quality["analyser_right"] >= 0.97


@pytest.mark.parametrize(
    ("tau", "replayed"),
    [
        pytest.param("off", (0, 0), marks=pytest.mark.slow),
        pytest.param(0.0, (0.4, 0.65), marks=pytest.mark.slow),
        pytest.param(-2.0, (0.75, 0.9), marks=pytest.mark.slow),
        pytest.param(-8.0, (0.97, 1), marks=pytest.mark.slow),
    ],
)
def test_fidelity_and_replay_of_a_sample(tau: float | str, replayed: tuple[float, float]) -> None:
    pipe = VideoPipeline.from_config(load_config(None, [], {"model": "mini", "replay.tau": tau}))
    found = fidelity(WORLD, pipe, 24, 9, batch=24)[0]
    # One wrong video of 24 is 4 %; the bars themselves are for 300.
    for attribute, bar in BARS.items():
        assert found["right"][attribute] >= bar - 0.05, found["right"]
    assert replayed[0] <= found["replay"]["eligible_ratio"] <= replayed[1]


@pytest.mark.long
@pytest.mark.slow
def test_fidelity_in_full() -> None:
    """The bars of the bundled model on 300 captions: dense, and how far replay may fall behind it."""
    right = {}
    for tau in ("off", -2.0, -8.0):
        pipe = VideoPipeline.from_config(load_config(None, [], {"model": "mini", "replay.tau": tau}))
        right[tau] = fidelity(WORLD, pipe, 300, 10, batch=60)[0]["right"]
    for attribute, bar in BARS.items():
        assert right["off"][attribute] >= bar, right
    assert right["off"]["persists"] >= 0.95, right
    assert right[-2.0]["all"] >= right["off"]["all"] - 0.02, right
    assert right[-8.0]["all"] >= right["off"]["all"] - 0.06, right


@pytest.mark.slow
def test_int8_keeps_the_fidelity_of_a_sample() -> None:
    config = load_config(None, [], {"model": "mini", "replay.tau": -2.0, "runtime.dtype": "int8"})
    pipe = VideoPipeline.from_config(config)
    right = fidelity(WORLD, pipe, 24, 9, batch=24)[0]["right"]
    assert right["all"] >= BARS["all"] - 0.05, right
