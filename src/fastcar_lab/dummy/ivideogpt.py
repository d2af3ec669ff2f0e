"""Checkpoints in the official iVideoGPT form with random weights, for tests and for measuring.

`fastcar lab dummy FOLDER --format ivideogpt` writes one of the shapes of ivideogpt-oxe-64-act-free: it draws
noise, but it loads, runs and costs what the real one does. Names and shapes are written from the form (iVideoGPT,
ivideogpt/vq_model), not from the modules that read them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fastcar_cli.profile.profiler import random_tensor

Shapes = dict[str, tuple[int, ...]]

LATENT = 16
"""Side of the latent grid at every resolution."""

TRANSFORMER: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "bos_token_id": 50256,
    "eos_token_id": 50256,
}
"""Of 138 M parameters; the vocabulary follows from the tokenizer."""

MEDIUM: dict[str, Any] = {
    **TRANSFORMER,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
}
"""Of 436 M parameters."""


def _tokenizer(channels: Sequence[int], **changes: Any) -> dict[str, Any]:
    return {
        "_class_name": "CompressiveVQModel",
        "act_fn": "silu",
        "block_out_channels": list(channels),
        "context_length": 2,
        "down_block_types": ["DownEncoderBlock2D"] * len(channels),
        "up_block_types": ["UpDecoderBlock2D"] * len(channels),
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 64,
        "layers_per_block": 2,
        "mid_block_add_attention": False,
        "norm_num_groups": 32,
        "norm_type": "group",
        "num_vq_embeddings": 8192,
        "num_dyn_embeddings": 8192,
        "vq_embed_dim": None,
        **changes,
    }


TOKENIZERS = {
    64: _tokenizer((128, 256, 512), resolution=64, max_att_resolution=16),
    256: _tokenizer((128, 256, 256, 512, 768)),
}
"""By frame size in pixels."""


def transformer_shapes(config: dict[str, Any], vocabulary: int, actions: int | None = None) -> Shapes:
    """Names and shapes in transformer/model.safetensors; with actions of so many numbers those of that kind."""
    h, m = config["hidden_size"], config["intermediate_size"]
    shapes: Shapes = {"model.embed_tokens.weight": (vocabulary, h)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {f"{layer}.self_attn.{x}_proj.weight": (h, h) for x in "qkvo"}
        shapes |= {f"{layer}.mlp.{x}_proj.weight": (m, h) for x in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj.weight"] = (h, m)
        shapes |= {f"{layer}.{x}_layernorm.weight": (h,) for x in ("input", "post_attention")}
    shapes |= {"model.norm.weight": (h,), "lm_head.weight": (vocabulary, h)}
    if actions is None:
        return shapes
    return {
        **{f"llm.{name}": shape for name, shape in shapes.items()},
        "action_linear.weight": (h, actions),
        "action_linear.bias": (h,),
    }


def tokenizer_shapes(config: dict[str, Any]) -> Shapes:
    """Names and shapes in tokenizer/diffusion_pytorch_model.safetensors."""
    d = config["latent_channels"]
    e, patch = config.get("vq_embed_dim") or d, config.get("patch_size", 4) ** 2
    attention = config["mid_block_add_attention"]
    return {
        **_encoder("encoder", config, attention),
        **_encoder("cond_encoder", config, True),
        **_cross("cond_encoder", config, _encoder_levels(config)),
        **_decoder("decoder", config, attention),
        **_decoder("cond_decoder", config, True),
        **_cross("cond_decoder", config, _decoder_levels(config)),
        **_layer("quant_conv", (e, d, 1, 1)),
        **_layer("post_quant_conv", (d, e, 1, 1)),
        "quantize.embedding.weight": (config["num_vq_embeddings"], e),
        "dynamics_quantize.embedding.weight": (config["num_dyn_embeddings"], e),
        **_layer("quant_linear", (e, d * patch)),
        **_layer("post_quant_linear", (d * patch, e)),
    }


def _layer(name: str, weight: tuple[int, ...]) -> Shapes:
    """A convolution, linear map or norm: weight and a bias as long as its first side."""
    return {f"{name}.weight": weight, f"{name}.bias": weight[:1]}


def _resnet(name: str, inner: int, outer: int) -> Shapes:
    shapes = {
        **_layer(f"{name}.norm1", (inner,)),
        **_layer(f"{name}.conv1", (outer, inner, 3, 3)),
        **_layer(f"{name}.norm2", (outer,)),
        **_layer(f"{name}.conv2", (outer, outer, 3, 3)),
    }
    return shapes if inner == outer else {**shapes, **_layer(f"{name}.conv_shortcut", (outer, inner, 1, 1))}


def _mid(name: str, width: int, attention: bool) -> Shapes:
    shapes = {**_resnet(f"{name}.resnets.0", width, width), **_resnet(f"{name}.resnets.1", width, width)}
    if attention:
        shapes |= _layer(f"{name}.attentions.0.group_norm", (width,))
        for part in ("to_q", "to_k", "to_v", "to_out.0"):
            shapes |= _layer(f"{name}.attentions.0.{part}", (width, width))
    return shapes


def _encoder(name: str, config: dict[str, Any], attention: bool) -> Shapes:
    channels, d = config["block_out_channels"], config["latent_channels"]
    shapes = _layer(f"{name}.conv_in", (channels[0], 3, 3, 3))
    before = channels[0]
    for i, width in enumerate(channels):
        for j in range(config["layers_per_block"]):
            shapes |= _resnet(f"{name}.down_blocks.{i}.resnets.{j}", before, width)
            before = width
        if i < len(channels) - 1:
            shapes |= _layer(f"{name}.down_blocks.{i}.downsamplers.0.conv", (width, width, 3, 3))
    shapes |= _mid(f"{name}.mid_block", before, attention)
    return {**shapes, **_layer(f"{name}.conv_norm_out", (before,)), **_layer(f"{name}.conv_out", (d, before, 3, 3))}


def _decoder(name: str, config: dict[str, Any], attention: bool) -> Shapes:
    channels, d = config["block_out_channels"][::-1], config["latent_channels"]
    before = channels[0]
    shapes = {**_layer(f"{name}.conv_in", (before, d, 3, 3)), **_mid(f"{name}.mid_block", before, attention)}
    for i, width in enumerate(channels):
        for j in range(config["layers_per_block"] + 1):
            shapes |= _resnet(f"{name}.up_blocks.{i}.resnets.{j}", before, width)
            before = width
        if i < len(channels) - 1:
            shapes |= _layer(f"{name}.up_blocks.{i}.upsamplers.0.conv", (width, width, 3, 3))
    return {**shapes, **_layer(f"{name}.conv_norm_out", (before,)), **_layer(f"{name}.conv_out", (3, before, 3, 3))}


def _encoder_levels(config: dict[str, Any]) -> list[tuple[int, int]]:
    """Channels and side of the maps behind down blocks that a later frame compares with the context's."""
    channels = config["block_out_channels"]
    last, most = len(channels) - 1, config.get("max_att_resolution", 32)
    levels = [(width, LATENT << max(last - 1 - i, 0)) for i, width in enumerate(channels)]
    return [level for level in levels if level[1] <= most]


