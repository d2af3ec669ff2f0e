"""Networks as plain torch modules, and the reading of checkpoints.

`load` is imported at first use, so that importing a module of networks stays light.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from fastcar_cli.models.loading.registry import load

        return load
    if name == "dummy":
        # Its former place, where people's scripts look for it. By name: nothing here needs the laboratory.
        return import_module("fastcar_lab.dummy.vila_u")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
