"""The bundled model draws what the prompt says (a small sample here; `-m slow` for the whole measurement)."""

from __future__ import annotations

import pytest

from fastcar_cli.config import load_config
from fastcar_cli.pipeline import TextToVideo
from fastcar_cli.world.evaluate import fidelity, held_out_captions, tokenizer_quality
from fastcar_cli.world.scene import split_combinations

BARS = {"background": 0.85, "color": 0.85, "shape": 0.45, "motion": 0.45}


def test_captions_are_of_combinations_never_trained_on() -> None:
    trained = set(split_combinations()[0])
    captions = held_out_captions(100, 2)
    assert len({c for _, c in captions}) > 90
    assert not any(scene.combination in trained for scene, _ in captions)


def test_tokenizer_keeps_pictures() -> None:
    quality = tokenizer_quality("mini", 30, 4)
    assert quality["psnr_db"] >= 33
    assert quality["analyser_right"] >= 0.97


@pytest.mark.parametrize("tau", ["off", -2.0])
def test_fidelity_of_a_sample(tau: float | str) -> None:
    pipe = TextToVideo.from_config(load_config(None, [], {"replay.tau": tau}))
    right = fidelity(pipe, 32, 9, batch=32)[0]["right"]
    for attribute, bar in BARS.items():
        assert right[attribute] >= bar, right


@pytest.mark.slow
def test_fidelity_in_full() -> None:
    right = fidelity(TextToVideo.from_config(load_config()), 200, 10)[0]["right"]
    for attribute, bar in BARS.items():
        assert right[attribute] >= bar, right
    assert right["persists"] >= 0.8, right
