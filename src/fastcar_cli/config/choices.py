"""Allowed words of settings, for the configuration, errors, help texts and docs."""

from __future__ import annotations

from typing import Any, Literal, get_args

Backend = Literal["torch", "fpga-sim"]
ContextPolicy = Literal["stop", "roll"]
Controller = Literal["global", "layer"]
Draft = Literal["off", "frame", "jacobi", "auto"]
Dtype = Literal["auto", "float32", "bfloat16", "float16", "int8", "int4"]
Eligible = Literal["codes", "all"]
Executor = Literal["auto", "torch", "native", "graph"]
Gate = Literal["row", "pair"]
KVDtype = Literal["auto", "int8"]
PixelDtype = Literal["float32", "bfloat16"]
Score = Literal["tas", "input", "attention", "query", "random", "oracle"]
TasDefinition = Literal["attention", "released"]


def values(choice: Any) -> tuple[str, ...]:
    """The words of a Literal type, optional or not; none for other types."""
    return tuple(v for kind in (choice, *get_args(choice)) for v in get_args(kind) if isinstance(v, str))


AXES = {"score": values(Score), "gate": values(Gate), "draft": values(Draft), "backend": values(Backend)}
"""The words of a sweep's axes."""
