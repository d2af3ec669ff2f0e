"""Which of the engine's two ways a decode goes: eager, or one CUDA graph a step. The rules are all here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from fastcar_cli.backends import TorchBackend
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels.gpu import installed

if TYPE_CHECKING:
    from fastcar_cli.decoding.engine import Decode


@dataclass(frozen=True)
class Path:
    """How the steps of a decode are run.

    name: `eager`, the step loop; `static`, the static step called from the host; `graph`, the static
    step captured once and replayed. ops: `torch` or `triton`, for the latter two. why: the rule that
    decided, for people.
    """

    name: Literal["eager", "static", "graph"]
    ops: Literal["torch", "triton"] = "triton"
    why: str = ""


def obstacle(decode: Decode, forced: Tensor | None, keep_logits: bool) -> str | None:
    """Why these steps can't be one CUDA graph; None where they can."""
    device = decode.model.device.type
    rules = (
        (device != "cuda", f"the device is {device}, a graph needs cuda"),
        (not installed(), "triton is not installed"),
        (not isinstance(decode.backend, TorchBackend), f"the backend is {decode.backend.name}"),
        (decode.settings.kernels != "torch", f"the kernels are {decode.settings.kernels}"),
        (forced is not None, "codes are given instead of drawn"),
        (keep_logits, "logits are kept"),
        (decode.settings.target is not None, "a replay ratio is kept, which moves the thresholds as it goes"),
        (decode.watch is not None, "every block is watched"),
        (decode.mark is not None, "parts of a pass are timed"),
        (decode.tokens < 2, "there is one token only"),
    )
    return next((why for hit, why in rules if hit), None)


def choose_path(decode: Decode, forced: Tensor | None, keep_logits: bool) -> Path:
    """The path of a decode by its `graph` option. Raises RequestError where `on` can't be honoured."""
    if decode.path is not None:
        return decode.path
    if decode.graph == "off":
        return Path("eager", why="runtime.graph is off")
    why = obstacle(decode, forced, keep_logits)
    if why is None:
        return Path("graph", why="a CUDA graph a step")
    if decode.graph == "on":
        raise RequestError(f"runtime.graph is on, but {why}", hint="allowed here: auto, off")
    return Path("eager", why=why)
