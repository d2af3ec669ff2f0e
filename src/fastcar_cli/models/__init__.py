"""Networks as plain torch modules. `load` is imported at first use, so that importing a network stays light."""

from __future__ import annotations

from typing import Any

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        import importlib

        return importlib.import_module("fastcar_cli.checkpoints.open").load
    if name == "dummy":
        # Moved to another package; scripts still import it from here.
        from importlib.metadata import entry_points

        for entry in entry_points(group="fastcar.models", name=name):
            return entry.load()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
