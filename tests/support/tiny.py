"""A tiny model with random weights."""

from __future__ import annotations

import torch

from fastcar_cli.models.checkpoint import loading_format
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.vila_u.network import ModelSpec, VideoModel
from fastcar_cli.models.vila_u.rqvae import RQVAESpec
from fastcar_cli.models.weight_format import WeightFormat


def tiny_spec(kv_heads: int = 2, place_tables: bool = True, times: int = 1, side: int = 2) -> ModelSpec:
    """A model of the real kind with side x side tokens a frame; decoder and code vectors are `times` as wide."""
    return ModelSpec(
        name="tiny",
        frames=4,
        fps=8,
        decoder=DecoderSpec(
            width=16 * times, layers=3, heads=2, kv_heads=kv_heads, mlp_width=24 * times, vocab=11, rope_theta=50.0,
            max_positions=16 * side * side,
        ),
        depth=DepthSpec(width=12, blocks=2, heads=2, depth=3, codes=9, code_width=8 * times, hidden=16 * times),
        rqvae=RQVAESpec(
            grid=(side, side), depth=3, codes=9, code_width=8 * times, z_channels=8, ch=8, ch_mult=(1, 2),
            num_res_blocks=1, resolution=2 * side, attn_resolutions=(2,), norm_groups=4,
        ),
        place_tables=place_tables,
    )  # fmt: skip


def tiny_model(seed: int = 0, kv_heads: int = 2, times: int = 1, side: int = 2) -> VideoModel:
    """Random weights, scaled so that scores and logits are of order one."""
    torch.manual_seed(seed)
    model = VideoModel(tiny_spec(kv_heads, times=times, side=side))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.normal_(0.0, 1.5 * p.shape[-1] ** -0.5)
            else:
                p.add_(torch.randn_like(p) * 0.05)
    return model.eval().requires_grad_(False)


PACKED = {
    "int8": loading_format("int8"),
    "int4": WeightFormat("int4", torch.float32, blocks="int4", projector="int4"),
}


def tiny_in(form: str, kv_heads: int = 2, side: int = 2) -> VideoModel:
    """The tiny model with its matrices in a format; in int4 four times as wide, so that it has groups of 32."""
    return formatted(tiny_model(kv_heads=kv_heads, times=4 if form == "int4" else 1, side=side), form)


def formatted(model: VideoModel, form: str) -> VideoModel:
    """The model with its matrices in a format."""
    if form == "bfloat16":
        return model.bfloat16()
    if form in PACKED:
        packed = PACKED[form].on(model)
        weights = {k: v for name, tensor in model.state_dict().items() for k, v in packed.stored(name, tensor).items()}
        packed.use()
        model.load_state_dict(weights, assign=True)
    return model.eval().requires_grad_(False)
