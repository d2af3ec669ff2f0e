"""Optional packages, and a clear error if one is missing."""

from __future__ import annotations

import importlib
from typing import Any

from fastcar_cli.errors import RequestError, Text

EXTRAS = {
    **{"lpips": "lpips", "matplotlib": "plots", "pyarrow": "parquet", "ray": "ray", "scipy": "claims"},
    **dict.fromkeys(("llama_cpp", "gguf"), "llama-cpp"),
    **{"ik_llama_cpp": "ik-llama-cpp", "openvino": "openvino"},
}
"""Packages, and the extras in pyproject.toml that install them."""


def need(module: str, what: Text) -> Any:
    """Import a module of an optional package. Raises RequestError: `what` (a plot, a metric) needs its extra."""
    try:
        return importlib.import_module(module)
    except (ImportError, RuntimeError) as e:  # the latter of a torchvision that was built for another torch
        extra, why = EXTRAS[module.split(".")[0]], str(e).partition("\n")[0]
        hint = f"pip install 'fastcar[{extra}]'"
        raise RequestError((what, f" needs the extra fastcar[{extra}]: {why}"), hint=hint) from None
