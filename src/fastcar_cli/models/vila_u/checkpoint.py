"""VILA-U checkpoints in the official format: config files to a specification, tensor names to parameters.

The folder is read as it is: `llm/`, `vision_tower/`, `mm_projector/` and a root config.json.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

import torch

from fastcar_cli.errors import RequestError
from fastcar_cli.models import checkpoint
from fastcar_cli.models.checkpoint import GenerationDefaults
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.llama_config import read_decoder
from fastcar_cli.models.network import Network
from fastcar_cli.models.vila_u.network import ModelSpec, VideoModel
from fastcar_cli.models.vila_u.rqvae import RQVAESpec
from fastcar_cli.models.vila_u.text import LlamaTokenizer
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.system.plain_data import Flag, Foreign, Layers, Size, read_checked, wrong
from fastcar_cli.weights.tensors import Component, weight_files

FRAMES, FPS = 8, 8

DEFAULTS = GenerationDefaults(cfg=3.0, temperature=1.0, top_k=900, top_p=0.96, tas="released", gate="row")
"""Guidance and sampling of the released inference code."""

PARTS = ("llm", "vision_tower", "mm_projector")
"""Folders of a checkpoint."""

_FILES = ("config.json", *(f"{part}/*" for part in PARTS))
PATTERNS = (*_FILES, *(f"model/{pattern}" for pattern in _FILES))
"""Files of a repository on the hub that a model needs."""


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder looks like an official checkpoint (it or its `model` folder has the `llm` part)."""
    return (root_of(folder) / "llm").is_dir()


def loading_format(name: str) -> WeightFormat:
    """What a model is held as when it is loaded; what int8 leaves as floats is bfloat16."""
    return checkpoint.loading_format(name, torch.bfloat16)


def weights_of(folder: Path) -> list[Path]:
    """The files of weights of a checkpoint; they need not exist. Raises RequestError where there are none."""
    parts = [part for part in PARTS if part != "mm_projector" or read_spec(folder).projector_layers]
    return [file for part in parts for file in weight_files(root_of(folder) / part)]


def tokenizer_files(folder: Path) -> tuple[Path, ...]:
    """Files of the text tokenizer."""
    return tuple(root_of(folder) / "llm" / name for name in ("tokenizer.model", "tokenizer.json", "added_tokens.json"))


def root_of(folder: Path) -> Path:
    """The folder that holds the parts: `model` inside it where there is one."""
    return folder / "model" if (folder / "model").is_dir() else folder


class _Top(Foreign):
    model_type: Literal["vila_u_llama"]


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


class _Block(Foreign):
    n_head: Size


class _Head(Foreign):
    n_layer: Layers
    block: _Block


class _Transformer(Foreign):
    block_size: tuple[Size, Size, Size]
    vocab_size: Size | None = None
    input_embed_dim_1: Size | None = None
    input_embed_dim_2: Size | None = None
    embed_dim: Size
    head: _Head


class _Tower(Foreign):
    rqvaesiglip: _Autoencoder
    rqtransformer: _Transformer


class _Projector(Foreign):
    mm_projector_type: str

    @property
    def layers(self) -> int | None:
        """Linear maps; None of a type that is not known."""
        known = re.fullmatch(r"identity|linear|mlp([1-9]\d*)x_gelu", self.mm_projector_type)
        return None if known is None else int(known[1] or self.mm_projector_type == "linear")


def read_spec(folder: Path) -> ModelSpec:
    """The specification of an official checkpoint. Raises RequestError naming file and key."""
    root = root_of(folder)
    read_checked(_Top, root / "config.json", of="VILA-U")
    for part in PARTS:
        if not (root / part).is_dir():
            raise RequestError(f"{root} is no VILA-U checkpoint: it has no folder {part!r}")
    return spec_of(folder.resolve().name or "vila-u", root)


