"""The bundled model of pushes: its objects obey."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.processes import Run

from fastcar_cli.checkpoints.open import folder_of
from fastcar_cli.config.run_config import load_config
from fastcar_cli.media import read_frames
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.evaluation import generate_videos
from fastcar_lab.worlds.mini.analyser import follow
from fastcar_lab.worlds.mini_actions import samples
from fastcar_lab.worlds.mini_actions.samples import obedience
from fastcar_lab.worlds.mini_actions.scene import Story, looks


@pytest.fixture(scope="module")
def pipe() -> VideoPipeline:
    return VideoPipeline.from_config(load_config(None, [], {"model": "mini-actions"}))


def _generate(pipe: VideoPipeline, stories: list[Story], seed: int) -> tuple[np.ndarray, dict[str, float]]:
    seeds = [seed * 100_003 + i for i in range(len(stories))]
    return generate_videos(pipe, [samples.clip_of(story) for story in stories], seeds, batch=25)


@pytest.mark.slow
def test_objects_of_the_bundled_model_obey(pipe: VideoPipeline) -> None:
    stories = samples.held_out(12, 3)
    videos, _ = _generate(pipe, stories, 1)
    found = obedience(videos, stories)
    assert found["within_2"] >= 0.55 and found["within_4"] >= 0.75 and found["look"] >= 0.6
    # The same videos are wrong for other pushes, and so is an object that stays where it is.
    others = [replace(s, pushes=tuple((-a, -b) for a, b in s.pushes)) for s in stories]
    assert obedience(videos, others)["within_2"] < 0.5 and found["unmoved"] < 0.5


@pytest.mark.slow
def test_objects_obey_when_most_of_what_may_replay_does() -> None:
    stories = samples.held_out(12, 3)
    replaying = VideoPipeline.from_config(load_config(None, [], {"model": "mini-actions", "replay.tau": "-2"}))
    videos, ratios = _generate(replaying, stories, 1)
    found = obedience(videos, stories)
    # A model that was not trained for replay loses the object: 20 to 30 % are within 2 px.
    assert ratios["eligible_ratio"] >= 0.6 and found["within_2"] >= 0.7 and found["look"] >= 0.6


def test_a_frame_of_another_world_is_said(pipe: VideoPipeline) -> None:
    known = samples.clip_of(samples.held_out(1, 5)[0])
    photograph = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3), dtype=np.uint8)
    assert pipe.notices([known]) == []
    [note] = pipe.notices([replace(known, frames=photograph)])
    assert "is unlike the frames that the model 'mini-actions' was trained on" in note and "comes back at 10 dB" in note


def test_clips_of_its_own_world_are_not_called_unlike_it(pipe: VideoPipeline, run: Run, tmp_path: Path) -> None:
    assert run("lab", "clips", "clips").returncode == 0
    clips = sorted((tmp_path / "clips").glob("*.mp4"))
    known = samples.clip_of(samples.held_out(1, 5)[0])
    assert clips and pipe.notices([replace(known, frames=read_frames(clip)[:1]) for clip in clips]) == []


@pytest.mark.slow
def test_an_object_drawn_by_mini_is_pushed_on(run: Run, tmp_path: Path) -> None:
    done = run("generate", "a small red ball that does not move on the sky", "-o", "ball.mp4", "--seed", "1")
    assert done.returncode == 0, done.stderr
    (tmp_path / "pushes.json").write_text(json.dumps([[4, 0]] * 3 + [[0, -4]] * 4))
    done = run(
        "generate", "--model", "mini-actions", "--input", "ball.mp4", "--actions", "pushes.json", "-o", "next.mp4"
    )
    assert done.returncode == 0, done.stderr
    seen = follow(read_frames(tmp_path / "next.mp4"))
    assert all(s is not None for s in seen)
    path = [(s.x - seen[0].x, s.y - seen[0].y) for s in seen if s and seen[0]]
    wanted = [(min(4 * t, 12), -4 * max(0, t - 3)) for t in range(8)]
    assert np.abs(np.array(path) - np.array(wanted)).max() <= 2


def test_the_example_needs_no_file_and_its_object_obeys(run: Run, tmp_path: Path) -> None:
    done = run("generate", "--model", "mini-actions", "--example", "--seed", "1", "-o", "next.mp4", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["input"]["name"] == "example.npz"
    videos = read_frames(tmp_path / "next.mp4")[None]
    assert obedience(videos, [samples.EXAMPLE])["within_2"] == 1.0


def test_the_example_is_a_look_never_trained_on_as_the_renderer_draws_it(tmp_path: Path) -> None:
    assert samples.EXAMPLE.look in looks()[1]
    samples.write_example(tmp_path / "example.npz")
    own, bundled = (np.load(f / "example.npz") for f in (tmp_path, folder_of("mini-actions")))
    assert all(np.array_equal(own[key], bundled[key]) for key in ("image", "action"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a red ball", "--example"], "--example excludes other inputs"),
        (["--example", "--model", "vila-u-7b"], "the model 'vila-u-7b' has none"),
    ],
)
def test_examples_that_can_not_be(run: Run, arguments: list[str], said: str) -> None:
    done = run("generate", *arguments, "-o", "x.mp4")
    assert done.returncode == 2 and said in done.stderr


def test_the_bundled_model_is_small() -> None:
    assert sum(f.stat().st_size for f in folder_of("mini-actions").rglob("*") if f.is_file()) <= 12 * 2**20
