"""The executor of GPUs: a whole step without the host, captured once as a CUDA graph and launched again for each token.

The step takes its input token from a counter on the device, runs the decoder by Triton kernels, draws
the codes of the next position through the depth transformer and counts on. Caches, codes and decisions
are the batch's own tensors, so what the graph writes is what the report reads.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from fastcar_cli.decoding.batch import Batch, Step
from fastcar_cli.decoding.executor import Executor
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.errors import Key, RunError
from fastcar_cli.kernels.gpu import installed, most_rows


def row_limit(device: torch.device) -> int:
    """Rows that the kernels take at once on a CUDA device."""
    properties = torch.cuda.get_device_properties(device)
    return most_rows(getattr(properties, "shared_memory_per_block_optin", 48 * 1024))


def obstacle(batch: Batch) -> str | None:
    """Why a step of this batch can't be one CUDA graph; None where it can."""
    device = batch.model.device
    if device.type != "cuda":
        return f"the device is {device.type}, a graph needs cuda"
    if not installed():
        return "triton is not installed"
    most = row_limit(device)
    rules = (
        (batch.rows > most, f"the batch has {batch.rows} rows, its kernels take {most} on this device"),
        (batch.model.depth is None, "the model has no depth transformer, which the graph draws codes with"),
        (batch.model.spec.decoder.head_norms, "its kernels have no norms of queries and keys"),
        (batch.draws.given is not None, "codes are given instead of drawn"),
        (batch.draws.keep_logits, "logits are kept"),
        (batch.settings.kv_dtype != "auto", f"keys and values are {batch.settings.kv_dtype}"),
        (batch.settings.rule.target is not None, "a replay ratio is kept, which moves the thresholds as it goes"),
        (batch.draws.tokens < 2, "there is one token only"),
    )
    return next((why for hit, why in rules if hit), None)


class GraphExecutor(Executor):
    """Steps of a batch by Triton kernels; with `capture` as one CUDA graph, else called from the host.

    Raises RunError where the kernels don't compile or the graph can't be captured.
    """

    name = "graph"

    def __init__(self, batch: Batch, capture: bool = True) -> None:
        # Triton is optional, and slow to import.
        from fastcar_cli.decoding.triton_ops import TritonOps

        super().__init__(batch)
        self._capture = capture
        self._ops = TritonOps(batch)
        self.state = self._ops.state
        self._launch: Callable[[], None] | None = None

    @torch.inference_mode()
    def step(self, inputs: Inputs) -> Step:
        """See `Executor.step`."""
        batch, state, t = self._batch, self.state, inputs.common
        assert t is not None
        if self._launch is None:
            began = time.perf_counter()
            state.t.fill_(t)
            self._launch = self._captured() if self._capture else self._run
            batch.clock.capture = time.perf_counter() - began
        self._launch()
        return Step(inputs, batch.draws.codes[:, t + 1, None], state.hidden[:, None], None)

    def commit(self, inputs: Inputs, accepted: tuple[int, ...]) -> None:
        """See `Executor.commit`: one input is always kept, and the step has learned from it."""

    def _run(self) -> None:
        """One step from the input token that the state counts; all results are in the state and the batch."""
        batch, state, model, replay = self._batch, self.state, self._batch.model, self._batch.replay
        t, draws, added = state.t, batch.draws, batch.places.added
        of_rows = t.expand(batch.rows)
        if replay is not None:
            state.thresholds.copy_(replay.thresholds(of_rows))
        x = model.feedback_latent(model.embed(draws.codes.index_select(1, t)[:, 0]))
        if added is not None:
            x = x + added.index_select(0, t)[0]
        x = batch.prompts.doubled(x).contiguous()
        for layer, block in enumerate(model.llm.blocks):
            x = self._ops.block(layer, block, x)
        state.hidden.copy_(self._ops.norm(model.llm.norm, x))
        if replay is not None:
            replay.replayed.index_copy_(-1, t, state.flags.bool()[..., None])
            replay.finish(of_rows, state.scores)
        codes, _ = draws.sampler.draw(state.hidden, (t + 1).expand(batch.prompts.videos), self._ops.logits)
        draws.codes.index_copy_(1, t + 1, codes[:, None])
        t.add_(1)

    def _captured(self) -> Callable[[], None]:
        """The step as a CUDA graph; calling it launches the graph without waiting for it.

        The step runs twice before, to compile its kernels and to let libraries allocate. Run again from the
        same token it writes what it wrote, but for what the replay rule counts, which is put back.
        """
        batch, t = self._batch, self.state.t
        first, device = int(t), t.device
        kept = None if batch.replay is None else batch.replay.counts()
        try:
            with torch.cuda.device(device):
                aside = torch.cuda.Stream()
                aside.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(aside):
                    for _ in range(2):
                        self._run()
                        t.fill_(first)
                        if batch.replay is not None and kept is not None:
                            batch.replay.restore(kept)
                torch.cuda.current_stream().wait_stream(aside)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    self._run()
                torch.cuda.synchronize(device)
        except Exception as e:  # whatever triton's compiler, the driver or the capture raise
            reason = (str(e).strip() or type(e).__name__).splitlines()[0]
            raise RunError(
                f"a step can't be captured as a CUDA graph: {reason}", allowed=(Key("executor"), " torch")
            ) from e
        return graph.replay
