"""Tiny checkpoints of the official layout of iVideoGPT, and clips for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fastcar_cli.media import open_writer
from fastcar_cli.models.ivideogpt.blocks import CrossAttention
from fastcar_cli.models.ivideogpt.network import IVideoGPT
from fastcar_lab.dummy.ivideogpt import TOKENIZERS, TRANSFORMER, write

ACTIONS = 3


def write_model(folder: Path, context: int, actions: int | None) -> str:
    transformer = {
        **TRANSFORMER,
        **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 2},
    }
    tokenizer = {
        **TOKENIZERS[64],
        **{"block_out_channels": [8, 32, 32], "layers_per_block": 1, "latent_channels": 4, "norm_num_groups": 4},
        **{"num_vq_embeddings": 40, "num_dyn_embeddings": 120, "context_length": context},
    }
    write(folder, transformer, tokenizer, actions=actions)
    return str(folder)


def moving_clip(count: int, height: int = 64, width: int = 64) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    frames = [np.stack([x * 3 % 256, (y * 3 + 9 * t) % 256, (x + y) % 256], -1) for t in range(count)]
    return np.stack(frames).astype(np.uint8)


def write_clip(path: Path, frames: np.ndarray) -> str:
    with open_writer(path, fps=4, recipe={}) as writer:
        for f in frames:
            writer.add(f)
    return str(path)


def use_context(network: IVideoGPT, frames: int) -> None:
    """As set_context_length of the released tokenizer: fewer context frames; it keeps the places of the last ones."""
    tokenizer, stored = network.tokenizer, network.tokenizer.spec.context
    for block in (*tokenizer.cond_encoder.cross_att_blocks, *tokenizer.cond_decoder.cross_att_blocks):
        assert isinstance(block, CrossAttention)
        rows = len(block.kv_pos_emb) // stored * frames
        block.kv_pos_emb = torch.nn.Parameter(block.kv_pos_emb[-rows:].clone(), requires_grad=False)
    tokenizer.spec = replace(tokenizer.spec, context=frames)
    network.spec = replace(network.spec, tokenizer=tokenizer.spec)
