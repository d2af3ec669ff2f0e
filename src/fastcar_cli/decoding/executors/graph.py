"""The executor for GPUs: a whole pass without the host, captured as a CUDA graph and launched again for each pass.

The pass takes its first input token of each video from a counter on the device, runs the decoder with Triton kernels,
samples the codes and advances the counter. Caches, codes and decisions are the batch's own tensors. After a pass with
drafts the host waits, counts the accepted ones and sets the counter for the next pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fastcar_cli.decoding.batch import Batch, Step
from fastcar_cli.decoding.executors.executor import Executor, Passed
from fastcar_cli.decoding.inputs import Inputs, InputsOnDevice
from fastcar_cli.errors import Key, RunError
from fastcar_cli.kernels.gpu import installed, most_rows
from fastcar_cli.models.network import Network
from fastcar_cli.weights.formats import multiplied_by

if TYPE_CHECKING:
    from fastcar_cli.decoding.executors.triton_ops import TritonOps


PASSES = 3  # passes to time a graph
_MEASURED: dict[Any, float] = {}  # seconds of a pass by device, timer, model, format, caches and input tokens

Timer = Callable[[int, Callable[[], Passed]], tuple[Passed, float]]
"""Runs a pass of this many input tokens per video; returns its result and its seconds."""


def _by_events(count: int, launch: Callable[[], Passed]) -> tuple[Passed, float]:
    """A `Timer` with CUDA events; with drafts it takes the host's time, since the host waits for their results."""
    torch.cuda.synchronize()
    began, start, end = time.perf_counter(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    passed = launch()
    end.record()
    end.synchronize()
    return passed, time.perf_counter() - began if count > 1 else start.elapsed_time(end) / 1e3


def row_limit(model: Network) -> int:
    """Maximum rows that the kernels support on the CUDA device of a model, in its dtype."""
    properties = torch.cuda.get_device_properties(model.device)
    return most_rows(getattr(properties, "shared_memory_per_block_optin", 48 * 1024), model.dtype.itemsize)


def inputs_limit(batch: Batch) -> int:
    """Maximum input tokens per video in a pass of this batch."""
    most = 1 if batch.settings.draft.kind == "off" else batch.settings.draft.window
    return 1 if most == 1 else max(1, min(most, row_limit(batch.model) // batch.rows, batch.cache.most_inputs))


def obstacle(batch: Batch) -> str | None:
    """Why a step of this batch can't be one CUDA graph; None if it can."""
    device = batch.model.device
    if device.type != "cuda":
        return f"the device is {device.type}, but a CUDA graph needs cuda"
    if not installed():
        return "triton is not installed"
    most = row_limit(batch.model)
    rules = (
        (batch.rows > most, f"the batch has {batch.rows} rows; the CUDA graph supports at most {most} on this device"),
        (batch.model.spec.decoder.source > 0, "the CUDA graph does not support cross-attention"),
        (batch.draws.keep_logits, "the CUDA graph returns no logits"),
        (batch.settings.kv_dtype != "auto", f"the CUDA graph does not support {batch.settings.kv_dtype} KV caches"),
        (batch.settings.rule.target is not None, "the CUDA graph does not support a target replay ratio"),
        (batch.draws.tokens < 2, "the video has only one token"),
    )
    return next((why for hit, why in rules if hit), None)


class GraphExecutor(Executor):
    """Runs passes of a batch with Triton kernels: with `capture` as CUDA graphs, else called from the host.

    A graph takes one input token of each video, or a power of two up to `most_inputs`. Raises RunError if the
    kernels don't compile or a graph can't be captured.
    """

    name = "graph"

    def __init__(self, batch: Batch, most_inputs: int = 1, capture: bool = True, timer: Timer | None = None) -> None:
        super().__init__(batch)
        self._timer = timer or (_by_events if capture else None)
        self.seconds: dict[int, float] = {}
        self._put_back = None if batch.replay is None else batch.replay.holding()
        self.most_inputs = min(most_inputs, batch.cache.most_inputs)
        self._capture = capture
        device = batch.model.device
        self._first = torch.zeros(batch.prompts.videos, dtype=torch.int64, device=device)
        self._drafts = torch.arange(self.most_inputs, device=device)
        # The value of `_first` after a pass.
        self._next: tuple[int, ...] | None = None
        self._launches: dict[int, tuple[TritonOps, Callable[[], Passed]]] = {}

    @torch.inference_mode()
    def step(self, inputs: Inputs) -> Step:
        """See `Executor.step`. The host does not wait if the inputs are the tokens after the last pass's first ones."""
        batch = self._batch
        if inputs.first != self._next:
            self._first.copy_(self._first.new_tensor(inputs.first))
        self._next = tuple(t + 1 for t in inputs.first)
        count, auto = min(1 << (inputs.count - 1).bit_length(), self.most_inputs), batch.settings.draft.kind == "auto"
        # Near the end of a video fewer tokens are left than a captured graph takes: its samples after them are unused.
        if not auto or inputs.count == batch.draws.limit - min(inputs.first) - 1:
            count = min((size for size in self._launches if size >= inputs.count), default=count)
        if count not in self._launches:
            # Triton is optional, and slow to import.
            from fastcar_cli.decoding.executors.triton_ops import TritonOps

            began, ops = time.perf_counter(), TritonOps(batch, count)
            launch = self._captured(ops) if self._capture else partial(self._run, ops)
            self._launches[count] = ops, launch
            if auto and self._timer is not None:
                shape = batch.model.spec, batch.model.weight_format, batch.cache.k.shape, count
                key = self._first.device, self._timer, shape
                if key not in _MEASURED:
                    _MEASURED[key] = min(self._seconds(ops, launch, self._timer) for _ in range(PASSES))
                self.seconds[count] = _MEASURED[key]
            batch.clock.capture += time.perf_counter() - began
        ops, launch = self._launches[count]
        self._passed, batch.draws.latent = launch(), None
        return Step(inputs, batch.draws, ops.hidden[:, : inputs.count], None)

    def advance(self, inputs: Inputs, accepted: tuple[int, ...], record: bool = True) -> None:
        """See `Executor.advance`; a pass of one token has recorded its decisions itself."""
        if self._put_back is not None and not record and self._passed.flags is None:
            self._put_back(inputs)
        super().advance(inputs, accepted, record)

    def logits(self, x: Tensor, d: int) -> Tensor:
        """See `Executor.logits`; with the kernels once a pass has run."""
        if not self._launches:
            return super().logits(x, d)
        ops, _ = next(iter(self._launches.values()))
        return ops.logits(x, d)[: len(x)]

    def _run(self, ops: TritonOps) -> Passed:
        """Run one pass from the tokens in `_first` on and increment them; all results are in `ops` and the batch.

        A single input is final, so the pass itself records its decisions.
        """
        batch, model, replay = self._batch, self._batch.model, self._batch.replay
        draws, added, rows, count = batch.draws, batch.places.added, batch.rows, ops.inputs
        inputs = InputsOnDevice(self._first + self._drafts[:count, None], rows)
        ops.tokens.copy_(inputs.tokens(rows, self._first.device))
        restores = self._overwrites(inputs)
        if replay is not None:
            ops.thresholds.copy_(replay.thresholds(inputs).transpose(0, 1))
        with multiplied_by(ops.multiply):
            x = model.feedback_latent(model.embed(inputs.of(draws.buffer.transpose(0, 1))))
        if added is not None:
            x = x + inputs.of(added)
        x = x.repeat(1, rows // len(self._first), 1).flatten(0, 1)
        for layer, block in enumerate(model.llm.blocks):
            x = ops.block(layer, block, x)
        ops.hidden.copy_(ops.norm(model.llm.norm, x).view(count, rows, -1).transpose(0, 1))
        flags, scores = ops.flags.view(torch.bool).transpose(1, 2), ops.scores.transpose(1, 2)
        if replay is not None and count == 1:
            replay.advance(inputs, None, flags, scores)
        positions = (inputs.tokens(len(self._first), self._first.device).T + 1).flatten()
        draws.draw(ops.hidden.flatten(0, 1), positions, ops.logits)
        self._first.add_(1)
        return Passed(flags, scores, restores, count) if count > 1 else Passed()

    def _aside(self, ops: TritonOps, run: Callable[[], Passed]) -> None:
        """Run a pass, and restore what it overwrote."""
        batch, replay = self._batch, self._batch.replay
        written = [self._first, batch.draws.buffer, *([] if replay is None else [replay.ages])]
        before = [(x, x.clone()) for x in written]
        drafts, rows = torch.meshgrid(self._drafts[: ops.inputs - 1], self._rows, indexing="ij")
        for restore in run().restores:
            restore(drafts.flatten(), rows.flatten())
        for tensor, old in before:
            tensor.copy_(old)

    def _seconds(self, ops: TritonOps, launch: Callable[[], Passed], timer: Timer) -> float:
        """Seconds of one pass."""
        seconds = 0.0

        def timed() -> Passed:
            nonlocal seconds
            passed, seconds = timer(ops.inputs, launch)
            return passed

        self._aside(ops, timed)
        return seconds

    def _captured(self, ops: TritonOps) -> Callable[[], Passed]:
        """Capture the pass as a CUDA graph; the returned function launches it without waiting for it.

        The pass first runs twice, to compile its kernels and to let libraries allocate; what it overwrites is
        restored. What `advance` needs is in memory that each launch overwrites.
        """
        device = self._first.device
        try:
            with torch.cuda.device(device):
                aside = torch.cuda.Stream()
                aside.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(aside):
                    for _ in range(2):
                        self._aside(ops, partial(self._run, ops))
                torch.cuda.current_stream().wait_stream(aside)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    passed = self._run(ops)
                torch.cuda.synchronize(device)
        except Exception as e:  # whatever triton's compiler, the driver or the capture raise
            reason = (str(e).strip() or type(e).__name__).splitlines()[0]
            raise RunError(
                f"a step can't be captured as a CUDA graph: {reason}", allowed=(Key("executor"), " torch")
            ) from e

        def launch() -> Passed:
            graph.replay()
            return passed

        return launch
