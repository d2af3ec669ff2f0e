"""fastcar generates video with auto-regressive models, from text or from frames."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastcar_cli._version import __version__

if TYPE_CHECKING:
    from fastcar_cli.config.run_config import RunConfig
    from fastcar_cli.pipeline.pipeline import VideoPipeline
    from fastcar_cli.pipeline.pipeline import VideoPipeline as Pipeline
    from fastcar_cli.pipeline.videos import Frame, Video

__all__ = ["Frame", "Pipeline", "RunConfig", "Video", "VideoPipeline", "__version__"]


def __getattr__(name: str) -> Any:
    # Imported on first use, because torch and pydantic take long to import.
    if name in ("Pipeline", "VideoPipeline", "Frame", "Video"):
        from fastcar_cli.pipeline import pipeline

        return getattr(pipeline, "VideoPipeline" if name == "Pipeline" else name)
    if name == "RunConfig":
        from fastcar_cli.config.run_config import RunConfig

        return RunConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
