"""A Cosmos-Predict1 checkpoint in the official form with random weights: a model folder, the tokenizer's beside it.

Layers have the same weights, which `model.pt` holds once: a model of 8 GB takes 1.5 GB of disk.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.cosmos.checkpoint import CosmosCheckpoint, names_of
from fastcar_cli.models.cosmos.network import Cosmos, CosmosSpec
from fastcar_cli.profile.profiler import random_tensor
from fastcar_lab.dummy import causal_video

TOKENIZER = "Cosmos-Tokenize1-DV8x16x16-720p"
SIZES = {"4b": "4B", "5b": "5B-Video2World", "12b": "12B", "13b": "13B-Video2World"}
"""Of the released models, with what their names end in."""


def shape_of(size: str) -> CosmosSpec:
    """The shape of a released model."""
    name = f"Cosmos-Predict1-{SIZES[size]}"
    spec = CosmosCheckpoint.published_spec(name.lower())
    assert spec is not None
    return replace(spec, name=name)


def write(folder: Path, spec: CosmosSpec, dtype: torch.dtype = torch.bfloat16) -> Path:
    """Write the model and the tokenizer below `folder`; the model's folder, which has the specification's name."""
    model, network = folder / spec.name, empty_network(spec)
    assert isinstance(network, Cosmos)
    model.mkdir(parents=True, exist_ok=True)
    state, made = network.state_dict(), dict[str, Tensor]()
    tensors = {}
    for key, name in names_of(network).items():
        own = key.split(".", 2)[2] if key.startswith("layers.") else key
        if own not in made:
            made[own] = random_tensor(own, state[name].shape, dtype, 0)
        tensors[key] = made[own]
    torch.save(tensors, model / "model.pt")
    causal_video.write(folder / TOKENIZER, spec.tokenizer, dtype)
    return model
