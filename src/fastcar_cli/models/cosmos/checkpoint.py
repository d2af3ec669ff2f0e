"""Cosmos-Predict1 checkpoints in the official format: `model.pt` and, in a folder beside it, the tokenizer's two files.

Sizes come from the shapes of tensors, YaRN from the size or the folder's name. The tokenizer's keys, which are also
names of parameters, show its blocks, shortcuts and samplers. No program in the files is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.checkpoint import GenerationDefaults, Released
from fastcar_cli.models.cosmos.network import Cosmos, CosmosSpec
from fastcar_cli.models.cosmos.tokenizer import COLOURS, CausalVideoSpec, CausalVideoTokenizer
from fastcar_cli.models.cosmos.tokenizer_blocks import LevelSpec
from fastcar_cli.models.decoder import Axes, DecoderSpec
from fastcar_cli.models.network import Network
from fastcar_cli.weights.tensors import Component, StoredShapes
from fastcar_cli.weights.torchscript import TorchScriptFile

FRAMES, FPS = 33, 25

_COSMOS = {
    # Width, layers, width of text embeddings, whether YaRN stretches frequencies.
    "cosmos-predict1-4b": (4096, 16, 0, False),
    "cosmos-predict1-12b": (5120, 40, 0, True),
    "cosmos-predict1-5b-video2world": (4096, 16, 1024, False),
    "cosmos-predict1-13b-video2world": (5120, 40, 1024, True),
}

MODEL, _ENCODER = "model.pt", "encoder.jit"
HALVES = {_ENCODER: ("encoder.", "quant_conv."), "decoder.jit": ("decoder.", "post_quant_conv.")}
"""Files of the tokenizer, and the prefixes of their parameters' keys."""

PUBLISHED = CausalVideoSpec(
    patch=4,
    levels=(8, 8, 8, 5, 5, 5),
    latent=16,
    width=128,
    down=(LevelSpec((256, 256), space=True, time=True), LevelSpec((512, 512), space=True), LevelSpec((512, 512))),
    up=(LevelSpec((256,) * 3), LevelSpec((512,) * 3, space=True, time=True), LevelSpec((512,) * 3, space=True)),
)
"""Sizes of Cosmos-Tokenize1-DV8x16x16-720p."""

TOKENIZER = "nvidia/Cosmos-Tokenize1-DV8x16x16-720p"  # the repository of the tokenizer, which all models need

_BESIDE = (TOKENIZER.rpartition("/")[2], "Cosmos-1.0-Tokenizer-DV8x16x16")
_GROWN = ("12B", "13B")
_LEVELS = "quantizer._levels"
_IGNORED = ("quantizer.", "inv_quant.", "encoder.patcher3d.", "decoder.unpatcher3d.")
_NAMES = {
    **{f"attention.w{part}.weight": f"self_attn.{part}_proj.weight" for part in "qkvo"},
    **{f"attention.{part}_norm.weight": f"self_attn.{part}_norm.weight" for part in "qk"},
    **{f"cross_attention.w{part}.weight": f"cross_attn.{part}_proj.weight" for part in "qkvo"},
    **{f"cross_attention.{part}_norm.weight": f"cross_attn.{part}_norm.weight" for part in "qk"},
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
    "cross_attention_norm.weight": "cross_layernorm.weight",
}


