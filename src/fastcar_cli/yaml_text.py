"""YAML to plain data, with every fault of a text as one kind of error."""

from __future__ import annotations

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    loader.flatten_mapping(node)
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} stands twice", key_node.start_mark)
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
