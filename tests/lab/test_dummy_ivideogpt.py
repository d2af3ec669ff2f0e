"""Random checkpoints in iVideoGPT's layout have the names and shapes of the official ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.paths import GOLDEN_FRAMES as SHARED

from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.ivideogpt.checkpoint import IVideoGPTCheckpoint
from fastcar_lab.dummy.ivideogpt import shape_of, write


@pytest.mark.parametrize("name", ["free-c2", "act-c2", "act-c1-128"])
def test_names_and_shapes_are_those_of_the_released_code(name: str, tmp_path: Path) -> None:
    official = SHARED / "checkpoint" / name
    if not official.exists():
        pytest.skip("no shared/golden-ivideogpt here")
    for part in ("transformer", "tokenizer"):
        (tmp_path / part).mkdir()
        shutil.copyfile(official / part / "config.json", tmp_path / part / "config.json")
    actions = {"act-c2": 5, "act-c1-128": 4}.get(name, 0)
    write(tmp_path, replace(IVideoGPTCheckpoint(tmp_path).read_spec(), actions=actions), torch.float16)
    for file in ("transformer/model.safetensors", "tokenizer/diffusion_pytorch_model.safetensors"):
        with safe_open(official / file, "pt") as theirs, safe_open(tmp_path / file, "pt") as ours:
            # Files of safetensors are no mappings.
            found = [{k: f.get_slice(k).get_shape() for k in f.keys()} for f in (theirs, ours)]  # noqa: SIM118
        assert found[0] == found[1]


def test_released_shapes_have_the_published_sizes() -> None:
    def millions(pixels: int, medium: bool) -> dict[bool, float]:
        sizes = {True: 0, False: 0}
        for name, tensor in empty_network(shape_of(pixels, medium=medium)).state_dict().items():
            sizes[name.startswith("tokenizer.")] += tensor.numel()
        return {of_tokenizer: round(size / 1e6, 2) for of_tokenizer, size in sizes.items()}

    assert millions(64, False) == {True: 114.16, False: 138.43}
    assert millions(256, True) == {True: 310.47, False: 436.26}
