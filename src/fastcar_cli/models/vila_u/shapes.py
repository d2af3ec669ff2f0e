"""The shapes of VILA-U 7B, for what is computed or timed without its files."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from fastcar_cli.models.vila_u.checkpoint import spec_of
from fastcar_cli.models.vila_u.network import ModelSpec


def full_configs() -> dict[str, Any]:
    """The config files of VILA-U 7B by part."""
    file = resources.files("fastcar_cli.models.vila_u") / "vila_u_7b.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def full_spec() -> ModelSpec:
    """The specification of VILA-U 7B."""
    return spec_of("vila-u-7b", Path(), **full_configs())
