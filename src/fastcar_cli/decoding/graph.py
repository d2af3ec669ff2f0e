"""A decode step without the host: the same work for every token, captured once as a CUDA graph.

`StaticStep` takes its input token from a counter on the device, runs the decoder, draws the codes
of the next position through the depth transformer and counts on. Called from the host it runs on
any device; `captured` makes a CUDA graph of it that the host replays once a token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fastcar_cli.decoding.paths import Path
from fastcar_cli.decoding.sampling import draw, guide
from fastcar_cli.decoding.static_ops import Ops, TorchOps
from fastcar_cli.decoding.static_state import StaticState
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels.gpu import installed

if TYPE_CHECKING:
    from fastcar_cli.decoding.engine import Decode, Step


class StaticStep:
    """One position: from the input token that the state counts to the codes of the next."""

    def __init__(self, decode: Decode, state: StaticState, ops: Ops) -> None:
        self._model, self._books = decode.model, decode.books
        self.state, self._ops = state, ops

    def __call__(self) -> None:
        """Run the step; every result is in the state."""
        s, model = self.state, self._model
        x = model.feedback(s.codes.index_select(1, s.t)[:, 0], s.t.expand(s.videos))
        x = torch.cat([x, x]) if s.guided else x.contiguous()
        for layer, block in enumerate(model.llm.blocks):
            x = self._ops.block(layer, block, x)
        s.hidden.copy_(self._ops.norm(model.llm.norm, x))
        at = s.t + 1
        s.codes.index_copy_(1, at, self._codes(s.hidden, at)[:, None])
        s.t.add_(1)

    def _codes(self, hidden: Tensor, at: Tensor) -> Tensor:
        """Codes [P, depth] of the position `at` [1], drawn one depth after another."""
        s = self.state
        uniforms = s.uniforms.index_select(1, at)[:, 0]
        top_p: float | Tensor
        if s.top_ps is not None:
            top_p = s.top_ps.index_select(0, at)
        else:
            assert s.top_p is not None
            top_p = s.top_p
        x, total = hidden, None
        codes = []
        for d in range(self._model.spec.depth.depth):
            raw = self._ops.depth(x, d)
            code = draw(guide(raw, s.sampling.cfg), uniforms[:, d], s.sampling, top_p)
            codes.append(code)
            vector = self._books[d](code)
            total = vector if total is None else total + vector
            x = torch.cat([total, total]) if s.guided else total
        return torch.stack(codes, -1)


def make_ops(decode: Decode, state: StaticState, path: Path) -> Ops:
    """The parts that a path names. Raises RequestError where triton is missing."""
    if path.ops == "torch":
        return TorchOps(decode.model, state)
    if not installed():
        raise RequestError("triton is not installed", hint="CUDA builds of torch bring it; pip install triton")
    from fastcar_cli.decoding.triton_ops import TritonOps

    return TritonOps(decode.model, state)


def captured(step: StaticStep) -> Callable[[], None]:
    """The step as a CUDA graph; calling it replays the graph without waiting for it.

    The step runs twice before, to compile its kernels and to let libraries allocate; it is run from
    the same token again, which leaves the state as it was but for the ages of replayed outputs, so
    those are put back.
    """
    state = step.state
    ages = None if state.taus is None else state.ages.clone()
    device = state.t.device
    with torch.cuda.device(device):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(2):
                step()
                state.rewind()
                if ages is not None:
                    state.ages.copy_(ages)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
    return graph.replay


def static_steps(decode: Decode, hidden: Tensor, path: Path, first: int = 0) -> Iterator[Step]:
    """The rest of a decode whose prompts have been run, by static steps; see `Decode.steps`.

    hidden [rows, width] belongs to the prompts' last tokens. A step that is yielded may still be
    running on the device; its tensors are views of the state, good until the next step. The host
    waits for the device once a frame.
    """
    from fastcar_cli.decoding.engine import Step

    on_gpu = decode.codes.device.type == "cuda"
    if first == 0:
        began = time.perf_counter()
        decode.codes[:, 0] = decode.draw(hidden, 0)
        decode.clock.decode += time.perf_counter() - began
        yield Step(0, decode.codes[:, 0], hidden, None)
    began = time.perf_counter()
    start = max(first, 1)
    state = StaticState(decode, start - 1)
    static = StaticStep(decode, state, make_ops(decode, state, path))
    step: Callable[[], None] = static
    if path.name == "graph":
        step = captured(static)
        torch.cuda.synchronize(decode.codes.device)
    decode.clock.capture = time.perf_counter() - began
    began = time.perf_counter()
    for index in range(start, decode.tokens):
        step()
        decode.passes = index
        whole = (index + 1) % decode.frame == 0
        if on_gpu and whole:
            torch.cuda.synchronize(decode.codes.device)
        if whole or not on_gpu:
            decode.clock.decode += time.perf_counter() - began
        yield Step(index, decode.codes[:, index], state.hidden, None)
        if whole or not on_gpu:
            began = time.perf_counter()
