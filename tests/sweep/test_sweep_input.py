"""Sweeps over clips: cells of models that continue frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.ivideogpt import ACTIONS, moving_clip, write_clip, write_model
from support.sweeping import results, sweep, tiny_folder

from fastcar_cli.media import read_frames, read_recipe


@pytest.fixture(scope="module")
def acting(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "acting", 1, ACTIONS)


def test_clips_are_swept_as_prompts_are(acting: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", image=moving_clip(4), action=np.ones((4, ACTIONS)))
    np.savez(tmp_path / "b.npz", image=moving_clip(4)[::-1], action=np.zeros((4, ACTIONS)))
    ask = ["--model", acting, "--input", tmp_path / "a.npz", "--frames", "4", "--metrics", "psnr,temporal"]
    ask += ["--tau", "off,-inf", "--repeats", "1", "-o", tmp_path / "out", "--seeds", "3"]
    assert sweep(*ask).exit_code == 0
    cells = results(tmp_path / "out")["cells"]
    assert len(cells) == 2 and {c["prompt"].split()[0] for c in cells} == {"a.npz"}
    replayed = next(c for c in cells if c["tau"] is not None)
    # Delimiters and the first predicted frame are computed, context frames have nothing to decode.
    places = np.array(replayed["replay"]["map"])
    assert places.shape == (4, 4, 4) and not places[:2].any()
    assert places[2].min() == 1 and places[3].ravel()[:-1].min() == 1
    dense = next(c for c in cells if c["tau"] is None)
    recipe = read_recipe(tmp_path / "out" / dense["video"])
    assert recipe["prompt"] == "a.npz" and len(recipe["input"]["ids"]) == 256
    assert len(read_frames(tmp_path / "out" / dense["video"])) == 4
    # Another clip joins, the first one's cells stay.
    more = sweep(*ask, "--input", tmp_path / "b.npz", "--dry-run", "--json")
    assert json.loads(more.stdout)["left"] == 2


def test_wrong_requests(acting: str, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.gif", moving_clip(4))
    common = ["--tau", "0", "-o", tmp_path / "out", "--frames", "3"]
    np.savez(tmp_path / "a.npz", image=moving_clip(4), action=np.ones((4, ACTIONS)))
    same = ["--input", tmp_path / "a.npz"] * 2
    for arguments, message in (
        (["--input", clip, "a ball"], "--input and prompts can't be used together"),
        (["--actions", clip, "a ball"], "--actions has no effect without --input"),
        (["--model", acting, "a ball"], "takes frames, not text"),
        (["--model", acting, "--input", clip], "needs actions: 3 numbers"),
        (["--model", acting, *same], "a.npz: is given twice"),
        (["--model", tiny_folder(tmp_path / "tiny"), "--input", clip], "takes text, not frames"),
    ):
        done = sweep(*arguments, *common)
        assert message in str(done.exception), (arguments, done.exception)
        assert not (tmp_path / "out" / "cells").exists()
