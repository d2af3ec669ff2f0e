"""A tiny model with random weights."""

from __future__ import annotations

import torch

from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.rqvae import RQVAESpec
from fastcar_cli.models.video_model import ModelSpec, VideoModel


def tiny_spec(kv_heads: int = 2, place_tables: bool = True, times: int = 1) -> ModelSpec:
    """A model of the real kind with 4 tokens a frame; the decoder and the code vectors are `times` as wide."""
    return ModelSpec(
        name="tiny",
        frames=4,
        fps=8,
        decoder=DecoderSpec(
            width=16 * times, layers=3, heads=2, kv_heads=kv_heads, mlp_width=24 * times, vocab=11, rope_theta=50.0,
            max_positions=64,
        ),
        depth=DepthSpec(width=12, blocks=2, heads=2, depth=3, codes=9, code_width=8 * times, hidden=16 * times),
        rqvae=RQVAESpec(
            grid=(2, 2), depth=3, codes=9, code_width=8 * times, z_channels=8, ch=8, ch_mult=(1, 2), num_res_blocks=1,
            resolution=4, attn_resolutions=(2,), norm_groups=4,
        ),
        place_tables=place_tables,
    )  # fmt: skip


def tiny_model(seed: int = 0, kv_heads: int = 2, times: int = 1) -> VideoModel:
    """Random weights, scaled so that scores and logits are of order one."""
    torch.manual_seed(seed)
    model = VideoModel(tiny_spec(kv_heads, times=times))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0.0, 1.5 * p.shape[-1] ** -0.5)
            else:
                p.add_(torch.randn_like(p) * 0.05)
    return model.eval().requires_grad_(False)
