"""Chooses the executor of a batch."""

from __future__ import annotations

from fastcar_cli.config import choices
from fastcar_cli.decoding.batch import Batch, DecodeSettings
from fastcar_cli.decoding.executors import graph, native, self_check
from fastcar_cli.decoding.executors.executor import Executor
from fastcar_cli.decoding.executors.plain import PlainExecutor
from fastcar_cli.decoding.replay.scores import DEFAULT
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels.native import MOST_ROWS, instruction_set
from fastcar_cli.models.network import Network


def row_limit(model: Network, settings: DecodeSettings) -> int:
    """Maximum rows that can be decoded at once with the requested executor and drafts."""
    if model.device.type == "cuda" and settings.executor in ("auto", "graph"):
        return graph.row_limit(model) // settings.draft.fixed
    # The native kernels limit the input tokens of a pass: rows times (draft length + given tokens).
    return MOST_ROWS // (settings.draft.window + model.spec.layout.together)


def choose(batch: Batch) -> tuple[Executor, str]:
    """Choose the executor of a batch by its `executor` setting; returns it and the reason.

    `auto` takes the native kernels on a CPU and a CUDA graph on a GPU if the rules allow it, else plain torch, which
    supports everything. Raises RequestError if the requested one is unavailable.
    """
    name, device, replay, seen = batch.settings.executor, batch.model.device.type, batch.replay, batch.observers
    if name not in (names := choices.values(choices.Executor)):
        raise RequestError("unknown", key="executor", value=name, allowed=", ".join(names))
    rules = (
        (batch.backend.name != "torch", f"only torch supports the backend {batch.backend.name}"),
        (seen.watch is not None or seen.on_block is not None, "only torch returns the results of each block"),
        (replay is not None and replay.rule.score != DEFAULT, f"only torch has the score {batch.settings.rule.score}"),
        (seen.mark is not None, "only torch times parts of a pass"),
    )
    obstacle = next((why for applies, why in rules if applies), None)
    if name == "native" or (name == "auto" and device == "cpu"):
        why = obstacle or native.obstacle(batch.model)
        if why is None:
            return native.NativeExecutor(batch, batch.most_inputs), f"native kernels ({instruction_set()})"
    elif name == "graph" or (name == "auto" and device == "cuda"):
        why = obstacle or graph.obstacle(batch)
        if why is None and name == "auto":
            why = self_check.unproven(batch)
        if why is None:
            return graph.GraphExecutor(batch, graph.inputs_limit(batch)), "a CUDA graph per pass"
    else:
        why = "requested" if name == "torch" else f"the device is {device}"
    if name not in ("auto", "torch"):
        other = name == "graph" and device == "cpu" and not obstacle and native.obstacle(batch.model) is None
        raise RequestError(
            why or "", key="executor", value=name, allowed="auto, native, torch" if other else "auto, torch"
        )
    return PlainExecutor(batch), why
