"""The bundled models of the world `table`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.processes import Run

from fastcar_cli.checkpoints.open import folder_of, load, spec_of
from fastcar_cli.config.run_config import load_config
from fastcar_cli.inputs.worlds.physics import read_scenery
from fastcar_cli.media import read_frames
from fastcar_cli.models.vila_u.network import VideoModel
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.evaluation import generate_videos
from fastcar_lab.worlds import world_of
from fastcar_lab.worlds.table.analyser import analyse, judge
from fastcar_lab.worlds.table.hyperparameters import TABLE, TABLE_MAP
from fastcar_lab.worlds.table.said import said_of
from fastcar_lab.worlds.table.world import WORLD

MODELS = ("table", "table-dense")
HIT = "a red metal ball rolls to the right and hits a blue cube"


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_of_the_recipe_and_small(name: str) -> None:
    spec = spec_of(name)
    assert spec.to_dict() == {**TABLE.to_dict(), "name": name}
    assert sum(f.stat().st_size for f in folder_of(name).iterdir()) <= 14_000_000


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_known_to_speak_of_its_world(name: str) -> None:
    model = load(name)
    assert world_of(model.tokenizer, *model.network.spec.frame_spec.size) is WORLD


def test_both_have_one_tokenizer() -> None:
    networks = [load(name).network for name in MODELS]
    one, other = (n.rqvae.state_dict() for n in networks if isinstance(n, VideoModel))
    assert all(np.array_equal(value.numpy(), other[key].numpy()) for key, value in one.items())


@pytest.mark.slow
def test_a_prompt_becomes_a_video(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "hit.mp4"
    done = run("generate", HIT, "--model", "table", "--tau", "-2", "--seed", "1", "--json", "-o", str(file))
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["video"] | {"path": ""} == {"path": "", "frames": 16, "height": 128, "width": 128, "fps": 8}
    assert 0.2 < report["replay"]["ratio"] < 0.94
    assert len(report["reading"]["drawn"]) > 4
    video = np.stack(list(read_frames(file)))
    assert video.shape == (16, 128, 128, 3)
    again = run("generate", "--from", str(file), "--json", "-o", str(tmp_path / "again.mp4"))
    assert json.loads(again.stdout)["replay"] == report["replay"]


def test_what_nothing_is_planned_for_is_drawn_as_the_nearest_scene(run: Run, tmp_path: Path) -> None:
    prompt = "a cylinder enters from the left and hits a ball"
    done = run("generate", prompt, "--model", "table", "--frames", "1", "-o", str(tmp_path / "a"))
    words = load("table").tokenizer
    assert len(read_scenery(words.complete(words.read(prompt), 0).ids, TABLE_MAP).things) == 2
    assert done.returncode == 0 and "and draws 'cylinder hits ball' instead" in " ".join(done.stderr.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "tau", "least"), [("table-dense", "off", 0.45), ("table", "off", 0.4), ("table", "-2", 0.4)]
)
def test_captions_with_one_object_are_shown_right(name: str, tau: str, least: float) -> None:
    """24 captions that were never trained on; what was measured on 300 is in docs/table.md."""
    chosen = [(s, c) for s, c in WORLD.held_out(60, 77) if len(s.things) == 1][:24]
    pipe = VideoPipeline.from_config(load_config(None, [f"replay.tau={tau}"], {"model": name}))
    videos, _ = generate_videos(pipe, [c for _, c in chosen], list(range(24)), 12)
    right = [judge(analyse(v), said_of(s))["all"] for v, (s, _) in zip(videos, chosen, strict=True)]
    assert float(np.mean(right)) >= least
