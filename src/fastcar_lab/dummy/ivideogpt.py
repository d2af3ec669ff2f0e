"""Checkpoints in the format of iVideoGPT: those of a training, and of random weights for tests and for measuring.

`fastcar lab dummy FOLDER --format ivideogpt` writes one of the shapes of ivideogpt-oxe-64-act-free: it draws noise, but
it loads, runs and costs what the real one does.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.ivideogpt.blocks import ConditionalSpec, ConvSpec
from fastcar_cli.models.ivideogpt.checkpoint import WEIGHTS, IVideoGPTCheckpoint, names_of
from fastcar_cli.models.ivideogpt.network import IVideoGPT, IVideoGPTSpec
from fastcar_cli.profile.profiler import random_tensor

PIXELS = (64, 256)  # sides of the frames of released models


def _released(name: str) -> IVideoGPTSpec:
    spec = IVideoGPTCheckpoint.published_spec(f"ivideogpt-oxe-{name}")
    assert spec is not None
    return spec


def shape_of(pixels: int = PIXELS[0], *, medium: bool = False) -> IVideoGPTSpec:
    """The shape of released models with frames of so many pixels, of 138 M parameters, or `medium` of 436 M."""
    decoder = _released("64-act-free-medium" if medium else "64-act-free").decoder
    return replace(_released(f"{pixels}-act-free"), decoder=decoder)


def transformer_config(decoder: DecoderSpec) -> dict[str, Any]:
    """The config.json of a LLaMA."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": decoder.width,
        "intermediate_size": decoder.mlp_width,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.kv_heads,
        "hidden_act": "silu",
        "rms_norm_eps": decoder.rms_eps,
        "rope_theta": decoder.rope_theta,
        "max_position_embeddings": decoder.max_positions,
        "tie_word_embeddings": False,
        "vocab_size": decoder.vocab,
        "torch_dtype": "float16",
    }


def tokenizer_config(name: str, spec: ConvSpec) -> dict[str, Any]:
    """The config.json of the tokenizer's class of this name, without the keys of its codes."""
    levels = len(spec.channels)
    conditional = {
        "context_length": spec.context,
        "max_att_resolution": spec.attended,
        "mid_block_add_attention": spec.mid_attention,
        "patch_size": spec.patch,
    } if isinstance(spec, ConditionalSpec) else {}  # fmt: skip
    return conditional | {
        "_class_name": name,
        "act_fn": "silu",
        "block_out_channels": list(spec.channels),
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": spec.latent,
        "layers_per_block": spec.blocks,
        "norm_num_groups": spec.groups,
        "norm_type": "group",
        "resolution": spec.size[0],
    }


def save(folder: Path, part: str, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write the config.json and the weights of a part of a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    file = folder / f"{WEIGHTS[part]}.safetensors"
    save_file(tensors, file)
    file.chmod(0o644)


def write_checkpoint(folder: Path, network: IVideoGPT, tensor_of: Callable[[str, Tensor], Tensor]) -> None:
    """Write `tokenizer/` and `transformer/`, with what `tensor_of(key, parameter)` makes of each parameter."""
    t, state = network.spec.tokenizer, network.state_dict()
    tokenizer = tokenizer_config("CompressiveVQModel", t) | {
        "num_vq_embeddings": t.codes,
        "num_dyn_embeddings": t.dynamics,
        "segment_length": network.spec.frames,
        "vq_embed_dim": t.code_width,
    }
    configs = {"tokenizer": tokenizer, "transformer": transformer_config(network.spec.decoder)}
    for part, names in names_of(network).items():
        save(folder / part, part, configs[part], {key: tensor_of(key, state[name]) for key, name in names.items()})


def write(folder: Path, spec: IVideoGPTSpec, dtype: torch.dtype = torch.float32, seed: int = 0) -> None:
    """Write a checkpoint of random weights."""
    network = empty_network(spec)
    assert isinstance(network, IVideoGPT)
    write_checkpoint(folder, network, lambda key, like: random_tensor(key, like.shape, dtype, seed))
