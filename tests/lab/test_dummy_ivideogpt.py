"""Random checkpoints in iVideoGPT's layout have the names and shapes of the official ones."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from support.paths import GOLDEN_FRAMES as SHARED

from fastcar_lab.dummy.ivideogpt import (
    MEDIUM,
    TOKENIZERS,
    TRANSFORMER,
    tokenizer_shapes,
    transformer_shapes,
    write,
)


@pytest.mark.parametrize("name", ["free-c2", "act-c2", "act-c1-128"])
def test_names_and_shapes_are_those_of_the_released_code(name: str, tmp_path: Path) -> None:
    official = SHARED / "checkpoint" / name
    if not official.exists():
        pytest.skip("no shared/golden-ivideogpt here")
    transformer, tokenizer = (
        json.loads((official / part / "config.json").read_text()) for part in ("transformer", "tokenizer")
    )
    write(tmp_path, transformer, tokenizer, actions={"act-c2": 5, "act-c1-128": 4}.get(name), dtype=torch.float16)
    for file in ("transformer/model.safetensors", "tokenizer/diffusion_pytorch_model.safetensors"):
        with safe_open(official / file, "pt") as theirs, safe_open(tmp_path / file, "pt") as ours:
            # Files of safetensors are no mappings.
            found = [{k: f.get_slice(k).get_shape() for k in f.keys()} for f in (theirs, ours)]  # noqa: SIM118
        assert found[0] == found[1]


def test_released_shapes_have_the_published_sizes() -> None:
    def millions(shapes: dict[str, tuple[int, ...]]) -> float:
        return round(sum(map(prod, shapes.values())) / 1e6, 2)

    assert millions(tokenizer_shapes(TOKENIZERS[64])) == 114.16
    assert millions(tokenizer_shapes(TOKENIZERS[256])) == 310.47
    assert millions(transformer_shapes(TRANSFORMER, 16386)) == 138.43
    assert millions(transformer_shapes(MEDIUM, 16386)) == 436.26