def spec_of(name: str, root: Path, llm: object = None, tower: object = None, projector: object = None) -> ModelSpec:
    """The specification that the config files of the parts under `root` describe, or what they hold where it is given.

    Raises RequestError naming file and key.
    """
    files = [root / part / "config.json" for part in PARTS]
    decoder, vision = read_decoder(files[0], llm), read_checked(_Tower, files[1], tower)
    autoencoder, transformer, pixels = vision.rqvaesiglip, vision.rqtransformer, vision.rqvaesiglip.ddconfig
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
    depth_width, depth_heads = transformer.embed_dim, transformer.head.block.n_head
    if depth_width % depth_heads:
        raise wrong(files[1], "rqtransformer.head.block.n_head", depth_heads, f"a divisor of embed_dim {depth_width}")
    mapping = read_checked(_Projector, files[2], projector)
    if mapping.layers is None:
        raise wrong(files[2], "mm_projector_type", mapping.mm_projector_type, "linear, mlpNx_gelu or identity")
    if mapping.layers == 0 and code_width != decoder.width:
        raise wrong(files[2], "mm_projector_type", "identity", f"code width {code_width} equal to {decoder.width}")
    return ModelSpec(
        name=name,
        frames=FRAMES,
        fps=FPS,
        decoder=decoder,
        depth=DepthSpec(
            width=depth_width,
            blocks=transformer.head.n_layer,
            heads=depth_heads,
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
            z_channels=pixels.z_channels,
            ch=pixels.ch,
            ch_mult=pixels.ch_mult,
            num_res_blocks=pixels.num_res_blocks,
            resolution=pixels.resolution,
            attn_resolutions=pixels.attn_resolutions,
            out_ch=pixels.out_ch,
            shared_codebook=autoencoder.shared_codebook,
            latent_size=autoencoder.decoder_latent_shape,
        ),
        projector_layers=mapping.layers,
    )


_KEYS = {
    "llm": ("llm", "model."),
    "depth": ("vision_tower", "rqtransformer."),
    "rqvae": ("vision_tower", "rqvaesiglip."),
    "projector": ("mm_projector", ""),
}
"""Parts of the network: in which folder they are, and what their keys begin with there."""

_UNUSED_VISION = re.compile(
    r"rqvaesiglip\.(siglip_model\.|encoder\.|quant_conv\.|logit_scale$|logit_bias$"
    r"|quantizer\.codebooks\.\d+\.(cluster_size_ema|embed_ema)$)"
)


def components(folder: Path, network: Network) -> list[Component]:
    """Which keys of which folder are which parameters of the network."""
    assert isinstance(network, VideoModel)
    spec, root = network.spec, root_of(folder)
    names: dict[str, dict[str, str]] = {part: {} for part in PARTS}
    # A table that all depths share has the first one's name; some savers repeat it for the others.
    shared, repeated = network.shared(), set()
    for name in network.state_dict():
        part, _, rest = name.partition(".")
        folder_of, prefix = _KEYS[part]
        if name in shared:
            repeated.add(prefix + rest)
        else:
            names[folder_of][prefix + rest] = name

    def unused_llm(key: str) -> bool:
        return key == "lm_head.weight" or key.endswith("rotary_emb.inv_freq")

    def unused_tower(key: str) -> bool:
        return key in repeated or bool(_UNUSED_VISION.match(key))

    components = [
        Component(root / "llm", names["llm"], unused_llm),
        Component(root / "vision_tower", names["vision_tower"], unused_tower),
    ]
    if spec.projector_layers:
        components.append(Component(root / "mm_projector", names["mm_projector"], lambda key: False))
    return components


def reader(folder: Path, network: Network) -> LlamaTokenizer:
    """What reads its prompts. Raises RequestError naming the file that is damaged."""
    decoder, n = network.spec.decoder, network.spec.tokens_per_frame
    return LlamaTokenizer(root_of(folder) / "llm", decoder.vocab, decoder.max_positions - n)
