"""`fastcar generate --continue`: the longer video, code for code, from the recipe of a shorter one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.ivideogpt import write_model
from support.processes import Run
from support.sweeping import BALL, tiny_folder

from fastcar_cli.media import read_frames, read_recipe

ASK = ("--seed", "3", "-q", "--tau", "0", "--model", "tiny")


@pytest.fixture
def begun(run: Run, tmp_path: Path) -> Path:
    tiny_folder(tmp_path / "tiny")
    done = run("generate", BALL, *ASK, "--frames", "2", "-o", "a.mp4")
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_an_extended_video_equals_the_longer_one(run: Run, begun: Path) -> None:
    on = run("generate", "--continue", "a.mp4", "--model", "tiny", "--frames", "5", "-q", "-o", "b.mp4")
    assert on.returncode == 0, on.stderr
    long = run("generate", BALL, *ASK, "--frames", "7", "--set", "generation.context_policy=roll", "-q", "-o", "c.mp4")
    assert long.returncode == 0, long.stderr
    assert np.array_equal(read_frames(begun / "b.mp4"), read_frames(begun / "c.mp4"))
    assert np.array_equal(read_frames(begun / "b.mp4")[:2], read_frames(begun / "a.mp4"))
    assert read_recipe(begun / "b.mp4") == read_recipe(begun / "c.mp4")


@pytest.mark.slow
def test_the_recipe_of_a_video_that_rolled_repeats_it(run: Run, tmp_path: Path) -> None:
    # `table` has positions for far more than the 16 frames after which it rolls.
    for ask in ((BALL, "--seed", "3", "-o", "a.mp4"), ("--continue", "a.mp4", "--frames", "8", "-o", "b.mp4")):
        assert run("generate", *ask, "--model", "table", "-q").returncode == 0
    assert run("generate", "--from", "b.mp4", "-q", "-o", "c.mp4").returncode == 0
    assert (tmp_path / "b.mp4").read_bytes() == (tmp_path / "c.mp4").read_bytes()
    stop = ("--frames", "24", "--set", "generation.context_policy=stop")
    assert run("generate", "--from", "b.mp4", *stop, "-q", "-o", "d.mp4").returncode == 0
    assert run("generate", "--from", "d.mp4", "-q", "-o", "e.mp4").returncode == 0
    assert (tmp_path / "d.mp4").read_bytes() == (tmp_path / "e.mp4").read_bytes() != (tmp_path / "b.mp4").read_bytes()


def test_without_frames_it_gets_as_many_more(run: Run, begun: Path) -> None:
    assert run("generate", "--continue", "a.mp4", "--model", "tiny", "-q", "-o", "b.gif").returncode == 0
    assert len(read_frames(begun / "b.gif")) == 4


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--tau", "1"), "--tau can't be used with --continue"),
        (("--seed", "1"), "--seed can't be used with --continue"),
        (("--samples", "2"), "--samples can't be used with --continue"),
        (("--set", "sampling.top_k=3"), "can't be used with --continue"),
        (("--from", "a.mp4"), "--from and --continue can't be used together"),
        ((BALL,), "has its own prompt or input"),
        (("--input", "a.mp4"), "has its own prompt or input"),
    ],
)
def test_what_would_change_the_video_is_refused(run: Run, begun: Path, more: tuple[str, ...], said: str) -> None:
    done = run("generate", "--continue", "a.mp4", "--model", "tiny", *more)
    assert done.returncode == 2 and said in done.stderr, done.stderr


def test_other_weights_are_refused(run: Run, begun: Path) -> None:
    tiny_folder(begun / "other", seed=1)
    done = run("generate", "--continue", "a.mp4", "--model", "other", "-q", "-o", "b.mp4")
    assert done.returncode == 2 and "was made with other weights" in done.stderr
    assert not (begun / "b.mp4").exists()


def test_a_video_without_a_recipe_is_refused(run: Run, begun: Path) -> None:
    np.save(begun / "a.npy", read_frames(begun / "a.mp4"))
    done = run("generate", "--continue", "a.npy")
    assert done.returncode == 2 and "a.npy" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_actions_continue(run: Run, tmp_path: Path) -> None:
    ask = ("generate", "--model", write_model(tmp_path / "tiny", 1, 2), "--seed", "1", "-q")
    moves = [[1, 0], [0, 1], [-1, 0], [2, 2], [0, 0], [1, 1]]
    image = np.full((64, 64, 3), 200, np.uint8)
    image[24:40, 24:40] = (250, 30, 30)
    np.savez(tmp_path / "i.npz", image=image[None])
    for name, rows in (("first.json", moves[:2]), ("more.json", moves[2:]), ("all.json", moves)):
        (tmp_path / name).write_text(json.dumps(rows))
    for arguments in (
        ("--input", "i.npz", "--actions", "first.json", "--frames", "3", "-o", "a.mp4"),
        ("--input", "i.npz", "--actions", "all.json", "--frames", "7", "-o", "c.mp4"),
    ):
        assert run(*ask, *arguments).returncode == 0
    more = ("generate", "--continue", "a.mp4", "--model", "tiny", "--frames", "4", "-q", "-o")
    on = run(*more, "b.mp4", "--actions", "more.json")
    assert on.returncode == 0, on.stderr
    assert np.array_equal(read_frames(tmp_path / "b.mp4"), read_frames(tmp_path / "c.mp4"))
    short = run(*more, "d.mp4", "--actions", "first.json")
    assert short.returncode == 2 and "first.json" in short.stderr
    none = run(*more, "d.mp4")
    assert none.returncode == 2 and "--actions" in none.stderr
