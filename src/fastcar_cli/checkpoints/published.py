"""Shapes of released models by name."""

from __future__ import annotations

from fastcar_cli.checkpoints.names import COSMOS, IVIDEOGPT
from fastcar_cli.models.cosmos import shapes as cosmos
from fastcar_cli.models.ivideogpt import shapes as ivideogpt
from fastcar_cli.models.network import Spec
from fastcar_cli.models.vila_u.shapes import full_spec


def published_spec(name: str) -> Spec | None:
    """The shapes of a released model as they are published; None for any other name."""
    if name in COSMOS:
        return cosmos.published(name)
    if name in IVIDEOGPT:
        return ivideogpt.published(name)
    return full_spec() if name == "vila-u-7b" else None
