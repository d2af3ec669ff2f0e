"""Causal video tokenizers: tiny ones with random weights, and any from its files."""

from __future__ import annotations

from pathlib import Path

import torch

from fastcar_cli.models.cosmos.checkpoint import read_tokenizer_spec, tokenizer_components
from fastcar_cli.models.cosmos.tokenizer import CausalVideoSpec, CausalVideoTokenizer
from fastcar_cli.models.cosmos.tokenizer_blocks import LevelSpec
from fastcar_cli.weights.tensors import Weights

TINY = CausalVideoSpec(
    patch=4,
    levels=(4, 3, 5),
    latent=6,
    width=2,
    down=(LevelSpec((4,), space=True, time=True), LevelSpec((6, 6), space=True), LevelSpec((4,))),
    up=(LevelSpec((4, 4)), LevelSpec((6,), space=True, time=True), LevelSpec((4,), space=True)),
)


def loaded(folder: Path, dtype: torch.dtype = torch.float32) -> CausalVideoTokenizer:
    with torch.device("meta"):
        tokenizer = CausalVideoTokenizer(read_tokenizer_spec(folder))
    parts = tokenizer_components(folder, "", tokenizer)
    weights = Weights(parts, tokenizer.state_dict()).read_all(lambda name: dtype)
    tokenizer.load_state_dict(weights, assign=True)
    return tokenizer.requires_grad_(False)


def random_tokenizer(spec: CausalVideoSpec = TINY, seed: int = 0) -> CausalVideoTokenizer:
    torch.manual_seed(seed)
    tokenizer = CausalVideoTokenizer(spec).requires_grad_(False)
    for name, parameter in tokenizer.named_parameters():
        spread = 0.1 if parameter.ndim == 1 else 1.5 * parameter[0].numel() ** -0.5
        parameter.copy_(spread * torch.randn(parameter.shape) + float(name.endswith("norm.weight")))
    # Frames are mostly within 0 .. 255.
    tokenizer.get_parameter("decoder.conv_out.1.conv3d.weight").mul_(0.1)
    return tokenizer
