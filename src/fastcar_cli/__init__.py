"""fastcar: video from text with auto-regressive models, decoded with cache attentive replay."""

from __future__ import annotations

import os

# Weights in 2 MiB pages are read about a seventh faster. torch reads this before its first large allocation.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastcar_cli.config import RunConfig
    from fastcar_cli.pipeline import Frame, TextToVideo

__version__ = "0.1.0"
__all__ = ["Frame", "RunConfig", "TextToVideo", "__version__"]


def __getattr__(name: str) -> Any:
    # torch and pydantic are imported when they are used, not with the package.
    if name in ("TextToVideo", "Frame"):
        from fastcar_cli import pipeline

        return getattr(pipeline, name)
    if name == "RunConfig":
        from fastcar_cli.config import RunConfig

        return RunConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
