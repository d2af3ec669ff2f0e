"""The decode engine: step loop, KV cache, replay, sampling; `trace` returns its results for given codes."""

from typing import Any

__all__ = ["Trace", "trace"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from fastcar_cli.decoding import tracing

        return getattr(tracing, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
