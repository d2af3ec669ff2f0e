"""VILA-U checkpoints in the official format: config files to a specification, tensor names to parameters.

The folder is read as it is: `llm/`, `vision_tower/`, `mm_projector/` and a root config.json.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch

from fastcar_cli.errors import RequestError
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.llama_text import LlamaTokenizer
from fastcar_cli.models.loading import checkpoint
from fastcar_cli.models.loading.checkpoint import GenerationDefaults
from fastcar_cli.models.loading.config_file import ConfigFile, read_decoder
from fastcar_cli.models.loading.weights import Component, weight_files
from fastcar_cli.models.network import Network
from fastcar_cli.models.quantised import WeightFormat
from fastcar_cli.models.rqvae import RQVAESpec
from fastcar_cli.models.video_model import ModelSpec, VideoModel

MODEL_TYPE = "vila_u_llama"
FRAMES, FPS = 8, 8

DEFAULTS = GenerationDefaults(cfg=3.0, temperature=1.0, top_k=900, top_p=0.96, tas="released", gate="row")
"""Guidance and sampling of the released inference code."""

PARTS = ("llm", "vision_tower", "mm_projector")

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
    return tuple(root_of(folder) / "llm" / name for name in ("tokenizer.model", "added_tokens.json"))


def root_of(folder: Path) -> Path:
    """The folder that holds the parts: `model` inside it where there is one."""
    return folder / "model" if (folder / "model").is_dir() else folder


def _projector_layers(config: ConfigFile) -> int:
    kind = config.require("mm_projector_type")
    if kind == "identity":
        return 0
    if kind == "linear":
        return 1
    found = re.fullmatch(r"mlp(\d+)x_gelu", str(kind))
    if not found or int(found[1]) < 1:
        raise config.wrong("mm_projector_type", kind, "linear, mlpNx_gelu or identity")
    return int(found[1])


def read_spec(folder: Path) -> ModelSpec:
    """The specification of an official checkpoint. Raises RequestError naming file and key."""
    root = root_of(folder)
    top = ConfigFile(root / "config.json", of="VILA-U")
    if top.data.get("model_type") != MODEL_TYPE:
        raise top.wrong("model_type", top.data.get("model_type"), repr(MODEL_TYPE))
    for part in PARTS:
        if not (root / part).is_dir():
            raise RequestError(f"{root} is no VILA-U checkpoint: it has no folder {part!r}")
    decoder = read_decoder(ConfigFile(root / "llm" / "config.json"))
    tower = ConfigFile(root / "vision_tower" / "config.json")
    autoencoder, transformer = tower.section("rqvaesiglip"), tower.section("rqtransformer")
    pixels, head = autoencoder.section("ddconfig"), transformer.section("head")
    height, width, depth = autoencoder.integers("code_shape", 3)
    codes, code_width = autoencoder.integer("n_embed"), autoencoder.integer("embed_dim")
    for key, found, needed in (
        ("block_size", list(transformer.integers("block_size", 3)), [height, width, depth]),
        ("vocab_size", transformer.integer("vocab_size", codes), codes),
        ("input_embed_dim_1", transformer.integer("input_embed_dim_1", code_width), code_width),
        ("input_embed_dim_2", transformer.integer("input_embed_dim_2", decoder.width), decoder.width),
    ):
        if found != needed:
            raise transformer.wrong(key, found, repr(needed))
    latent = autoencoder.data.get("decoder_latent_shape")
    depth_width, depth_heads = transformer.integer("embed_dim"), head.section("block").integer("n_head")
    if depth_width % depth_heads:
        raise head.section("block").wrong("n_head", depth_heads, f"a divisor of embed_dim {depth_width}")
    projector = ConfigFile(root / "mm_projector" / "config.json")
    layers = _projector_layers(projector)
    if layers == 0 and code_width != decoder.width:
        raise projector.wrong("mm_projector_type", "identity", f"code width {code_width} equal to {decoder.width}")
    return ModelSpec(
        name=(folder.resolve().name or "vila-u"),
        frames=FRAMES,
        fps=FPS,
        decoder=decoder,
        depth=DepthSpec(
            width=depth_width,
            blocks=head.integer("n_layer"),
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
            z_channels=pixels.integer("z_channels"),
            ch=pixels.integer("ch"),
            ch_mult=pixels.integers("ch_mult"),
            num_res_blocks=pixels.integer("num_res_blocks"),
            resolution=pixels.integer("resolution"),
            attn_resolutions=tuple(pixels.data.get("attn_resolutions", ())),
            out_ch=pixels.integer("out_ch", 3),
            shared_codebook=autoencoder.flag("shared_codebook"),
            latent_size=None if latent is None else _pair(autoencoder.integers("decoder_latent_shape", 2)),
        ),
        projector_layers=layers,
    )


def _pair(values: tuple[int, ...]) -> tuple[int, int]:
    return values[0], values[1]


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

    found = [
        Component(root / "llm", names["llm"], unused_llm),
        Component(root / "vision_tower", names["vision_tower"], unused_tower),
    ]
    if spec.projector_layers:
        found.append(Component(root / "mm_projector", names["mm_projector"], lambda key: False))
    return found


def reader(folder: Path, network: Network) -> LlamaTokenizer:
    """What reads its prompts. Raises RequestError naming the file that is damaged."""
    decoder, n = network.spec.decoder, network.spec.tokens_per_frame
    return LlamaTokenizer(root_of(folder) / "llm", decoder.vocab, decoder.max_positions - n)
