"""Tiny checkpoints of the official layout of Cosmos-Predict1."""

from __future__ import annotations

from pathlib import Path

from fastcar_cli.models.cosmos.checkpoint import FPS, FRAMES, cosmos_decoder
from fastcar_cli.models.cosmos.network import CosmosSpec
from fastcar_cli.models.cosmos.tokenizer import CausalVideoSpec
from fastcar_cli.models.cosmos.tokenizer_blocks import LevelSpec
from fastcar_lab.dummy import cosmos

SIZE = "64x48"
"""Of the pictures that tests make, WIDTHxHEIGHT."""

TOKENIZER = CausalVideoSpec(
    patch=4,
    levels=(4, 3, 4),
    latent=8,
    width=4,
    down=(LevelSpec((8,), space=True, time=True), LevelSpec((16,), space=True), LevelSpec((16,))),
    up=(LevelSpec((8,)), LevelSpec((16,), space=True, time=True), LevelSpec((16,), space=True)),
)


def write_model(folder: Path, name: str = "Cosmos-Predict1-4B", source: int = 0) -> str:
    """A model of two layers, its tokenizer beside it; `source` is the width of a text's vectors."""
    return str(cosmos.write(folder, shape(name, 2, 64, 4, 2, 32, 96, TOKENIZER, source)))


def shape(
    name: str,
    layers: int,
    width: int,
    heads: int,
    kv_heads: int,
    head: int,
    mlp: int,
    tokenizer: CausalVideoSpec,
    source: int = 0,
) -> CosmosSpec:
    """A model of these sizes; `source` is the width of a text's vectors, 0 of a model without text."""
    grown = "12B" in name or "13B" in name
    decoder = cosmos_decoder(width, layers, heads, kv_heads, head, mlp, tokenizer.codes, source, grown)
    return CosmosSpec(name, FRAMES, FPS, decoder, tokenizer)
