"""Cosmos-Predict1 checkpoints in the official format: `model.pt` and, in a folder beside it, the tokenizer's two files.

Sizes follow from the shapes of tensors, and YaRN from the size or the folder's name. No program in the files is run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.checkpoint import GenerationDefaults, Released
from fastcar_cli.models.cosmos.network import Cosmos, CosmosSpec
from fastcar_cli.models.cosmos.shapes import FPS, FRAMES, cosmos_decoder, published
from fastcar_cli.models.cosmos.tokenizer_files import read_tokenizer_spec, tokenizer_components
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.network import Network
from fastcar_cli.weights.tensors import Component, StoredShapes

MODEL, HALVES = "model.pt", ("encoder.jit", "decoder.jit")

TOKENIZER = "nvidia/Cosmos-Tokenize1-DV8x16x16-720p"
"""The repository of the tokenizer, which every model needs beside its own."""

_BESIDE = (TOKENIZER.rpartition("/")[2], "Cosmos-1.0-Tokenizer-DV8x16x16")
_GROWN = ("12B", "13B")
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
    """A folder of this format, or the tokenizer's that belongs beside it."""

    SPEC = CosmosSpec
    DEFAULTS = GenerationDefaults(
        cfg=1.0, temperature=1.0, top_k=0, top_p=0.8, top_p_strict=True, tas="attention", gate="row"
    )
    PATTERNS = (MODEL, *HALVES)
    FLOATS, DEPTH = torch.bfloat16, "int8"

    @classmethod
    def matches(cls, folder: Path, config: Any) -> bool:
        """See `Checkpoint`."""
        return any((folder / name).is_file() for name in cls.PATTERNS) and not (folder / "model.safetensors").is_file()

    @staticmethod
    def published_spec(name: str) -> CosmosSpec | None:
        """See `Released`."""
        return published(name)

    @cached_property
    def _tokenizer(self) -> Path:
        """The folder of the tokenizer: this one, one beside it, or that of the hub's cache."""
        from huggingface_hub import try_to_load_from_cache

        folder = self.folder
        beside = [folder, *(folder.absolute().parent / name for name in _BESIDE)]
        cached = try_to_load_from_cache(TOKENIZER, HALVES[0])
        beside += [Path(cached).parent] if isinstance(cached, str) else []
        if not (folder / MODEL).is_file() and (folder / HALVES[0]).is_file():
            raise RequestError(
                f"{folder} holds the tokenizer of Cosmos, the model is in a folder beside it",
                hint=("give the folder that holds model.pt: ", Key("model")),
            )
        for candidate in beside:
            if any((candidate / name).is_file() for name in HALVES):
                return candidate
        raise RequestError(
            f"{folder} has no tokenizer beside it",
            hint=f"copy {TOKENIZER} (encoder.jit, decoder.jit) into {beside[1]}",
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
            raise RequestError(
                f"weights file {folder / MODEL}, key 'output.weight': {codes} rows, the tokenizer {beside} has "
                f"{tokenizer.codes} codes"
            )
        return CosmosSpec(folder.resolve().name or "cosmos", FRAMES, FPS, decoder, tokenizer)

    def components(self, network: Network) -> list[Component]:
        """See `Checkpoint`."""
        assert isinstance(network, Cosmos)
        return [
            Component(self.folder, names_of(network), lambda key: False, (self.folder / MODEL,)),
            *tokenizer_components(self._tokenizer, "tokenizer.", network.tokenizer),
        ]


def _decoder(folder: Path) -> tuple[DecoderSpec, int]:
    """The decoder's sizes and the number of codes. Raises RequestError naming file and key."""
    file = folder / MODEL
    shapes = StoredShapes(file)
    rows, width = shapes.of("tok_embeddings.weight", 2)
    codes, _ = shapes.of("output.weight", 2)
    (head,) = shapes.of("layers.0.attention.q_norm.weight", 1)
    heads, kv_heads = (shapes.of(f"layers.0.attention.w{part}.weight", 2)[0] for part in "qk")
    for part, size in (("q", heads), ("k", kv_heads)):
        if size % head:
            key = f"layers.0.attention.w{part}.weight"
            raise RequestError(f"weights file {file}, key {key!r}: {size} rows, needed: a multiple of {head}")
    layers = 1 + max(
        int(key.split(".")[1]) for key in shapes if key.startswith("layers.") and key.split(".")[1].isdigit()
    )
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
    """The network's parameters, the tokenizer's left out, by the names that they have in `model.pt`."""
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
