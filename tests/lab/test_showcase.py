"""Videos side by side in one file."""

from __future__ import annotations

from pathlib import Path

import imageio.v3 as iio
import numpy as np
from support.sweeping import tiny_folder
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.errors import RequestError
from fastcar_lab.figures.showcase import laid_over, side_by_side

SAID = ("a small red ball rolling to the right on the grass", "a big yellow star bouncing at night")


def test_each_video_keeps_its_pixels_under_its_title() -> None:
    colors = [(value, 0, 200) for value in (10, 20, 30)]
    videos = [np.full((2, 8, 16, 3), color, np.uint8) for color in colors]
    shown = side_by_side(videos, (*SAID, ""), columns=2)
    assert [int((shown[1] == c).all(-1).sum()) for c in colors] == [8 * 16] * 3
    rows = [int(np.argwhere((shown[0] == c).all(-1))[0, 0]) for c in colors]
    assert rows[0] == rows[1] < rows[2]


def test_what_was_replayed_is_green_and_the_rest_is_not() -> None:
    share = np.zeros((1, 4))
    share[0, 1] = 1
    shown = laid_over(np.full((1, 8, 8, 3), 100, np.uint8), share, (2, 2))
    green = shown[0, ..., 1] > shown[0, ..., 0]
    assert green[:4, 4:].all() and green.sum() == 16


def test_a_file_of_two_videos_and_what_was_replayed(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "tiny")
    request = ["lab", "showcase", *SAID, "--model", str(tmp_path / "tiny"), "--seed", "1", "--tau", "-inf"]
    done = CliRunner().invoke(app, [*request, "--replayed", "-o", str(tmp_path / "x.gif")])
    assert done.exit_code == 0, done.exception
    assert done.stdout.count("seed 1") == 2
    alone = CliRunner().invoke(app, [*request, "-o", str(tmp_path / "y.gif")])
    assert alone.exit_code == 0, alone.exception
    wide, narrow = (iio.imread(tmp_path / name) for name in ("x.gif", "y.gif"))
    assert wide.shape[0] == narrow.shape[0] == 4 and wide.shape[2] > 1.9 * narrow.shape[2]


def test_seeds_that_fit_no_prompts_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["lab", "showcase", *SAID, *3 * ("--seed", "1"), "-o", str(tmp_path / "x.gif")])
    assert isinstance(done.exception, RequestError) and "3 --seed for 2 prompts" in str(done.exception)
