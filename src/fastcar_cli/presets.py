"""YAML files of settings: presets that are shipped, found by name, and the user's own."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from fastcar_cli.errors import RequestError
from fastcar_cli.files import read_text


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
