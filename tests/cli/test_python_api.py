"""`Pipeline` and `Video`, as Python's users call them."""

from __future__ import annotations

import base64
import contextlib
import copy
import io
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import imageio.v3 as iio
import numpy as np
import pytest
import torch
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


def test_calls_from_threads_have_their_own_reports(pipe: Pipeline) -> None:
    alone = [pipe(BALL, seed=i) for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = [*pool.map(lambda i: pipe(BALL, seed=i), range(4))]
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.frames, other.frames) and one.recipe == other.recipe
        assert one.report["seed"] == other.report["seed"] and one.report["replay"] == other.report["replay"]


@pytest.mark.parametrize("executor", ["auto", "torch"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_callers_default_dtype_changes_nothing(tmp_path: Path, dtype: torch.dtype, executor: str) -> None:
    folder = tiny_folder(tmp_path / "model")
    wanted = Pipeline.from_pretrained(folder, executor=executor, dtype=torch.float32)(BALL, seed=4).frames
    torch.set_default_dtype(dtype)
    try:
        made = Pipeline.from_pretrained(folder, executor=executor, device=torch.device("cpu"))(BALL, seed=4).frames
        assert torch.get_default_dtype() == dtype
    finally:
        torch.set_default_dtype(torch.float32)
    assert np.array_equal(made, wanted)


@pytest.mark.parametrize(
    "mode", [lambda: torch.autocast("cpu", dtype=torch.bfloat16), lambda: torch.device("meta"), torch.inference_mode]
)
def test_the_callers_modes_of_torch_change_nothing(tmp_path: Path, mode: Callable[[], Any]) -> None:
    folder = tiny_folder(tmp_path / "model")
    wanted = Pipeline.from_pretrained(folder)(BALL, seed=4).frames
    with mode():
        made = Pipeline.from_pretrained(folder)(BALL, seed=4).frames
    assert np.array_equal(made, wanted)


def test_a_pipeline_has_its_own_seed(tmp_path: Path, pipe: Pipeline) -> None:
    made = Pipeline.from_pretrained(tiny_folder(tmp_path / "model"), seed=4, tau=-2)(BALL)
    assert made.report["seed"] == 4 and np.array_equal(made.frames, pipe(BALL, seed=4).frames)


def test_what_is_not_a_prompt_is_refused(pipe: Pipeline) -> None:
    with pytest.raises(RequestError, match="the prompt is of type NoneType"):
        pipe(None)  # type: ignore[call-overload]


def test_a_pipeline_stays_in_its_process(pipe: Pipeline) -> None:
    for way in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="load the model in each process"):
            way(pipe)


def test_a_closed_pipeline_is_refused(tmp_path: Path) -> None:
    with contextlib.closing(Pipeline.from_pretrained(tiny_folder(tmp_path / "model"))) as pipe:
        assert pipe(BALL, seed=4).frames.shape[0] == pipe.frames
    with pytest.raises(RequestError, match="the pipeline is closed"):
        pipe(BALL, seed=4)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_used_pipeline_works_in_a_forked_child() -> None:
    code = (
        "import multiprocessing, numpy as np; from fastcar_cli import Pipeline;"
        f"pipe = Pipeline.from_pretrained('mini', frames=2); right = pipe({BALL!r}, seed=1).frames;"
        "context = multiprocessing.get_context('fork'); queue = context.Queue();"
        f"child = context.Process(target=lambda: queue.put(pipe({BALL!r}, seed=1).frames)); child.start();"
        "assert np.array_equal(queue.get(timeout=500), right); child.join()"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=600)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [{}, {"executor": "torch"}])
def test_more_videos_than_a_pass_has_room_for(arguments: dict[str, str], tmp_path: Path) -> None:
    pipe = Pipeline.from_pretrained(tiny_folder(tmp_path / "model"), **arguments)
    videos = pipe([BALL] * 200, seed=0)
    assert len(videos) == 200
    assert np.array_equal(videos[199].frames, pipe(BALL, seed=199).frames)


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
