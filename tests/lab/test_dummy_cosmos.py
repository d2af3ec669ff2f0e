"""Random checkpoints in the layout of Cosmos-Predict1 have the names and shapes of the official ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.causal_video import TINY
from support.cosmos import shape
from support.paths import GOLDEN_LATENTS
from support.processes import Run

from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.cosmos.checkpoint import names_of, read_tokenizer_spec
from fastcar_cli.models.cosmos.network import Cosmos
from fastcar_lab.dummy.cosmos import TOKENIZER, shape_of, write

CODES = replace(TINY, levels=(4, 3, 4, 5))
GOLDEN = {
    "base": shape("Cosmos-Predict1-4B", 3, 128, 4, 2, 32, 224, CODES),
    "yarn": shape("Cosmos-Predict1-12B", 2, 80, 4, 1, 40, 176, CODES),
    "text": shape("Cosmos-Predict1-5B-Video2World", 2, 96, 6, 2, 16, 160, CODES, 40),
}


def shapes_in(folder: Path) -> dict[str, list[int]]:
    tensors = torch.load(folder / "model.pt", weights_only=True, mmap=True)
    return {key: list(tensor.shape) for key, tensor in tensors.items()}


@pytest.mark.skipif(not GOLDEN_LATENTS.is_dir(), reason="no recorded data")
@pytest.mark.parametrize("name", GOLDEN)
def test_names_and_shapes_are_those_of_the_released_code(name: str, tmp_path: Path) -> None:
    official = json.loads((GOLDEN_LATENTS / "golden.json").read_text())["models"][name]["tensors"]
    assert shapes_in(write(tmp_path, GOLDEN[name])) == official


def test_the_tokenizer_lies_beside_the_model(tmp_path: Path) -> None:
    model = write(tmp_path, GOLDEN["base"])
    assert read_tokenizer_spec(model.parent / TOKENIZER) == CODES


def test_layers_take_the_disk_of_one(tmp_path: Path) -> None:
    base = GOLDEN["base"]
    layers = {n: replace(base, decoder=replace(base.decoder, layers=n)) for n in (1, 9)}
    sizes = [(write(tmp_path / str(n), spec) / "model.pt").stat().st_size for n, spec in layers.items()]
    assert sizes[1] < 1.5 * sizes[0]
    assert len(shapes_in(tmp_path / "9" / GOLDEN["base"].name)) > 9 * 11


@pytest.mark.slow
@pytest.mark.parametrize(("name", "billions"), [("4b", 4.014), ("12b", 11.561), ("5b", 4.585), ("13b", 13.323)])
def test_released_shapes_have_the_published_sizes(name: str, billions: float) -> None:
    spec = shape_of(name)
    network = empty_network(spec)
    assert isinstance(network, Cosmos)
    extra = (spec.decoder.vocab - 64_000) * spec.decoder.width
    count = sum(network.state_dict()[key].numel() for key in names_of(network).values())
    assert (count - extra) / 1e9 == pytest.approx(billions, abs=6e-4)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--format", "cosmos", "--size", "7b"), "4b, 5b, 12b, 13b"),
        (("--format", "cosmos", "--medium"), "with --format cosmos"),
        (("--format", "vila-u", "--size", "4b"), "with --format vila-u"),
    ],
)
def test_options_of_other_formats_are_refused(run: Run, options: tuple[str, ...], why: str) -> None:
    done = run("lab", "dummy", "folder", *options)
    assert done.returncode == 2
    assert why in " ".join(done.stderr.replace("│", " ").split())
    assert not Path("folder").exists()
