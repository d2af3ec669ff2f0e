"""`Pipeline` and `Video`, as Python's users call them."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from support.sweeping import BALL, STAR, tiny_folder

from fastcar_cli import Pipeline, Video
from fastcar_cli.errors import RequestError
from fastcar_cli.media import read_recipe


@pytest.fixture(scope="module")
def pipe(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    return Pipeline.from_pretrained(str(tiny_folder(tmp_path_factory.mktemp("tiny") / "model")), tau=-2)


def test_a_text_is_one_prompt_and_a_list_several(pipe: Pipeline) -> None:
    one, several = pipe(BALL, seed=4), pipe([BALL, STAR], seed=4)
    assert isinstance(one, Video) and len(several) == 2
    assert one.frames.dtype == np.uint8 and one.frames.shape == (pipe.frames, pipe.height, pipe.width, 3)
    assert np.array_equal(one.frames, several[0].frames)
    assert [v.report["seed"] for v in several] == [4, 5] and several[1].report["prompt"] == STAR
    assert one.report["tau"] == -2 and one.report["draft"]["kind"] != "off"


def test_without_a_seed_one_is_drawn_and_said(pipe: Pipeline) -> None:
    first, second = pipe(BALL), pipe(BALL)
    assert first.report["seed"] != second.report["seed"]
    assert np.array_equal(pipe(BALL, seed=first.report["seed"]).frames, first.frames)


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5, "1", [1]])
def test_what_is_no_seed_is_refused(pipe: Pipeline, seed: object) -> None:
    with pytest.raises(RequestError, match=rf"^`seed` {re.escape(repr(seed))}: not allowed"):
        pipe(BALL, seed=seed)  # type: ignore[call-overload]


def test_a_video_says_in_a_line_what_it_is(pipe: Pipeline) -> None:
    size = f"{pipe.frames} frames of {pipe.width} x {pipe.height}"
    assert repr(pipe(BALL, seed=np.int64(4))) == f"Video({BALL!r}, seed 4: {size})"


def test_a_video_is_saved_with_its_recipe_and_shown_in_a_notebook(pipe: Pipeline, tmp_path: Path) -> None:
    video = pipe(BALL, seed=4)
    assert read_recipe(video.save(tmp_path / "a.mp4", scale=2))["seed"] == 4
    saved = iio.imread(video.save(str(tmp_path / "a.gif")))
    assert saved.shape[0] == pipe.frames
    shown = re.search('base64,(.*?)"', video._repr_html_())
    assert shown is not None and iio.imread(io.BytesIO(base64.b64decode(shown[1]))).shape[1] >= 256
    with pytest.raises(RequestError):
        video.save(tmp_path / "a.txt")


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(RequestError, match="tauu is not an option"):
        Pipeline.from_pretrained("mini", tauu=-2)
