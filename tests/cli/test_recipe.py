"""What a shared video says of how it was made, and what is taken from a stranger's one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from support.sweeping import tiny_folder
from typer.testing import CliRunner, Result

from fastcar_cli import __version__
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.cli.app import app
from fastcar_cli.config.presets import preset_folder
from fastcar_cli.config.run_config import RunConfig, flat
from fastcar_cli.config.tau import Tau
from fastcar_cli.errors import RequestError
from fastcar_cli.media import open_writer, read_frames, read_recipe
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.pipeline.recipe import settings_of

PROMPT = "a red ball on the grass"


def _generate(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["generate", *map(str, arguments)])


def _recipe(**changes: Any) -> dict[str, Any]:
    """A recipe as files of version 0.1.0 carry it: the whole configuration."""
    settings = RunConfig().to_dict()
    for key, value in changes.items():
        section, _, last = key.rpartition("__")
        (settings[section] if section else settings)[last] = value
    return {"prompt": PROMPT, "seed": 3, "settings": settings, "model": "mini", "version": __version__}


def _video(folder: Path, recipe: dict[str, Any]) -> Path:
    with open_writer(folder / "clip.gif", fps=8, recipe=recipe) as writer:
        writer.add(np.zeros((8, 8, 3), np.uint8))
    return folder / "clip.gif"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def test_a_recipe_holds_no_path_and_nothing_of_the_machine(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "secret-model")
    accelerator = tmp_path / "secret-accelerator.yaml"
    data = yaml.safe_load((preset_folder() / "fpga" / "edge-small.yaml").read_text())
    accelerator.write_text(yaml.safe_dump({**data, "name": "mine"}))
    arguments = ["--model", model, "--backend", "fpga-sim", "--fpga", accelerator, "--threads", "1", "--device", "cpu"]
    done = _generate(PROMPT, "--seed", "1", "--frames", "2", *arguments, "-o", "clip.gif")
    assert done.exit_code == 0, done.exception
    recipe = read_recipe(Path("clip.gif"))
    text = json.dumps(recipe)
    assert "secret" not in text and str(tmp_path) not in text and "/" not in text
    keys = flat(recipe["settings"])
    assert not {"model", "backend.preset", "runtime.device", "runtime.threads", "runtime.executor"} & keys.keys()
    assert recipe["model"] == {"name": "tiny", "weights": open_model(str(model)).identity.weights, "commit": None}
    assert recipe["accelerator"] == "mine"

    done = _generate("--from", "clip.gif", "-o", "again.gif")
    assert isinstance(done.exception, RequestError) and "a local model, 'tiny'" in str(done.exception)
    assert done.exception.hint == "give the model's folder: --model FOLDER"
    done = _generate("--from", "clip.gif", "--model", model, "-o", "again.gif")
    assert isinstance(done.exception, RequestError) and "a local accelerator file, 'mine'" in str(done.exception)
    assert done.exception.hint == "give that file: --fpga FILE"
    done = _generate("--from", "clip.gif", "--model", model, "--fpga", accelerator, "-o", "again.gif")
    assert done.exit_code == 0 and "other weights" not in done.stderr, done.exception
    assert np.array_equal(read_frames(Path("clip.gif")), read_frames(Path("again.gif")))

    other = tiny_folder(tmp_path / "other", seed=1)
    done = _generate("--from", "clip.gif", "--model", other, "--backend", "torch", "-o", "other.gif")
    assert done.exit_code == 0 and "clip.gif was made with other weights" in done.stderr, done.exception


@pytest.mark.parametrize(
    "model", ["/tmp/model", "model", "../mini", "C:\\model", "", 7, None, "vila-u-7b@refs/pr/1", "vila-u-7b@../x"]
)
def test_a_stranger_names_no_model_on_this_machine(tmp_path: Path, model: object) -> None:
    tiny_folder(tmp_path / "model")
    done = _generate("--from", _video(tmp_path, _recipe(model=model)), "-o", "out.gif")
    assert isinstance(done.exception, RequestError)
    assert done.exception.hint == "give the model's folder: --model FOLDER"
    assert not Path("out.gif").exists()


@pytest.mark.parametrize("preset", ["mine.yaml", "/etc/passwd", "../edge-small", 3])
def test_a_stranger_names_no_preset_on_this_machine(preset: object) -> None:
    shutil.copy(preset_folder() / "fpga" / "edge-small.yaml", "mine.yaml")
    recipe = _recipe(backend__name="fpga-sim", backend__preset=preset)
    with pytest.raises(RequestError, match="a local accelerator file"):
        settings_of(recipe, "clip.gif", [])
    assert "backend.preset" not in settings_of(recipe, "clip.gif", ["backend.preset"])[0]


def test_a_recipe_follows_the_settings_of_its_pipeline() -> None:
    pipe = VideoPipeline.from_config(RunConfig.from_dict({"model": "mini", "replay": {"tau": -1}}))
    wanted = {
        "generation.frames": 2,
        "sampling.top_k": 5,
        "sampling.cfg": 1.0,
        "replay.tau": -3.0,
        "replay.ratio": None,
        "replay.score": "input",
        "replay.tas": "released",
        "replay.gate": "row",
        "replay.max_age": 2,
        "replay.eligible": "all",
        "attention.window": 16,
        "attention.sinks": 1,
        "attention.kv_dtype": "int8",
    }
    other = pipe.with_config(pipe.config.changed({k: v for k, v in wanted.items() if k != "replay.gate"}))
    settings = flat(other.recipe(PROMPT, 1)["settings"])
    assert settings | wanted == settings
    assert other.resolved.replay.tau == Tau((-3.0,)) and other.resolved.generation.frames == 2
    held = other.with_config(pipe.config.changed({"replay.tau": "off", "replay.ratio": 0.5})).resolved
    assert (held.replay.ratio, held.replay.controller, held.draft.kind) == (0.5, "layer", "auto")
    assert pipe.resolved.replay.tau == Tau((-1.0,)) and pipe.frames == 8


def test_only_what_makes_the_tokens_is_taken() -> None:
    recipe = _recipe(runtime__device="cuda:7", runtime__threads=1000, runtime__executor="gone", replay__tau=-1.5)
    taken, notes = settings_of(recipe, "clip.gif", [])
    assert (taken["replay.tau"], taken["model"], taken["generation.seed"]) == (-1.5, "table", 3)
    assert [k for k in taken if k.startswith("runtime.")] == ["runtime.dtype"]
    assert len(notes) == 1
    for key in ("runtime.device", "runtime.threads", "runtime.executor"):
        assert key in notes[0]
    assert "generation.seed" not in settings_of(recipe, "clip.gif", ["generation.seed"])[0]
    assert "replay.tau" not in settings_of(recipe, "clip.gif", ["replay.ratio"])[0]


@pytest.mark.parametrize(
    "recipe",
    [
        {**_recipe(), "prompt": ["a"]},
        {**_recipe(), "seed": "7"},
        {**_recipe(), "settings": "none"},
        {**_recipe(), "seed": -1},
        {**_recipe(), "seed": 10**400},
        _recipe(sampling__cfg="high"),
        _recipe(generation__frames=10**30),
        _recipe(video__scale=10**9),
        {**_recipe(), "settings": {"model": "mini", "replay": 5}},
        {**_recipe(), "settings": {"model": "mini", "modelled": {"a": 1}}},
        {**_recipe(), "settings": {"model": "mini", "runtime": {"dtype": ["/"]}}},
    ],
)
def test_a_damaged_recipe_is_refused(tmp_path: Path, recipe: dict[str, Any]) -> None:
    done = _generate("--from", _video(tmp_path, recipe), "-o", "out.gif")
    assert isinstance(done.exception, RequestError), done.exception
    assert not Path("out.gif").exists()


def test_an_identity_distinguishes_weights(tmp_path: Path) -> None:
    one, two = tiny_folder(tmp_path / "one"), tiny_folder(tmp_path / "two")
    assert open_model(str(one)).identity == open_model(str(two)).identity
    weights = two / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    assert open_model(str(one)).identity != open_model(str(two)).identity
    assert open_model("mini").identity == open_model("mini").identity


def test_a_revision_of_the_hub_is_named_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    from fastcar_cli.checkpoints import hub

    folder = tmp_path / "models--x" / "snapshots" / "0123abc"
    folder.mkdir(parents=True)
    asked: list[dict[str, Any]] = []

    def snapshot(repository: str, **options: Any) -> str:
        asked.append({"repository": repository, **options})
        if options.get("local_files_only"):
            raise FileNotFoundError
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert open_model("vila-u-7b@v2").identity.commit == "0123abc"
    assert [(a["repository"], a["revision"]) for a in asked] == 2 * [("mit-han-lab/vila-u-7b-256", "v2")]
    assert hub.revision_of("vila-u-7b") == hub.REVISION and hub.repository_of("mini@v2") is None
