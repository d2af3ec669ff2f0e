"""What claims see of every token of a video, beside a trace of the same codes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from support.sweeping import tiny_folder

from fastcar_cli.config.run_config import load_config
from fastcar_cli.decoding import trace
from fastcar_cli.decoding.replay.scores import SCORES
from fastcar_cli.models import load
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.claims.observed import codes, observed

N, FRAMES = 4, 4
SAID = "a small red ball rolling to the right on the grass"
"""Leaves nothing open, so that its reading is the same without a seed."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


def _decoded(model: Path, flags: dict[str, object]) -> tuple[VideoPipeline, dict[str, np.ndarray]]:
    pipe = VideoPipeline.from_config(load_config(flags={"model": str(model), **flags}))
    return pipe, {**observed(pipe.run([SAID], [0])), **codes(pipe)}


def test_tokens_are_what_a_trace_shows(model: Path) -> None:
    _, dense = _decoded(model, {"replay.tau": "off"})
    passes = FRAMES * N - 1
    own = torch.from_numpy(dense["codes"].astype(np.int64))[None]
    seen = trace(load(str(model)), [SAID], own, tau=float("inf"), cfg=2.5, tas="attention", mlp_tokens=range(passes))
    assert not dense["replayed"].any()
    names = list(dense["names"])
    assert names == list(SCORES)
    np.testing.assert_allclose(dense["scores"][0], seen.tas.numpy(), atol=1e-5)
    mlp = seen.mlp.permute(0, 2, 1, 3)
    change = (mlp[:, :, N:] - mlp[:, :, :-N]).norm(dim=-1).numpy()
    np.testing.assert_allclose(dense["change"][:, :, N:], change, atol=1e-5)
    np.testing.assert_allclose(dense["scores"][names.index("oracle")][:, :, N:], -change, atol=1e-5)
    cosine = torch.cosine_similarity(mlp[:, :, N:], mlp[:, :, :-N], dim=-1).numpy()
    np.testing.assert_allclose(dense["cosine"][:, :, N:], cosine, atol=1e-5)
    out = seen.block_out.permute(1, 2, 0, 3)[:, :, 1:]
    moved = (out[:, :, N:] - out[:, :, :-N]).norm(dim=-1).numpy()
    np.testing.assert_allclose(dense["input"][1:, :, N:], moved[:-1], atol=1e-4)


@pytest.mark.parametrize("score", list(SCORES))
def test_tokens_of_a_replayed_video_hold_its_decisions(model: Path, score: str) -> None:
    pipe, tokens = _decoded(model, {"replay.ratio": 0.5, "replay.score": score})
    assert tokens["replayed"].mean() == pytest.approx(pipe.report(0)["replay"]["ratio"])
    assert np.isnan(tokens["change"][:, :, :N]).all() and np.isfinite(tokens["change"][:, :, N:]).all()
    assert (tokens["scores"][0][:, :, N:] <= tokens["tas_reach"][:, :, N:] + 1e-5).all()
