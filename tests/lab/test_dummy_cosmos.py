"""Random checkpoints in the layout of Cosmos-Predict1 have the names and shapes of the official ones."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path

import pytest
import torch
from support.causal_video import TINY
from support.paths import GOLDEN_LATENTS
from support.processes import Run

from fastcar_cli.models.cosmos.tokenizer_files import read_tokenizer_spec
from fastcar_lab.dummy.cosmos import SHAPES, TOKENIZER, Shape, write

GOLDEN = {
    "base": Shape("Cosmos-Predict1-4B", 3, 128, 4, 2, 32, 224),
    "yarn": Shape("Cosmos-Predict1-12B", 2, 80, 4, 1, 40, 176),
    "text": Shape("Cosmos-Predict1-5B-Video2World", 2, 96, 6, 2, 16, 160, 40),
}


def shapes_in(folder: Path) -> dict[str, list[int]]:
    tensors = torch.load(folder / "model.pt", weights_only=True, mmap=True)
    return {key: list(tensor.shape) for key, tensor in tensors.items()}


@pytest.mark.skipif(not GOLDEN_LATENTS.is_dir(), reason="no recorded data")
@pytest.mark.parametrize("name", GOLDEN)
def test_names_and_shapes_are_those_of_the_released_code(name: str, tmp_path: Path) -> None:
    official = json.loads((GOLDEN_LATENTS / "golden.json").read_text())["models"][name]["tensors"]
    tokenizer = replace(TINY, levels=(4, 3, 4, 5))
    assert shapes_in(write(tmp_path, GOLDEN[name], tokenizer)) == official


def test_the_tokenizer_lies_beside_the_model(tmp_path: Path) -> None:
    model = write(tmp_path, GOLDEN["base"], TINY)
    assert read_tokenizer_spec(model.parent / TOKENIZER) == TINY


def test_layers_take_the_disk_of_one(tmp_path: Path) -> None:
    sizes = [
        (write(tmp_path / str(n), replace(GOLDEN["base"], layers=n), TINY) / "model.pt").stat().st_size for n in (1, 9)
    ]
    assert sizes[1] < 1.5 * sizes[0]
    assert len(shapes_in(tmp_path / "9" / GOLDEN["base"].name)) > 9 * 11


@pytest.mark.parametrize(("name", "billions"), [("4b", 4.014), ("12b", 11.561), ("5b", 4.585), ("13b", 13.323)])
def test_released_shapes_have_the_published_sizes(name: str, billions: float) -> None:
    shape, codes = SHAPES[name], 64_000
    layer, ends = (sum(map(prod, shapes.values())) for shapes in (shape.layer(), shape.ends(codes)))
    extra = shape.ends(codes)["tok_embeddings.weight"][0] - codes
    assert (layer * shape.layers + ends - extra * shape.width) / 1e9 == pytest.approx(billions, abs=6e-4)


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
