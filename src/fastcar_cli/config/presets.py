"""YAML files of settings: bundled presets by name, and the user's files by path."""

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

_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_SCALARS = {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?[0-9]+",
    "float": _NUMBER,
}
"""Plain scalars by tag, as in the core schema of YAML 1.2, except that 0o17 and 0x1f are strings."""


class _Loader(yaml.SafeLoader):
    """A safe loader for YAML 1.2 scalars that refuses aliases and repeated keys. PyYAML alone reads YAML 1.1, in which
    1e-1 is a string, 0123 is 83, 1:30 is 90 and `no` is false.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, list[Any]]] = {}  # type: ignore[misc]

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are refused", self.peek_event().start_mark)
        return super().compose_node(parent, index)


for _tag, _pattern in _SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), None)


def _float(loader: _Loader, node: yaml.ScalarNode) -> float:
    text = loader.construct_scalar(node)
    value = float(re.sub(r"\.(?=[iInN])", "", text))
    if math.isinf(value) and text[-1].isdigit():
        raise ValueError(f"{text} is too large for a number")
    return value


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    data: dict[Any, Any] = {}
    for key_node, value in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in data:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
        data[key] = loader.construct_object(value, deep=True)
    return data


_Loader.add_constructor("tag:yaml.org,2002:int", lambda loader, node: int(node.value))
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def parse_yaml(text: str) -> Any:
    """Parse YAML to plain data. Raises ValueError with a one-line message."""
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # For some scalars and keys PyYAML raises Python's own errors.
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as e:
        raise ValueError(" ".join(str(e).split())) from None


def preset_folder() -> Path:
    """The folder of the bundled presets: in the package, or beside it in a source checkout."""
    packaged = Path(str(resources.files("fastcar_cli"))) / "configs"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3] / "configs"


def presets() -> list[str]:
    """Names of the bundled presets."""
    return sorted(p.stem for p in preset_folder().glob("*.yaml"))


def fpga_presets() -> list[str]:
    """Names of the bundled accelerators."""
    return sorted(p.stem for p in (preset_folder() / "fpga").glob("*.yaml"))


def read_preset(what: str, name: str, names: Sequence[str], folder: Path) -> tuple[dict[str, Any], Path]:
    """The mapping in FOLDER/NAME.yaml, or in the file at path NAME, and the file's path. Errors begin with `what`."""
    path = Path(name)
    if "/" not in name and path.suffix not in (".yaml", ".yml"):
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            said = f"{what} {name}: unknown preset" + (f"; did you mean {near[0]!r}?" if near else "")
            raise RequestError(said, hint=f"presets: {', '.join(names)}; or give the path of a .yaml file")
        path = folder / f"{name}.yaml"
    text = read_text(path, f"{what} {name}")
    try:
        data = parse_yaml(text)
    except ValueError as e:
        raise RequestError(f"{what} {name} is not valid YAML: {e}") from None
    data = {} if data is None else data
    if not isinstance(data, dict):
        raise RequestError(f"{what} {name}: the top level is a {type(data).__name__}, expected a mapping of keys")
    return data, path
