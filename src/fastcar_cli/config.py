"""A run as one validated object: built-in defaults < YAML < `--set` < flags.

None stands for "what the model prefers"; the pipeline resolves it.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from fastcar_cli.decoding.tau import OFF, Tau
from fastcar_cli.errors import Key, RequestError, Text
from fastcar_cli.files import read_text

DEVICES = r"^(auto|cpu|cuda(:\d+)?)$"
RENAMED = {"runtime.kernels": "runtime.executor"}
"""Keys of earlier versions, which files and recipes may still have."""

LARGEST = 2**31 - 1
"""Largest number of tokens, codes or frames; what memory and model allow is told later."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Generation(_Section):
    """What to make."""

    frames: int | None = Field(None, ge=1, le=LARGEST, description="frames of the video")
    seed: int | None = Field(None, ge=0, lt=2**63, description="seed of the first video; drawn where none is given")
    samples: int = Field(1, ge=1, le=1024, description="videos per prompt or input; seeds count up")


class Sampling(_Section):
    """How codes are drawn."""

    cfg: float | None = Field(None, ge=0, le=1000, description="guidance scale; 1 is none")
    temperature: float | None = Field(None, ge=0, le=1000, description="0 takes the likeliest code")
    top_k: int | None = Field(None, ge=0, le=LARGEST, description="codes kept; 0 keeps all")
    top_p: float | None = Field(None, gt=0, le=1, description="probability mass kept")
    first_frame_top_p: float | None = Field(None, gt=0, le=1, description="top_p of the first frame")

    @field_validator("temperature", mode="after")
    @classmethod
    def _not_tiny(cls, value: float | None) -> float | None:
        if value is not None and 0 < value < 0.001:
            raise ValueError("0 for the likeliest code, or at least 0.001")
        return value


