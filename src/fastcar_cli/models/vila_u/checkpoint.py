"""VILA-U checkpoints in the official format: `llm/`, `vision_tower/`, `mm_projector/` and a root config.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from pydantic import AliasPath, Field

from fastcar_cli.errors import RequestError
from fastcar_cli.models.checkpoint import GenerationDefaults, Released
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.llama_config import read_decoder
from fastcar_cli.models.network import Network
from fastcar_cli.models.vila_u.network import ModelSpec, VideoModel
from fastcar_cli.models.vila_u.rqvae import RQVAESpec
from fastcar_cli.models.vila_u.text import LlamaTokenizer
from fastcar_cli.system.plain_data import Flag, Foreign, Layers, Size, read_checked, wrong
from fastcar_cli.weights.tensors import Component, weight_files

FRAMES, FPS = 8, 8
PARTS = ("llm", "vision_tower", "mm_projector")  # folders of a checkpoint
_FILES = ("config.json", *(f"{part}/*" for part in PARTS))

_KEYS = {
    "llm": ("llm", "model."),
    "depth": ("vision_tower", "rqtransformer."),
    "rqvae": ("vision_tower", "rqvaesiglip."),
    "projector": ("mm_projector", ""),
}
"""Parts of the network: their folders, and the prefixes of their keys there."""

_UNUSED_VISION = re.compile(
    r"rqvaesiglip\.(siglip_model\.|encoder\.|quant_conv\.|logit_scale$|logit_bias$"
    r"|quantizer\.codebooks\.\d+\.(cluster_size_ema|embed_ema)$)"
)


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
        raise wrong(files[2], "mm_projector_type", kind, "identity, linear or mlpNx_gelu (with a number N)")
    if kind == "identity" and code_width != decoder.width:
        raise wrong(files[2], "mm_projector_type", kind, f"linear: codes have width {code_width}, not {decoder.width}")
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


class VilaUCheckpoint(Released):
    """A folder of this format: it or its subfolder `model` contains the parts."""

    SPEC = ModelSpec
    DEFAULTS = GenerationDefaults(cfg=3.0, temperature=1.0, top_k=900, top_p=0.96, tas="released", gate="row")
    PATTERNS = (*_FILES, *(f"model/{pattern}" for pattern in _FILES))
    OFFLINE = False
    FLOATS = torch.bfloat16

    @classmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """See `Checkpoint`: it or its `model` folder has the `llm` part."""
        return (_root(folder) / "llm").is_dir()

    @staticmethod
    def published_spec(name: str) -> ModelSpec | None:
        """See `Released`."""
        return full_spec() if name == "vila-u-7b" else None

    @staticmethod
    def reader_of(network: Network, folder: Path) -> LlamaTokenizer:
        """See `Released`."""
        decoder = network.spec.decoder
        return LlamaTokenizer(folder, decoder.vocab, decoder.max_positions - network.spec.tokens_per_frame)

    def reader(self, network: Network) -> LlamaTokenizer:
        """See `Checkpoint`."""
        return self.reader_of(network, _root(self.folder) / "llm")

    def read_spec(self) -> ModelSpec:
        """See `Checkpoint`."""
        root = _root(self.folder)
        read_checked(_Top, root / "config.json", self.config if root == self.folder else None, of="VILA-U")
        for part in PARTS:
            if not (root / part).is_dir():
                raise RequestError(f"{root} is not a VILA-U checkpoint: it has no folder {part!r}")
        return spec_of(self.folder.resolve().name or "vila-u", root)

    def weight_files(self) -> list[Path]:
        """See `Checkpoint`; a projector that is the identity has none."""
        return [file for part in self._parts() for file in weight_files(_root(self.folder) / part)]

    def _parts(self) -> Sequence[str]:
        assert isinstance(self.spec, ModelSpec)
        return PARTS if self.spec.projector_layers else PARTS[:2]

    def text_files(self) -> tuple[Path, ...]:
        """See `Checkpoint`."""
        names = ("tokenizer.model", "added_tokens.json")
        return tuple(_root(self.folder) / "llm" / name for name in names)

    def components(self, network: Network) -> list[Component]:
        """See `Checkpoint`."""
        assert isinstance(network, VideoModel)
        root = _root(self.folder)
        names: dict[str, dict[str, str]] = {part: {} for part in PARTS}
        # A table shared by all depths has the first one's name; some savers repeat it for the others.
        shared, repeated = network.shared(), set()
        for name in network.state_dict():
            part, _, rest = name.partition(".")
            folder_of, prefix = _KEYS[part]
            if name in shared:
                repeated.add(prefix + rest)
            else:
                names[folder_of][prefix + rest] = name

        ignored: dict[str, Callable[[str], bool]] = {
            "llm": lambda key: key == "lm_head.weight" or key.endswith("rotary_emb.inv_freq"),
            "vision_tower": lambda key: key in repeated or bool(_UNUSED_VISION.match(key)),
            "mm_projector": lambda key: False,
        }
        return [Component(root / part, names[part], ignored[part]) for part in self._parts()]


def _root(folder: Path) -> Path:
    """The folder with the parts: its subfolder `model` if there is one."""
    return folder / "model" if (folder / "model").is_dir() else folder
