"""The step loop: prefill, then one visual position a step for all rows.

The one loop of the project. It keeps the order of things; how a pass is executed stands behind
`Executor`, when an MLP replays is `Replay`'s.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor

from fastcar_cli.decoding import graph, native, self_check
from fastcar_cli.decoding.executor import Executor, HostExecutor, prefill
from fastcar_cli.decoding.plain import PlainExecutor
from fastcar_cli.decoding.scores import DEFAULT
from fastcar_cli.decoding.state import EXECUTORS, Batch, Step
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels.native import MOST_ROWS, instruction_set
from fastcar_cli.models.network import Network


def synchronise(device: torch.device) -> None:
    """Wait until a GPU has done what it was given, so that a clock tells the truth; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Decode(Batch):
    """A batch of videos and the loop that decodes it; the arguments are those of `Batch`.

    Attributes:
        executor: runs the passes, chosen when decoding begins.
        executor_name: its name, None before.
        why: the reason for the choice, for people.

    """

    executor: Executor | None = None
    executor_name: str | None = None
    why: str = ""

    @torch.inference_mode()
    def start(self) -> Tensor:
        """Choose the executor and run the prompts; returns their last hidden states, [rows, width]."""
        if self.executor is None:
            self.executor, self.why = choose(self)
        self.executor_name = self.executor.name
        began = time.perf_counter()
        hidden = self.executor.prefill() if isinstance(self.executor, HostExecutor) else prefill(self)
        synchronise(hidden.device)
        self.clock.prefill = time.perf_counter() - began
        return hidden

    def release(self) -> None:
        """Let go of the caches; codes, decisions and counts stay."""
        self.executor = None
        self.cache.release()
        if self.replay is not None:
            self.replay.release()

    @torch.inference_mode()
    def steps(self, forced: Tensor | None = None, keep_logits: bool = False, first: int = 0) -> Iterator[Step]:
        """Decode every position in turn. `forced` codes [P, T*N, depth] are taken instead of drawn ones.

        With `first` above 0 the positions before it are not decoded but made up, see `fast_forward`.
        """
        if forced is not None:
            self.give(forced)
        self.keep_logits = keep_logits
        hidden = self.start()
        if first:
            self.fast_forward(first - 1)
        assert self.executor is not None
        began, device = time.perf_counter(), hidden.device
        for index in range(first, self.tokens):
            if index:
                step = self.executor.step(index)
            else:
                source = self.executor if isinstance(self.executor, HostExecutor) else PlainExecutor(self)
                step = source.draw(hidden, 0)
            # The host waits for a GPU once a frame only, when the pixels are wanted.
            timed = device.type != "cuda" or (index + 1) % self.frame == 0
            if timed:
                synchronise(device)
                self.clock.decode += time.perf_counter() - began
            yield step
            if timed:
                began = time.perf_counter()


def row_limit(model: Network, executor: str) -> int:
    """Rows that can be decoded at once without giving up the executor asked for."""
    if model.device.type == "cuda" and executor in ("auto", "graph"):
        return graph.row_limit(model.device)
    return MOST_ROWS


def choose(batch: Batch) -> tuple[Executor, str]:
    """The executor of a batch by its `executor` setting, and why.

    `auto` takes the native kernels on a CPU and a CUDA graph on a GPU where the rules allow it, else plain
    torch, which can do everything. Raises RequestError where the one asked for can't be had.
    """
    asked, device, replay = batch.settings.executor, batch.model.device.type, batch.replay
    if asked not in EXECUTORS:
        raise RequestError("unknown", key="executor", value=asked, allowed=", ".join(EXECUTORS))
    rules = (
        (batch.backend.name != "torch", f"the backend is {batch.backend.name}"),
        (batch.watch is not None or batch.on_block is not None, "every block is watched"),
        (replay is not None and replay.rule.score != DEFAULT, f"the score is {batch.settings.rule.score}"),
        (batch.mark is not None, "parts of a pass are timed"),
    )
    shared = next((why for hit, why in rules if hit), None)
    if asked == "native" or (asked == "auto" and device == "cpu"):
        why = shared or native.obstacle(batch.model)
        if why is None:
            return native.NativeExecutor(batch), f"native kernels ({instruction_set()})"
    elif asked == "graph" or (asked == "auto" and device == "cuda"):
        why = shared or graph.obstacle(batch)
        if why is None and asked == "auto":
            why = self_check.unproven(batch)
        if why is None:
            return graph.GraphExecutor(batch), "a CUDA graph a step"
    else:
        why = "asked for" if asked == "torch" else f"the device is {device}"
    if asked not in ("auto", "torch"):
        raise RequestError(why or "", key="executor", value=asked, allowed="auto, torch")
    return PlainExecutor(batch), why