class Replay(_Section):
    """When an MLP is replayed."""

    tau: Annotated[InstanceOf[Tau], BeforeValidator(Tau.read)] = Field(
        OFF, description="'off', a number, or a list with a number or 'off' a layer"
    )
    ratio: float | None = Field(
        None, gt=0, lt=1, allow_inf_nan=False, description="replay ratio that a controller keeps, instead of tau"
    )
    controller: Literal["global", "layer"] = Field(
        "layer", description="what keeps the ratio: each layer, or all layers with one tau"
    )
    score: Literal["tas", "input", "attention", "query", "random", "oracle"] = Field(
        "tas", description="what tau is compared with: tas, input, attention, query, random or oracle"
    )
    tas: Literal["attention", "released"] | None = Field(None, description="definition of the temporal attention score")
    gate: Literal["row", "pair"] | None = Field(None, description="who decides: each row, or a guided pair")
    max_age: int | None = Field(None, ge=1, le=LARGEST, description="most consecutive replays of one cached MLP output")
    eligible: Literal["codes", "all"] = Field(
        "codes", description="tokens that may replay; `codes`: frame tokens only; `all`: frame delimiters too"
    )

    @field_validator("ratio", mode="after")
    @classmethod
    def _one_of_both(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and not info.data.get("tau", OFF).off:
            raise ValueError(f"none beside 'replay.tau' {info.data['tau']}; a ratio is kept by moving tau")
        return value


class Attention(_Section):
    """Which earlier tokens are attended to."""

    window: int | None = Field(None, ge=1, le=LARGEST, description="last tokens attended to; none: all")
    sinks: int = Field(4, ge=0, le=LARGEST, description="first prompt tokens kept beside a window")
    kv_dtype: Literal["auto", "int8"] = Field("auto", description="keys and values: auto (as the model), int8")

    @field_validator("window", mode="before")
    @classmethod
    def _window(cls, value: Any) -> Any:
        if isinstance(value, str) and value != "off":
            try:
                return int(value)
            except ValueError:
                raise ValueError("a number of tokens, or 'off'") from None
        return None if value == "off" or value is False else value


class Backend(_Section):
    """Who executes the MLPs."""

    name: Literal["torch", "fpga-sim"] = Field("torch", description="executor of the MLPs")
    preset: str = Field("edge-small", min_length=1, description="accelerator of fpga-sim: a preset or a YAML file")


class Runtime(_Section):
    """Where and in what precision."""

    device: str = Field("auto", pattern=DEVICES, description="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8", "int4"] = Field(
        "auto",
        description="auto, float32, bfloat16, float16, int8 (block matrices in int8, CPU); converted: its own",
    )
    executor: Literal["auto", "torch", "native", "graph"] = Field(
        "auto",
        description="who runs a decode pass: torch, native (CPU kernels), graph (CUDA); auto: the fastest",
    )
    threads: int | None = Field(None, ge=1, le=1024, description="CPU threads; default all")


class Video(_Section):
    """How frames are written."""

    fps: int | None = Field(None, ge=1, le=120, description="frames a second")
    scale: int = Field(1, ge=1, le=16, description="enlargement of the written frames")


class RunConfig(_Section):
    """Everything a run is decided by."""

    model: str = Field("mini", min_length=1, description="bundled name, hub name or model folder")
    generation: Generation = Generation()
    sampling: Sampling = Sampling()
    replay: Replay = Replay()
    attention: Attention = Attention()
    backend: Backend = Backend()
    runtime: Runtime = Runtime()
    video: Video = Video()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: Text | None = "configuration") -> RunConfig:
        """Validate plain data. Raises RequestError that says where, with which key and value, and what is allowed.

        Without `where` the keys are parameters that the caller gave one by one.
        """
        try:
            return cls.model_validate(current(data))
        except ValidationError as e:
            raise _explain(e, where) from None

    def to_dict(self) -> dict[str, Any]:
        """Plain data that `from_dict` reads."""
        data = self.model_dump(mode="python")
        data["replay"]["tau"] = tau_to_plain(self.replay.tau)
        return data

    def changed(self, keys: Mapping[str, Any]) -> RunConfig:
        """The same with other values of some dotted keys. Raises as `from_dict` does."""
        data = self.to_dict()
        for key, value in keys.items():
            _put(data, key, value, "configuration")
        return RunConfig.from_dict(data)

    def to_yaml(self) -> str:
        """YAML that `load_config` reads."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)


def tau_to_plain(tau: Tau) -> Any:
    """Thresholds as a configuration file has them, where null would stand for "not given"."""
    plain = tau.plain()
    values = ["off" if v is None else v for v in (plain if isinstance(plain, list) else [plain])]
    return values if isinstance(plain, list) else values[0]


def allowed_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> dict[str, str]:
    """Every dotted key with its description."""
    keys: dict[str, str] = {}
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            keys |= allowed_keys(kind, f"{prefix}{name}.")
        else:
            keys[prefix + name] = field.description or ""
    return keys


class _Shown(reprlib.Repr):
    """Representations short enough for an error, whatever was given."""

    maxother = maxstring = 80
    maxlong = 40

    def repr_int(self, x: int, level: int) -> str:
        # Numbers of thousands of digits have no text at all.
        return super().repr_int(x, level) if x.bit_length() < 2**12 else f"<a number of {x.bit_length()} bits>"


def shown(value: Any) -> str:
    """A text as it is or another value's representation, cut in the middle where it is long."""
    text = _Shown().repr(value)
    return value if isinstance(value, str) and len(value) < _Shown.maxstring - 2 else text


def _unknown(where: Text | None, key: str, allowed: Sequence[str]) -> RequestError:
    last = key.rpartition(".")[2]
    near = difflib.get_close_matches(key, allowed, n=1, cutoff=0.5) or [k for k in allowed if k.endswith(f".{last}")]
    hint = f"did you mean {near[0]!r}?" if near else f"allowed: {', '.join(sorted(allowed_keys()))}"
    return RequestError(f"unknown key {shown(key)!r}", where=where, hint=hint)


def _explain(error: ValidationError, where: Text | None) -> RequestError:
    """The first problem of a validation error."""
    problem = error.errors()[0]
    location = [str(p) for p in problem["loc"]]
    keys = allowed_keys()
    # pydantic appends the member of a union that failed; only what is a key of ours is shown.
    while len(location) > 1 and problem["type"] != "extra_forbidden" and ".".join(location) not in keys:
        if any(k.startswith(".".join(location) + ".") for k in keys):
            break
        location.pop()
    key = ".".join(location)
    if problem["type"] == "extra_forbidden":
        return _unknown(where, key, [*keys, *{k.split(".")[0] for k in keys}])
    allowed = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    value = _Shown().repr(problem.get("input"))
    return RequestError("not allowed", key=key, value=value, where=where, allowed=allowed, hint=keys.get(key))


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


