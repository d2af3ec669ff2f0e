"""Reads a decoder's sizes from the config.json of transformers' LlamaConfig, versions 4 and 5."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import AliasChoices, Field

from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.system.plain_data import Factor, Flag, Foreign, Layers, Size, read_checked, wrong


class _Rope(Foreign):
    kind: Literal["default", "linear"] = Field(validation_alias=AliasChoices("type", "rope_type"))
    factor: Factor = 1.0
    rope_theta: Factor | None = None

    @property
    def scale(self) -> float:
        """The divisor of positions."""
        return self.factor if self.kind == "linear" else 1.0


class _Llama(Foreign):
    model_type: Literal["llama"] = "llama"
    hidden_act: Literal["silu"] = "silu"
    width: Size = Field(validation_alias="hidden_size")
    heads: Size = Field(validation_alias="num_attention_heads")
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    layers: Layers = Field(validation_alias="num_hidden_layers")
    mlp_width: Size = Field(validation_alias="intermediate_size")
    vocab: Size = Field(validation_alias="vocab_size")
    rms_eps: Factor = Field(1e-6, validation_alias="rms_norm_eps")
    rope_theta: Factor | None = None
    rope_scaling: _Rope | None = None
    rope_parameters: _Rope | None = None
    max_position_embeddings: Size = 4096
    attention_bias: Flag = False
    mlp_bias: Literal[False] = False


def read_decoder(file: Path, data: object = None) -> DecoderSpec:
    """The decoder that a config.json, or its `data`, describes. Raises RequestError naming file and key."""
    llm = read_checked(_Llama, file, data)
    width, heads = llm.width, llm.heads
    kv_heads = llm.num_key_value_heads or heads
    if width % heads or (width // heads) % 2:
        raise wrong(file, "num_attention_heads", heads, f"a divisor of hidden_size {width} with an even quotient")
    if llm.head_dim not in (None, width // heads):
        raise wrong(file, "head_dim", llm.head_dim, f"hidden_size / num_attention_heads = {width // heads}")
    if heads % kv_heads:
        raise wrong(file, "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads {heads}")
    theta, scale = llm.rope_theta or 10000.0, 1.0 if llm.rope_scaling is None else llm.rope_scaling.scale
    if (new := llm.rope_parameters) is not None:
        # transformers 5 writes both here.
        for key, given, old, now in (
            ("rope_theta", llm.rope_theta, theta, new.rope_theta or theta),
            ("rope_scaling", llm.rope_scaling, scale, new.scale),
        ):
            if given is not None and old != now:
                raise wrong(file, key, old, f"{now:g}, the value in rope_parameters")
        theta, scale = new.rope_theta or theta, new.scale
    same = llm.model_dump(include={"width", "layers", "heads", "mlp_width", "vocab", "rms_eps", "attention_bias"})
    positions = int(llm.max_position_embeddings * scale)
    return DecoderSpec(kv_heads=kv_heads, rope_theta=theta, rope_factor=scale, max_positions=positions, **same)
