"""Specifications from plain data, of whichever kind they are."""

from __future__ import annotations

from typing import Any

from fastcar_cli.models.cosmos.network import CosmosSpec
from fastcar_cli.models.ivideogpt.network import IVideoGPTSpec
from fastcar_cli.models.network import Spec
from fastcar_cli.models.vila_u.network import ModelSpec


def spec_class(data: Any) -> type[ModelSpec] | type[IVideoGPTSpec] | type[CosmosSpec]:
    """The kind of specification that plain data are of."""
    if not isinstance(data, dict) or "tokenizer" not in data:
        return ModelSpec
    return CosmosSpec if "context" in data else IVideoGPTSpec


def spec_from_dict(data: dict[str, Any]) -> Spec:
    """From what `Spec.to_dict` gave, after a round trip through JSON. Raises TypeError or ValueError otherwise.

    What a model may lack is not named by folders that were written before it was thought of.
    """
    return spec_class(data)(**data)