def _decoder_levels(config: dict[str, Any]) -> list[tuple[int, int]]:
    """The same of the decoder: its middle, always, and behind up blocks."""
    channels = config["block_out_channels"][::-1]
    last, most = len(channels) - 1, config.get("max_att_resolution", 32)
    levels = [(width, LATENT << min(i + 1, last)) for i, width in enumerate(channels)]
    return [(channels[0], LATENT), *(level for level in levels if level[1] <= most)]


def _cross(name: str, config: dict[str, Any], levels: list[tuple[int, int]]) -> Shapes:
    shapes: Shapes = {}
    for j, (width, side) in enumerate(levels):
        block = f"{name}.cross_att_blocks.{j}"
        shapes |= {f"{block}.att.in_proj_weight": (3 * width, width), f"{block}.att.in_proj_bias": (3 * width,)}
        shapes |= _layer(f"{block}.att.out_proj", (width, width))
        shapes |= {**_layer(f"{block}.kv_norm", (width,)), **_layer(f"{block}.q_norm", (width,))}
        shapes[f"{block}.kv_pos_emb"] = (config.get("context_length", 1) * side * side, width)
        shapes[f"{block}.q_pos_emb"] = (side * side, width)
    return shapes


def write_configs(folder: Path, transformer: dict[str, Any], tokenizer: dict[str, Any]) -> int:
    """The config files of a checkpoint; how many ids its vocabulary has."""
    vocabulary = tokenizer["num_vq_embeddings"] + tokenizer["num_dyn_embeddings"] + 2
    for name, config in (("transformer", {**transformer, "vocab_size": vocabulary}), ("tokenizer", tokenizer)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    return vocabulary


def write(
    folder: Path,
    transformer: dict[str, Any],
    tokenizer: dict[str, Any],
    *,
    actions: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> None:
    """Write a checkpoint of these shapes; `actions` makes it one of the kind that takes them."""
    vocabulary = write_configs(folder, transformer, tokenizer)
    files = {
        "transformer/model": transformer_shapes(transformer, vocabulary, actions),
        "tokenizer/diffusion_pytorch_model": tokenizer_shapes(tokenizer),
    }
    for file, shapes in files.items():
        tensors = {key: random_tensor(key, torch.Size(shape), dtype, seed) for key, shape in shapes.items()}
        save_file(tensors, str(folder / f"{file}.safetensors"), metadata={"format": "pt"})
