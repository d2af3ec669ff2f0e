"""A run as one validated object: defaults < fastcar.yaml < environment < `--config` < `--set` < flags."""

from __future__ import annotations

import difflib
import os
import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, get_args

import yaml
from pydantic import BaseModel, BeforeValidator, ValidationError

from fastcar_cli.config import choices, keys
from fastcar_cli.config.presets import parse_yaml, preset_folder, presets, read_preset
from fastcar_cli.errors import Key, RequestError, Text


class RunConfig(keys.Section):
    """All settings of a run."""

    model: str = keys.setting("table", keys.MODELS, common=True, min_length=1)
    generation: keys.GenerationKeys = keys.GenerationKeys()
    input: keys.InputKeys = keys.InputKeys()
    sampling: keys.SamplingKeys = keys.SamplingKeys()
    replay: keys.ReplayKeys = keys.ReplayKeys()
    draft: keys.DraftKeys = keys.DraftKeys()
    attention: keys.AttentionKeys = keys.AttentionKeys()
    backend: keys.BackendKeys = keys.BackendKeys()
    runtime: keys.RuntimeKeys = keys.RuntimeKeys()
    video: keys.VideoKeys = keys.VideoKeys()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: Text | None = "configuration") -> RunConfig:
        """Validate plain data. Raises RequestError with the key in `where`, or without it the caller's parameter."""
        try:
            return cls.model_validate(current(data))
        except ValidationError as e:
            raise _explain(e, where) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for `from_dict`."""
        data = self.model_dump(mode="python")
        data["replay"]["tau"] = self.replay.tau.plain("off")  # null would mean "not given"
        return data

    def changed(self, keys: Mapping[str, Any]) -> RunConfig:
        """A copy with other values for some dotted keys. Raises as `from_dict` does."""
        known = {_known(key, "configuration"): value for key, value in keys.items()}
        return RunConfig.from_dict(nested(flat(self.to_dict()) | known))

    @property
    def size(self) -> tuple[int, int] | None:
        """(height, width) of the frames in pixels, or None for the model's size."""
        if self.generation.size is None:
            return None
        width, height = self.generation.size.split("x")
        return int(height), int(width)

    def to_yaml(self) -> str:
        """YAML that `load_config` reads."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


FILE = "fastcar.yaml"
PREFIX = "FASTCAR_"
OTHERS = ("FASTCAR_KERNELS_ISA", "FASTCAR_GOLDEN", "FASTCAR_GOLDEN_FRAMES", "FASTCAR_GOLDEN_LATENTS")
"""Environment variables of the native kernels and the tests, which are not settings."""
SERVICES = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?=|_PORT_\d+_\w+=|_PORT=\w+://")
"""Variables that Kubernetes sets for a service whose name begins with fastcar."""


@dataclass(frozen=True)
class Setting:
    """A key as help texts, errors and docs show it. `kind`: its type on the command line; `values`: allowed words."""

    key: str
    kind: type
    meaning: str
    values: tuple[str, ...]
    allowed: str
    flag: str | None
    default: str
    by_model: bool
    common: bool

    @property
    def help(self) -> str:
        """The meaning with the allowed words."""
        return f"{self.meaning}. Values: {', '.join(self.values)}" if self.values else self.meaning

    @property
    def variable(self) -> str:
        """The environment variable that sets it, such as `FASTCAR_REPLAY_TAU` for `replay.tau`."""
        return PREFIX + self.key.upper().replace(".", "_")


@cache
def settings() -> dict[str, Setting]:
    """Every dotted key of the configuration."""
    return {s.key: s for s in _settings_of(RunConfig, "")}


def _settings_of(model: type[BaseModel], prefix: str) -> Iterator[Setting]:
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _settings_of(kind, f"{prefix}{name}.")
            continue
        more: Any = field.json_schema_extra
        words = choices.values(kind)
        # The command line passes strings to keys that parse strings.
        read = any(isinstance(m, BeforeValidator) for m in field.metadata)
        number = next((k for k in (bool, int, float) if k in (kind, *get_args(kind)) and not read), str)
        # Such as "whole number >= 1"; very large limits are left out.
        limits = ((sign, getattr(m, bound, keys.LARGEST)) for m in field.metadata for bound, sign in _LIMITS.items())
        allowed = [_KINDS[number], *(f"{sign} {n}" for sign, n in limits if n < keys.LARGEST)]
        if more["flag"] == "":
            more = more | {"flag": f"--{name.replace('_', '-')}"}
        text = ", ".join(words) or " ".join(allowed)
        yield Setting(prefix + name, number, str(field.description), words, text, **more)


_KINDS = {bool: "true, false", int: "whole number", float: "number", str: "text"}
_LIMITS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


class _Shown(reprlib.Repr):
    maxother = maxstring = 80
    maxlong = 40

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to format numbers with thousands of digits.
        return super().repr_int(x, level) if x.bit_length() < 2**12 else f"<a number of {x.bit_length()} bits>"


def shown(value: Any) -> str:
    """A string itself, or the repr of another value, shortened in the middle if long."""
    return value if isinstance(value, str) and len(value) < _Shown.maxstring - 2 else _Shown().repr(value)


def _unknown(where: Text | None, key: str, allowed: Sequence[str]) -> RequestError:
    last = key.rpartition(".")[2]
    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.5) or [k for k in allowed if k.endswith(f".{last}")]
    section = key.rpartition(".")[0]
    if key in near:
        return RequestError(f"unknown key {shown(key)!r}", where=where, hint=f"write '{last}' below '{section}:'")
    hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(sorted(settings()))}"
    return RequestError(f"unknown key {shown(key)!r}", where=where, hint=hint)


def _explain(error: ValidationError, where: Text | None) -> RequestError:
    """The first problem of a validation error."""
    problem = error.errors()[0]
    location = [str(p) for p in problem["loc"]]
    keys = settings()
    known = [*keys, *{k.split(".")[0] for k in keys}]
    if problem["type"] in ("extra_forbidden", "invalid_key"):
        return _unknown(where, ".".join(location), known)
    # pydantic appends the union member that failed; errors show only the part that is a known key.
    paths = [".".join(location[:n]) for n in range(len(location), 0, -1)]
    key = next((path for path in paths if path in known), paths[-1])
    allowed: str | None = re.sub("^(Value error, |(Input|String) should (be|have) )", "", problem["msg"])
    if problem["type"] in ("model_type", "dataclass_type", "string_pattern_mismatch"):
        allowed = None if key in keys else "a mapping of keys"
    value = _Shown().repr(problem.get("input"))
    hint = "meaning: " * (allowed is not None) + keys[key].meaning if key in keys else None
    return RequestError("not allowed", key=key, value=value, where=where, allowed=allowed, hint=hint)


def flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys."""
    out: dict[str, Any] = {}
    for key, value in data.items():
        out |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `flat`."""
    data: dict[str, Any] = {}
    for key, value in keys.items():
        section, _, last = key.rpartition(".")
        (data.setdefault(section, {}) if section else data)[last] = value
    return data


def _known(key: str, where: Text) -> str:
    """A dotted key. Raises RequestError for an unknown one."""
    if key not in settings():
        raise _unknown(where, key, [*settings()])
    return key


def later_wins(data: dict[str, Any], given: Collection[str]) -> None:
    """Drop `replay.tau` or `replay.ratio` from `data` if a later layer has `given` the other one."""
    for key, other in (("replay.tau", "replay.ratio"), ("replay.ratio", "replay.tau")):
        if key in given and other not in given:
            data.pop(other, None)


def current(data: Mapping[str, Any]) -> dict[str, Any]:
    """Nested configuration data without empty sections."""
    empty = {key.partition(".")[0] for key in settings() if "." in key and data.get(key.partition(".")[0], 0) is None}
    return {key: value for key, value in data.items() if key not in empty}


@dataclass(frozen=True)
class GivenKey:
    """A dotted key with its value, the beginning of errors about it, and its source as `config --where` prints it."""

    key: str
    value: Any
    where: Text | None
    source: str


Layer = list[GivenKey]  # values from one source; a later layer overrides earlier ones


def file_layer(name: str, source: str) -> Layer:
    """The values of a preset or YAML file. Raises RequestError with its name."""
    data, path = read_preset("configuration", name, presets(), preset_folder())
    RunConfig.from_dict(data, str(path))
    return [GivenKey(key, value, str(path), source) for key, value in flat(current(data)).items()]


def value_of(text: str, where: Text) -> Any:
    """A value written as YAML in one line. Raises RequestError."""
    try:
        return parse_yaml(text)
    except ValueError:
        raise RequestError(f"{shown(text)} is not valid YAML", where=where) from None


def _override(text: str) -> GivenKey:
    key, equals, value = text.partition("=")
    where = (Key("overrides"), f" {shown(text)}")
    if not equals:
        raise RequestError("needs the form key=value, such as replay.tau=-2", where=where)
    if not value.strip():
        raise RequestError("the value is empty", where=where, hint="give a value, or leave the key out")
    return GivenKey(_known(key.strip(), where), value_of(value, where), where, "--set")


def load_sources(
    name: str | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    below: Sequence[Layer] = (),
) -> tuple[RunConfig, dict[str, str]]:
    """Merge the layers `below`, a preset or YAML file, `key=value` overrides and flags over the defaults; later ones
    win. Also returns the source of each given key. Raises RequestError with the key, its value and what is allowed.
    """
    layers = [*below, *([] if name is None else [file_layer(name, f"--config {name}")])]
    layers.append([_override(override) for override in overrides])
    layers.append([GivenKey(key, value, None, "command line") for key, value in (flags or {}).items()])
    data: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for layer in layers:
        later_wins(data, [given.key for given in layer])
        for given in layer:
            data[given.key], sources[given.key] = given.value, given.source
            RunConfig.from_dict(nested(data), given.where)
    return RunConfig.from_dict(nested(data)), {key: source for key, source in sources.items() if key in data}


def load_config(
    name: str | None = None,
    overrides: Sequence[str] = (),
    flags: Mapping[str, Any] | None = None,
    below: Sequence[Layer] = (),
) -> RunConfig:
    """Merge as `load_sources` does, but return only the configuration."""
    return load_sources(name, overrides, flags, below)[0]


def surroundings() -> list[Layer]:
    """Values of fastcar.yaml, overridden by the environment. Raises RequestError for unknown keys or wrong values."""
    layers = [file_layer(FILE, FILE)] if os.path.lexists(FILE) else []
    keys = {s.variable: s.key for s in settings().values()}
    layer: Layer = []
    for name, text in sorted(os.environ.items()):
        # An empty variable counts as unset.
        if not name.startswith(PREFIX) or name in OTHERS or not text.strip() or SERVICES.search(f"{name}={text}"):
            continue
        if name not in keys:
            last = name.removeprefix(PREFIX)
            near = [k for k in keys if k.endswith(f"_{last}")] or difflib.get_close_matches(name, keys, cutoff=0.75)
            hint = "unset it; fastcar config --where lists all keys (FASTCAR_REPLAY_TAU sets replay.tau)"
            hint = f"did you mean {' or '.join(near)}?" if near else hint
            raise RequestError(f"{name}: this environment variable sets no configuration key", hint=hint)
        layer.append(GivenKey(keys[name], value_of(text, name), name, name))
    return [*layers, layer]


def notices(sources: Mapping[str, str]) -> list[str]:
    """Notes on keys that the environment or fastcar.yaml has set, from the sources of `load_sources`."""
    named = {FILE: [k for k, s in sources.items() if s == FILE]}
    named["the environment"] = sorted(k for k, s in sources.items() if s.startswith(PREFIX))
    return [f"{source} sets {', '.join(keys)}" for source, keys in named.items() if keys]
