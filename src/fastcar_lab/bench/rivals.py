"""All rivals."""

from __future__ import annotations

from fastcar_lab.bench.llama_cpp import IK_LLAMA_CPP, LLAMA_CPP
from fastcar_lab.bench.openvino import OPENVINO
from fastcar_lab.bench.rival import Rival

RIVALS = {"llama_cpp": LLAMA_CPP, "ik_llama_cpp": IK_LLAMA_CPP, "openvino": OPENVINO}
"""By the name of their option."""


def chosen(*wanted: bool) -> tuple[Rival, ...]:
    """Those whose option, in the order of `RIVALS`, is given. Raises RequestError where a package is missing."""
    rivals = tuple(rival for rival, is_wanted in zip(RIVALS.values(), wanted, strict=True) if is_wanted)
    for rival in rivals:
        # Missing packages show before anything is timed.
        _ = rival.version
    return rivals
