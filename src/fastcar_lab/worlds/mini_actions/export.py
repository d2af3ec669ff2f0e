"""A trained model as a folder in the format of the released checkpoints, which `models.loading.ivideogpt` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fastcar_cli.models.ivideogpt.blocks import TokenizerSpec
from fastcar_cli.models.ivideogpt.checkpoint import WEIGHTS, names_of
from fastcar_cli.models.ivideogpt.network import IVideoGPT, IVideoGPTSpec
from fastcar_lab.worlds.mini_actions.train_tokenizer import ActionsTokenizer

SHARPER = 4.0
"""Factor on logits: the released code draws at temperature 1, where a small model would often take an unlikely code."""


def _transformer(spec: IVideoGPTSpec) -> dict[str, Any]:
    decoder = spec.decoder
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


def _tokenizer(spec: TokenizerSpec, frames: int) -> dict[str, Any]:
    levels = len(spec.channels)
    return {
        "_class_name": "CompressiveVQModel",
        "act_fn": "silu",
        "block_out_channels": list(spec.channels),
        "context_length": spec.context,
        "down_block_types": ["DownEncoderBlock2D"] * levels,
        "up_block_types": ["UpDecoderBlock2D"] * levels,
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": spec.latent,
        "layers_per_block": spec.blocks,
        "max_att_resolution": spec.attended,
        "mid_block_add_attention": spec.mid_attention,
        "norm_num_groups": spec.groups,
        "norm_type": "group",
        "num_vq_embeddings": spec.codes,
        "num_dyn_embeddings": spec.dynamics,
        "patch_size": spec.patch,
        "resolution": spec.resolution,
        "segment_length": frames,
        "vq_embed_dim": spec.code_width,
    }


def export(spec: IVideoGPTSpec, folder: Path, checkpoint: Path, tokenizer: Path) -> None:
    """Write `tokenizer/` and `transformer/` with their config.json, weights as float16, logits `SHARPER`."""
    network = IVideoGPT(spec)
    network.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
    network.tokenizer.load_state_dict(ActionsTokenizer.load(tokenizer).state_dict())
    network.lm_head.weight.data.mul_(SHARPER)
    configs = {"tokenizer": _tokenizer(spec.tokenizer, spec.frames), "transformer": _transformer(spec)}
    tensors = network.state_dict()
    for part, names in names_of(network).items():
        (folder / part).mkdir(parents=True, exist_ok=True)
        text = json.dumps(configs[part], indent=1) + "\n"
        (folder / part / "config.json").write_text(text, encoding="utf-8")
        file = folder / part / f"{WEIGHTS[part]}.safetensors"
        save_file({key: tensors[name].half().contiguous() for key, name in names.items()}, file)
        file.chmod(0o644)
