"""VILA-U's config files to a specification, and those of VILA-U 7B, for computations without a download."""

from __future__ import annotations

import re
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import AliasPath, Field

from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.llama_config import read_decoder
from fastcar_cli.models.vila_u.network import ModelSpec
from fastcar_cli.models.vila_u.rqvae import RQVAESpec
from fastcar_cli.system.plain_data import Flag, Foreign, Layers, Size, read_checked, wrong

FRAMES, FPS = 8, 8

PARTS = ("llm", "vision_tower", "mm_projector")  # folders of a checkpoint


class _Pixels(Foreign):
    z_channels: Size
    ch: Size
    ch_mult: tuple[Size, ...]
    num_res_blocks: Layers
    resolution: Size
    attn_resolutions: tuple[Size, ...] = ()
    out_ch: Size = 3


class _Autoencoder(Foreign):
    code_shape: tuple[Size, Size, Size]
    n_embed: Size
    embed_dim: Size
    ddconfig: _Pixels
    shared_codebook: Flag = False
    decoder_latent_shape: tuple[Size, Size] | None = None


class _Transformer(Foreign):
    block_size: tuple[Size, Size, Size]
    vocab_size: Size | None = None
    input_embed_dim_1: Size | None = None
    input_embed_dim_2: Size | None = None
    embed_dim: Size
    blocks: Layers = Field(validation_alias=AliasPath("head", "n_layer"))
    heads: Size = Field(validation_alias=AliasPath("head", "block", "n_head"))


class _Tower(Foreign):
    rqvaesiglip: _Autoencoder
    rqtransformer: _Transformer


class _Projector(Foreign):
    mm_projector_type: str


def spec_of(name: str, root: Path, llm: object = None, tower: object = None, projector: object = None) -> ModelSpec:
    """The specification that the config files of the parts under `root`, or their given contents, describe.
    Raises RequestError naming file and key.
    """
    files = [root / part / "config.json" for part in PARTS]
    decoder, vision = read_decoder(files[0], llm), read_checked(_Tower, files[1], tower)
    autoencoder, transformer = vision.rqvaesiglip, vision.rqtransformer
    height, width, depth = autoencoder.code_shape
    codes, code_width = autoencoder.n_embed, autoencoder.embed_dim
    for key, value, needed in (
        ("block_size", list(transformer.block_size), [height, width, depth]),
        ("vocab_size", transformer.vocab_size or codes, codes),
        ("input_embed_dim_1", transformer.input_embed_dim_1 or code_width, code_width),
        ("input_embed_dim_2", transformer.input_embed_dim_2 or decoder.width, decoder.width),
    ):
        if value != needed:
            raise wrong(files[1], f"rqtransformer.{key}", value, repr(needed))
    if transformer.embed_dim % transformer.heads:
        allowed = f"a divisor of embed_dim {transformer.embed_dim}"
        raise wrong(files[1], "rqtransformer.head.block.n_head", transformer.heads, allowed)
    kind = read_checked(_Projector, files[2], projector).mm_projector_type
    if (known := re.fullmatch(r"identity|linear|mlp([1-9]\d*)x_gelu", kind)) is None:
        raise wrong(files[2], "mm_projector_type", kind, "linear, mlpNx_gelu or identity")
    if kind == "identity" and code_width != decoder.width:
        raise wrong(files[2], "mm_projector_type", "identity", f"code width {code_width} equal to {decoder.width}")
    return ModelSpec(
        name=name,
        frames=FRAMES,
        fps=FPS,
        decoder=decoder,
        depth=DepthSpec(
            width=transformer.embed_dim,
            blocks=transformer.blocks,
            heads=transformer.heads,
            depth=depth,
            codes=codes,
            code_width=code_width,
            hidden=decoder.width,
        ),
        rqvae=RQVAESpec(
            grid=(height, width),
            depth=depth,
            codes=codes,
            code_width=code_width,
            **autoencoder.ddconfig.model_dump(),
            shared_codebook=autoencoder.shared_codebook,
            latent_size=autoencoder.decoder_latent_shape,
        ),
        projector_layers=int(known[1] or kind == "linear"),
    )


def full_configs() -> dict[str, Any]:
    """The config files of VILA-U 7B by part."""
    file = resources.files("fastcar_cli.models.vila_u") / "vila_u_7b.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def full_spec() -> ModelSpec:
    """The specification of VILA-U 7B."""
    return spec_of("vila-u-7b", Path(), **full_configs())
