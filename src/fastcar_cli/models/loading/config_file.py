"""Config files of released checkpoints: every value is asked for by key, and a wrong one is named with its file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastcar_cli.errors import RequestError
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.plain_data import parse_json


class ConfigFile:
    """One config.json; every value is asked for by key, and a wrong one is named with its file."""

    def __init__(self, file: Path, data: Any = None, path: str = "", *, of: str = "model") -> None:
        self.file, self.path = file, path
        if data is None:
            try:
                data = parse_json(file.read_text(encoding="utf-8"))
            except FileNotFoundError:
                raise RequestError(f"{file} is missing", hint=f"the folder is no {of} checkpoint") from None
            except (OSError, ValueError) as e:
                raise RequestError(f"{file} can't be read: {e}") from None
        if not isinstance(data, dict):
            raise self.wrong("", data, "a mapping")
        self.data: dict[str, Any] = data

    def wrong(self, key: str, value: Any, needed: str) -> RequestError:
        """The error of a value."""
        return RequestError(f"{self.file}: key '{self.path}{key}' is {value!r}, needed: {needed}")

    def section(self, key: str) -> ConfigFile:
        """The mapping under a key."""
        return ConfigFile(self.file, self.require(key), f"{self.path}{key}.")

    def require(self, key: str) -> Any:
        """The value of a key that must be there."""
        if key not in self.data:
            raise RequestError(f"{self.file}: key '{self.path}{key}' is missing")
        return self.data[key]

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer above 0."""
        value = self.require(key) if default is None else self.data.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(key, value, "an integer above 0")
        return value

    def number(self, key: str, default: float) -> float:
        """A number above 0."""
        value = self.data.get(key)
        value = default if value is None else value
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
            raise self.wrong(key, value, "a number above 0")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.data.get(key, default)
        if not isinstance(value, bool):
            raise self.wrong(key, value, "true or false")
        return value

    def integers(self, key: str, count: int | None = None) -> tuple[int, ...]:
        """A list of integers above 0."""
        value = self.require(key)
        whole = isinstance(value, list) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)
        if not whole or (count is not None and len(value) != count) or any(v < 1 for v in value):
            raise self.wrong(key, value, "a list of integers" if count is None else f"{count} integers")
        return tuple(value)


def _rope(llm: ConfigFile) -> tuple[float, float]:
    """Base of the periods, and what positions are divided by; transformers 5 writes both as `rope_parameters`."""
    theta = llm.number("rope_theta", 10000.0)
    factor = _rope_factor(llm, "rope_scaling")
    if llm.data.get("rope_parameters") is None:
        return theta, factor
    section = llm.section("rope_parameters")
    found = section.number("rope_theta", theta), _rope_factor(llm, "rope_parameters")
    for key, old, new in (("rope_theta", theta, found[0]), ("rope_scaling", factor, found[1])):
        if llm.data.get(key) is not None and old != new:
            raise llm.wrong(key, llm.data[key], f"what rope_parameters says, {new:g}")
    return found


def _rope_factor(llm: ConfigFile, key: str) -> float:
    if llm.data.get(key) is None:
        return 1.0
    section = llm.section(key)
    kind = section.data.get("type", section.data.get("rope_type"))
    if kind == "default":
        return 1.0
    if kind != "linear":
        raise section.wrong("type", kind, "'linear' (or no rope_scaling)")
    return section.number("factor", 1.0)


def read_decoder(llm: ConfigFile) -> DecoderSpec:
    """The decoder that a config.json of transformers' LlamaConfig describes; RequestError names file and key."""
    if llm.data.get("model_type", "llama") != "llama":
        raise llm.wrong("model_type", llm.data["model_type"], "'llama'")
    if llm.data.get("hidden_act", "silu") != "silu":
        raise llm.wrong("hidden_act", llm.data["hidden_act"], "'silu'")
    width, heads = llm.integer("hidden_size"), llm.integer("num_attention_heads")
    kv_heads = llm.integer("num_key_value_heads", heads)
    if width % heads or (width // heads) % 2:
        raise llm.wrong("num_attention_heads", heads, f"a divisor of hidden_size {width} with even quotient")
    if llm.data.get("head_dim") not in (None, width // heads):
        raise llm.wrong("head_dim", llm.data["head_dim"], f"hidden_size / num_attention_heads, {width // heads}")
    if heads % kv_heads:
        raise llm.wrong("num_key_value_heads", kv_heads, f"a divisor of num_attention_heads {heads}")
    theta, factor = _rope(llm)
    return DecoderSpec(
        width=width,
        layers=llm.integer("num_hidden_layers"),
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=llm.integer("intermediate_size"),
        vocab=llm.integer("vocab_size"),
        rms_eps=llm.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_factor=factor,
        max_positions=int(llm.integer("max_position_embeddings", 4096) * factor),
        attention_bias=llm.flag("attention_bias"),
    )