class CosmosCheckpoint(Released):
    """A model's folder of this format, or the folder of the tokenizer."""

    SPEC = CosmosSpec
    DEFAULTS = GenerationDefaults(
        cfg=1.0, temperature=1.0, top_k=0, top_p=0.8, top_p_strict=True, tas="attention", gate="row"
    )
    PATTERNS = (MODEL, *HALVES)
    FLOATS, DEPTH, APART = torch.bfloat16, "int8", True

    @classmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """See `Checkpoint`."""
        return any((folder / name).is_file() for name in cls.PATTERNS) and not (folder / "model.safetensors").is_file()

    @staticmethod
    def companions(name: str) -> Mapping[str, tuple[str, ...]]:
        """See `Released`."""
        return {TOKENIZER: (*HALVES,)} if name in _COSMOS else {}

    @staticmethod
    def published_spec(name: str) -> CosmosSpec | None:
        """See `Released`."""
        if name not in _COSMOS:
            return None
        width, layers, source, grown = _COSMOS[name]
        decoder = cosmos_decoder(width, layers, 32, 8, 128, 14336, PUBLISHED.codes, source, grown)
        return CosmosSpec(name, FRAMES, FPS, decoder, PUBLISHED)

    @cached_property
    def _tokenizer(self) -> Path:
        """The folder of the tokenizer: this one, one beside it, or the one in the hub's cache."""
        from huggingface_hub import try_to_load_from_cache

        folder = self.folder
        beside = [folder, *(folder.absolute().parent / name for name in _BESIDE)]
        cached = try_to_load_from_cache(TOKENIZER, _ENCODER)
        beside += [Path(cached).parent] if isinstance(cached, str) else []
        beside = beside if self.tokenizer is None else [self.tokenizer]
        if not (folder / MODEL).is_file() and (folder / _ENCODER).is_file():
            raise RequestError(
                f"{folder} is the folder of Cosmos' tokenizer, not of a model",
                hint=("give the folder that holds model.pt: ", Key("model"), " FOLDER"),
            )
        for candidate in beside:
            if any((candidate / name).is_file() for name in HALVES):
                return candidate
        raise RequestError(
            f"{folder} has no tokenizer beside it", hint=f"copy both .jit files of {TOKENIZER} to {beside[1]}"
        )

    def weight_files(self) -> list[Path]:
        """See `Checkpoint`. Raises RequestError without the tokenizer."""
        return [self.folder / MODEL, *(self._tokenizer / name for name in HALVES)]

    def read_spec(self) -> CosmosSpec:
        """See `Checkpoint`."""
        beside, folder = self._tokenizer, self.folder
        decoder, codes = _decoder(folder)
        tokenizer = read_tokenizer_spec(beside)
        if codes != tokenizer.codes:
            place = f"weights file {folder / MODEL}, key 'output.weight'"
            raise RequestError(f"{place}: {codes} rows, but the tokenizer {beside} has {tokenizer.codes} codes")
        return CosmosSpec(folder.resolve().name or "cosmos", FRAMES, FPS, decoder, tokenizer)

    def components(self, network: Network) -> list[Component]:
        """See `Checkpoint`."""
        assert isinstance(network, Cosmos)
        return [
            Component(self.folder, names_of(network), lambda key: False, (self.folder / MODEL,)),
            *tokenizer_components(self._tokenizer, "tokenizer.", network.tokenizer),
        ]


