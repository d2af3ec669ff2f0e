"""Frames decoded in another dtype than float32: where a model can, and what it changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.causal_video import TINY
from support.cosmos import shape

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import Clip
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.dummy.cosmos import write


def frames_of(model: str, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Codes and pixels of a video of 17 frames."""
    generation = {"size": "48x32", "frames": 17, "context": 9}
    config = {"model": model, "generation": generation, "runtime": {"dtype": "float32", "pixel_dtype": dtype}}
    pipe = VideoPipeline.from_config(RunConfig.from_dict(config))
    clip = Clip(np.random.default_rng(0).integers(0, 256, (9, 32, 48, 3), dtype=np.uint8))
    frames = np.stack([frame.image for frame in pipe.stream([clip], [0])])
    return pipe.codes, frames.astype(int)


def test_bfloat16_changes_pixels_a_little_and_no_code(tmp_path: Path) -> None:
    model = str(write(tmp_path, shape("Cosmos-Predict1-4B", 2, 64, 4, 2, 16, 96, TINY)))
    (codes, frames), (half_codes, half) = (frames_of(model, dtype) for dtype in ("float32", "bfloat16"))
    assert np.array_equal(codes, half_codes)
    assert frames.shape == half.shape == (17, 32, 48, 3)
    assert 0 < np.abs(frames - half).mean() <= 4


def test_a_model_that_decodes_frames_in_float32_alone_says_so() -> None:
    config = RunConfig.from_dict({"model": "mini", "runtime": {"pixel_dtype": "bfloat16"}})
    with pytest.raises(RequestError, match="`pixel_dtype` bfloat16: 'mini' decodes frames only in float32"):
        VideoPipeline.from_config(config)
