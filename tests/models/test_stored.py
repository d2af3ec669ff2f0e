"""Folders whose files `fastcar lab store` makes smaller."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.processes import Run
from support.tiny import tiny_model
from torch import Tensor

from fastcar_cli.checkpoints.names import BUNDLED
from fastcar_cli.checkpoints.open import folder_of, load, open_model
from fastcar_cli.errors import RequestError
from fastcar_cli.models.checkpoint import GenerationDefaults
from fastcar_cli.weights.formats import GROUP
from fastcar_lab.storage import save, store
from fastcar_lab.worlds.mini.hyperparameters import mini_tokenizer

MATRIX = "llm.layers.1.mlp.gate_proj.weight"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    save(folder, tiny_model(times=8), mini_tokenizer().to_dict(), GenerationDefaults(cfg=2.5), torch.float16)
    return folder


def weights(folder: Path) -> dict[str, Tensor]:
    return load(str(folder)).network.state_dict()


def change(folder: Path, **tensors: Tensor) -> None:
    file = str(folder / "model.safetensors")
    save_file(load_file(file) | {key.replace("__", "."): value for key, value in tensors.items()}, file)


def error(found: Tensor, wanted: Tensor) -> float:
    """The largest error in units of the largest number of its group."""
    groups = wanted.reshape(len(wanted), -1, GROUP)
    largest = groups.abs().amax(2, keepdim=True)
    return float(((found.reshape(groups.shape) - groups).abs() / largest).max())


def test_matrices_are_rounded_in_groups_and_the_rest_stays(model: Path, run: Run) -> None:
    done = run("lab", "store", str(model), "-o", "small", "--fine", "llm.layers.1.", "--whole", "llm.layers.2.")
    assert done.returncode == 0, done.stderr
    small = model.parent / "small"
    found, wanted, packed = weights(small), weights(model), load_file(str(small / "model.safetensors"))
    assert f"{sum(f.stat().st_size for f in small.iterdir()):,} bytes" in done.stdout
    for name, tensor in wanted.items():
        if f"{name}.scale" not in packed:
            assert torch.equal(found[name], tensor), name
        elif name.startswith("llm.layers.1."):
            assert 0 < error(found[name], tensor) < 0.51 / (16 * 127), name
        else:
            assert 0 < error(found[name], tensor) < 0.51 / 127, name
    few = {name for name in wanted if f"{name}.scale" in packed}
    assert {MATRIX, MATRIX.replace("1", "0")} <= few and not {MATRIX.replace("1", "2"), "llm.norm.weight"} & few


def test_a_folder_that_is_stored_so_is_refused(model: Path, run: Run) -> None:
    store(str(model), model.parent / "small")
    done = run("lab", "store", "small", "-o", "smaller")
    assert done.returncode == 2 and "already" in done.stderr


def test_a_folder_shares_what_its_base_holds(model: Path) -> None:
    other = model.parent / "other"
    shutil.copytree(model, other)
    change(other, **{MATRIX.replace(".", "__"): torch.ones(192, 128).half()})
    home = model.parent / "home"
    home.mkdir()
    store(str(model), home / "base")
    store(str(other), home / "alone")
    store(str(other), home / "shares", base="base")
    assert set(load_file(str(home / "shares" / "model.safetensors"))) == {MATRIX, f"{MATRIX}.scale"}
    assert "text" not in json.loads((home / "shares" / "config.json").read_text())
    found, wanted = weights(home / "shares"), weights(home / "alone")
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
    before = open_model(str(home / "shares")).identity
    change(home / "base", llm__norm__weight=torch.full((128,), 2.0).half())
    assert float(weights(home / "shares")["llm.norm.weight"][0]) == 2
    assert open_model(str(home / "shares")).identity != before


@pytest.mark.parametrize(
    ("base", "says"),
    [
        ("gone", "gone/config.json is missing"),
        ("../model", "key 'base' is '../model', expected the name of a folder beside the model folder"),
        (5, "key 'base' is 5, expected the name"),
        ("model", "key 'base' is 'model', expected a model folder whose config.json has no key 'base'"),
    ],
)
def test_a_wrong_base_is_named(model: Path, base: object, says: str) -> None:
    config = model / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "base": base}))
    with pytest.raises(RequestError, match=says):
        load(str(model))


@pytest.mark.parametrize(
    "tensors",
    [
        {f"{MATRIX}.scale": torch.ones(192, 3).half()},
        {f"{MATRIX}.scale": torch.ones(192, 4)},
        {f"{MATRIX}.low": torch.ones(192, 32, dtype=torch.uint8)},
        {"llm.norm.weight.low": torch.ones(128, dtype=torch.uint8)},
    ],
)
def test_scales_that_do_not_fit_are_named(model: Path, tensors: dict[str, Tensor]) -> None:
    store(str(model), model.parent / "small")
    change(model.parent / "small", **{name.replace(".", "__"): tensor for name, tensor in tensors.items()})
    key = next(iter(tensors)).rpartition(".")[0]
    with pytest.raises(
        RequestError, match=rf"small/model.safetensors is damaged: .*: dtype or shape does not fit key '{key}'"
    ):
        load(str(model.parent / "small"))


def test_bundled_models_take_39_megabytes() -> None:
    assert sum(f.stat().st_size for name in BUNDLED for f in folder_of(name).rglob("*") if f.is_file()) <= 39_000_000
