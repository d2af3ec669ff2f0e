"""Tiny checkpoints of the official layout of iVideoGPT, and clips for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fastcar_cli.media import open_writer
from fastcar_cli.models.ivideogpt.blocks import CrossAttention
from fastcar_cli.models.ivideogpt.network import IVideoGPT
from fastcar_lab.dummy.ivideogpt import shape_of, write

ACTIONS = 3


def write_model(folder: Path, context: int, actions: int | None) -> str:
    spec = shape_of()
    tokenizer = replace(
        spec.tokenizer, channels=(8, 32, 32), blocks=1, latent=4, code_width=4, groups=4, codes=40, dynamics=120,
        context=context,
    )  # fmt: skip
    decoder = replace(
        spec.decoder, width=32, mlp_width=48, layers=2, heads=2, kv_heads=2, vocab=tokenizer.vocabulary
    )  # fmt: skip
    write(folder, replace(spec, decoder=decoder, tokenizer=tokenizer, actions=actions or 0))
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
