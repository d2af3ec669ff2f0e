"""YAML files of settings: presets that are shipped, found by name, and the user's own."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar

import yaml

from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import read_text

MOST_NODES = 100_000
"""Values of a document with its aliases written out: a few lines of aliases of aliases may stand for billions."""

_NUMBER = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_CORE: dict[str, tuple[re.Pattern[str], str]] = {
    "null": (re.compile(r"~|null|Null|NULL|"), "~nN"),
    "bool": (re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    "int": (re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), "-+0123456789"),
    "float": (_NUMBER, "-+.0123456789"),
    "merge": (re.compile("<<"), "<"),
}
"""Plain scalars of YAML 1.2's core schema by tag, with the characters that they begin with."""


class _Loader(yaml.SafeLoader):
    """Safe YAML that reads scalars as YAML 1.2 does and refuses a key given twice, and aliases without an end.

    PyYAML alone reads YAML 1.1, where 1e-1 is a text, 0123 is 83, 1:30 is 90 and `no` is false.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {}  # type: ignore[misc]

    def get_single_node(self) -> Any:
        node = super().get_single_node()
        if node is not None and _size(node, {}) > MOST_NODES:
            raise yaml.composer.ComposerError(None, None, "its aliases stand for too many values", node.start_mark)
        return node


for _tag, (_pattern, _first) in _CORE.items():
    _whole = re.compile(rf"(?:{_pattern.pattern})\Z")
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _whole, ["", *_first] if _tag == "null" else [*_first])


def _size(node: Any, known: dict[int, float]) -> float:
    """Values in a node and below it; without an end where it holds itself."""
    if id(node) not in known:
        known[id(node)] = math.inf
        parts = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(node)]


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node)
    value = float(re.sub(r"\.(?=[iInN])", "", text))
    if math.isinf(value) and text[-1].isdigit():
        raise ValueError(f"{text} is too large for a number")
    return value


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return {loader.construct_object(k, deep=True): loader.construct_object(v, deep=True) for k, v in node.value}


_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("tag:yaml.org,2002:merge", lambda loader, node: "<<")
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_yaml(text: str) -> Any:
    """Plain data of a YAML text. Raises ValueError with one line on what is wrong with it."""
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # Of odd scalars and keys PyYAML lets through what Python says.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as e:
        raise ValueError(" ".join(str(e).split())) from None


def preset_folder() -> Path:
    """Where the shipped presets are: in the package, or beside it in a source checkout."""
    packaged = Path(str(resources.files("fastcar_cli"))) / "configs"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "configs"


def presets() -> list[str]:
    """Names of the shipped presets."""
    return sorted(p.stem for p in preset_folder().glob("*.yaml"))


def fpga_presets() -> list[str]:
    """Names of the shipped accelerators."""
    return sorted(p.stem for p in (preset_folder() / "fpga").glob("*.yaml"))


def read_preset(what: str, name: str, names: Sequence[str], folder: Path) -> tuple[dict[str, Any], Path]:
    """The mapping in FOLDER/NAME.yaml for a name without a path, else in the file of that path, and its path.

    `what` begins the sentence of a RequestError: what is requested, without the name.
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