def cosmos_decoder(
    width: int, layers: int, heads: int, kv_heads: int, head: int, mlp_width: int, codes: int, source: int, grown: bool
) -> DecoderSpec:
    """The decoder of a Cosmos model; `source` is the width of text embeddings, 0 without; `grown`: with YaRN.
    Raises ValueError for sizes that do not fit.
    """
    lead = int(source > 0)
    return DecoderSpec(
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=mlp_width,
        # With text the table has a row for the first token of a prompt, and is padded to a multiple of 64.
        vocab=-(-(codes + 1) // 64) * 64 if source else codes,
        rms_eps=1e-5,
        rope_theta=500000.0,
        max_positions=lead + 5 * 40 * 64,
        head_width=head,
        head_norms=True,
        axes=Axes((40, 64), lead, (3, 40, 40) if grown else ()),
        source=source,
    )


def _decoder(folder: Path) -> tuple[DecoderSpec, int]:
    """The decoder's sizes and the number of codes. Raises RequestError with file and key."""
    file = folder / MODEL
    shapes = StoredShapes(file)
    rows, width = shapes.of("tok_embeddings.weight", 2)
    codes, _ = shapes.of("output.weight", 2)
    (head,) = shapes.of("layers.0.attention.q_norm.weight", 1)
    heads, kv_heads = (shapes.of(f"layers.0.attention.w{part}.weight", 2)[0] for part in "qk")
    for part, size in (("q", heads), ("k", kv_heads)):
        if size % head:
            key = f"layers.0.attention.w{part}.weight"
            raise RequestError(f"weights file {file}, key {key!r}: {size} rows, expected a multiple of {head}")
    numbers = (key.split(".")[1] for key in shapes if key.startswith("layers."))
    layers = 1 + max(int(number) for number in numbers if number.isdigit())
    text = "layers.0.cross_attention.wk.weight" in shapes
    grown = (layers, width) == (40, 5120) or any(size in folder.resolve().name for size in _GROWN)
    mlp = shapes.of("layers.0.feed_forward.w1.weight", 2)[0]
    source = shapes.of("layers.0.cross_attention.wk.weight", 2)[1] if text else 0
    try:
        spec = cosmos_decoder(width, layers, heads // head, kv_heads // head, head, mlp, codes, source, grown)
    except ValueError as e:
        raise RequestError(f"weights file {file}: {e}") from None
    return replace(spec, vocab=rows), codes


def names_of(network: Cosmos) -> dict[str, str]:
    """The network's parameters without the tokenizer's, by their names in `model.pt`."""
    names = {
        "tok_embeddings.weight": "llm.embed_tokens.weight",
        "norm.weight": "llm.norm.weight",
        "output.weight": "lm_head.weight",
    }
    parameters = network.state_dict()
    for layer in range(network.spec.decoder.layers):
        layer_names = {f"layers.{layer}.{key}": f"llm.layers.{layer}.{name}" for key, name in _NAMES.items()}
        names |= {key: name for key, name in layer_names.items() if name in parameters}
    return names


def _has(shapes: StoredShapes, key: str) -> bool:
    """Whether the file has this convolution."""
    return f"{key}.conv3d.weight" in shapes


def _shape(shapes: StoredShapes, key: str) -> tuple[int, ...]:
    """The shape of a convolution, outputs first. Raises RequestError if it is missing."""
    return shapes.of(f"{key}.conv3d.weight", 5)


def _levels(shapes: StoredShapes, path: str, space: str, time: str) -> tuple[LevelSpec, ...]:
    """The levels below `path`; `space` and `time` are the convolutions of their samplers."""
    levels: list[LevelSpec] = []
    while True:
        level, widths = f"{path}.{len(levels)}", list[int]()
        while _has(shapes, block := f"{level}.block.{len(widths)}.conv1.0"):
            widths.append(_shape(shapes, block)[0])
        if not widths:
            return tuple(levels)
        levels.append(LevelSpec(tuple(widths), _has(shapes, f"{level}.{space}"), _has(shapes, f"{level}.{time}")))


def read_tokenizer_spec(folder: Path) -> CausalVideoSpec:
    """The specification of a tokenizer. Raises RequestError with file and key."""
    encoder, decoder = (StoredShapes(folder / file) for file in HALVES)
    down = _levels(encoder, "encoder.down", "downsample.conv1", "downsample.conv2")
    up = _levels(decoder, "decoder.up", "upsample.conv2", "upsample.conv1")
    if any(sum(getattr(a, by) for a in down) != sum(getattr(a, by) for a in up) for by in ("space", "time")):
        raise RequestError(f"{folder}: encoder.jit and decoder.jit belong to different tokenizers")
    cube = _shape(encoder, "encoder.conv_in.0")[1] / COLOURS
    if (dimensions := encoder.of(_LEVELS, 1)[0]) > 64:
        raise RequestError(f"weights file {encoder.path}, key {_LEVELS!r}: {dimensions} numbers, allowed: at most 64")
    try:
        return CausalVideoSpec(
            patch=round(cube ** (1 / 3)),
            levels=tuple(int(n) for n in TorchScriptFile(encoder.path).rows(_LEVELS, 0, dimensions)),
            latent=_shape(encoder, "encoder.conv_out.1")[0],
            width=_shape(encoder, "encoder.conv_in.1")[0],
            down=down,
            up=up,
            encoder_attention=_has(encoder, "encoder.mid.attn_1.0.q"),
            decoder_attention=_has(decoder, "decoder.mid.attn_1.0.q"),
        )
    except ValueError as e:
        raise RequestError(f"{folder}: the tokenizer's sizes are invalid: {e}") from None


def tokenizer_components(folder: Path, prefix: str, tokenizer: CausalVideoTokenizer) -> list[Component]:
    """The mapping from keys of the two files to parameters, whose names in the network begin with `prefix`."""
    return [
        Component(
            folder,
            {key: prefix + key for key in tokenizer.state_dict() if key.startswith(prefixes)},
            lambda key: key.startswith(_IGNORED),
            (folder / file,),
        )
        for file, prefixes in HALVES.items()
    ]
