"""Specifications from plain data, of whichever kind they are."""

from __future__ import annotations

from typing import Any

from fastcar_cli.models.ivideogpt import IVideoGPTSpec
from fastcar_cli.models.network import Spec
from fastcar_cli.models.video_model import ModelSpec


def spec_from_dict(data: dict[str, Any]) -> Spec:
    """From what `Spec.to_dict` gave, after a round trip through JSON.

    Raises KeyError, TypeError or ValueError for anything else.
    """
    return IVideoGPTSpec.from_dict(data) if "tokenizer" in data else ModelSpec.from_dict(data)