def parse_yaml(text: str) -> Any:
    """Plain data of a YAML text. Raises ValueError with one line on what is wrong with it."""
    try:
        return yaml.load(text, Loader=_Loader)
    # Of odd scalars and keys PyYAML lets through what Python says: dates that do not exist, numbers without digits.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as e:
        raise ValueError(" ".join(str(e).split())) from None


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def preset_folder() -> Path:
    """Where the shipped presets are: in the package, or beside it in a source checkout."""
    packaged = Path(str(resources.files("fastcar_cli"))) / "configs"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[2] / "configs"


def presets() -> list[str]:
    """Names of the shipped presets."""
    return sorted(p.stem for p in preset_folder().glob("*.yaml"))


def flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested sections as dotted keys."""
    out: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out


def read_preset(what: str, name: str, names: Sequence[str], folder: Path) -> tuple[dict[str, Any], Path]:
    """The mapping in FOLDER/NAME.yaml for a name without a path, else in the file of that path, and its path.

    `what` begins the sentence of a RequestError: what was asked for, the name left out.
    """
    path = Path(name)
    if "/" not in name and path.suffix not in (".yaml", ".yml"):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise RequestError(
                f"{what} {name}: no preset of that name" + (f"; did you mean {near[0]!r}?" if near else ""),
                hint=f"presets: {', '.join(names)}; or give the path of a .yaml file",
            )
        path = folder / f"{name}.yaml"
    text = read_text(path, f"{what} {name}")
    try:
        data = parse_yaml(text)
    except ValueError as e:
        raise RequestError(f"{what} {name} is not valid YAML: {e}") from None
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise RequestError(f"{what} {name}: the top level is a {type(data).__name__}, needed: a mapping of keys")
    return data, path


def _put(data: dict[str, Any], key: str, value: Any, where: Text) -> None:
    *sections, last = key.split(".")
    for section in sections:
        data = data.setdefault(section, {})
        if not isinstance(data, dict):
            raise RequestError(f"{section!r} is no section", where=where)
    data[last] = value


def later_wins(data: dict[str, Any], keys: Iterable[str]) -> None:
    """Drop from `data` (nested or dotted) what a later layer with these dotted keys replaces.

    `replay.tau` and `replay.ratio` exclude each other: a layer that gives one takes away the other of
    the layers before.
    """
    given = set(keys)
    for key, other in (("replay.tau", "ratio"), ("replay.ratio", "tau")):
        if key in given and f"replay.{other}" not in given:
            data.pop(f"replay.{other}", None)
            section = data.get("replay")
            if isinstance(section, dict):
                section.pop(other, None)


def current(data: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested configuration data with the keys of today."""
    data = {k: dict(v) if isinstance(v, dict) else v for k, v in data.items()}
    for old, new in RENAMED.items():
        section, _, last = old.partition(".")
        if isinstance(data.get(section), dict) and last in data[section]:
            data[section].setdefault(new.partition(".")[2], data[section].pop(last))
    return data


def load_config(
    name: str | None = None, overrides: Sequence[str] = (), flags: Mapping[str, Any] | None = None
) -> RunConfig:
    """Merge a preset or YAML file, `key=value` overrides and flags (dotted keys) over the defaults."""
    data: dict[str, Any] = {}
    if name is not None:
        data, path = read_preset("configuration", name, presets(), preset_folder())
        RunConfig.from_dict(data, str(path))
        data = current(data)
    later_wins(data, [o.partition("=")[0].strip() for o in overrides])
    for override in overrides:
        key, equals, text = override.partition("=")
        where = (Key("overrides"), f" {shown(override)}")
        if not equals:
            raise RequestError("needs the form key=value, such as replay.tau=-2", where=where)
        key = RENAMED.get(key.strip(), key.strip())
        if key not in allowed_keys():
            raise _unknown(where, key, [*allowed_keys()])
        try:
            value = parse_yaml(text)
        except ValueError:
            raise RequestError(f"{shown(text)} is not valid YAML", where=where) from None
        _put(data, key, value, where)
        RunConfig.from_dict(data, where)
    later_wins(data, flags or {})
    for key, value in (flags or {}).items():
        before = {k: dict(v) if isinstance(v, dict) else v for k, v in data.items()}
        _put(before, key, value, Key(key))
        RunConfig.from_dict(before, None)
        data = before
    return RunConfig.from_dict(data)
