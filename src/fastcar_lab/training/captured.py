"""Steps of training on a GPU as one CUDA graph a shape: pass, gradients and update by one launch.

A step of a small model is some 1,500 kernels of a few microseconds, which a host launches more slowly than a GPU runs
them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

M = TypeVar("M", bound="Inputs")
Loss = tuple[Tensor, dict[str, Tensor]]


class Inputs(Protocol):
    """What a step learns from, with tensors of fixed shapes."""

    def tensors(self) -> list[Tensor]:
        """All its tensors, in one order."""

    def to(self: M, device: str) -> M:
        """The same on a device."""


@dataclass
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: Inputs
    loss: Loss


class Graphs:
    """Captures the step of each shape when it comes first, and replays it afterwards. `optimizers` have their learning
    rates in tensors on the device; gradients are clipped to `largest`.
    """

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], parameters: Sequence[nn.Parameter], *, largest: float = 1.0
    ) -> None:
        self._optimizers, self._parameters, self._largest = optimizers, parameters, largest
        self._graphs: dict[Hashable, _Graph] = {}

    def __call__(self, shape: Hashable, inputs: M, loss_of: Callable[[M], Loss]) -> Loss:
        """Make one step; the loss and numbers for the log are overwritten by the next step of this shape."""
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(inputs.to("cuda"), loss_of)
        known = self._graphs[shape]
        for static, now in zip(known.inputs.tensors(), inputs.tensors(), strict=True):
            static.copy_(now, non_blocking=True)
        known.graph.replay()
        return known.loss

    def _gradients(self, inputs: M, loss_of: Callable[[M], Loss]) -> Loss:
        for p in self._parameters:
            p.grad = None
        loss, values = loss_of(inputs)
        loss.backward()
        return loss.detach(), values

    def _update(self) -> None:
        nn.utils.clip_grad_norm_(self._parameters, self._largest)
        for optimizer in self._optimizers:
            optimizer.step()

    def _begin(self) -> None:
        """Make the state of optimizers that have none, which a graph would make again in every step."""
        for optimizer in self._optimizers:
            if optimizer.state:
                continue
            for p in self._parameters:
                if p.grad is not None:
                    p.grad.zero_()
            for group in optimizer.param_groups:
                group["lr"].zero_()
            optimizer.step()
            for state in optimizer.state.values():
                for value in state.values():
                    value.zero_()

    def _capture(self, inputs: M, loss_of: Callable[[M], Loss]) -> _Graph:
        rates = [[group["lr"].clone() for group in o.param_groups] for o in self._optimizers]
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self._gradients(inputs, loss_of)
            self._begin()
        torch.cuda.current_stream().wait_stream(side)
        for optimizer, kept in zip(self._optimizers, rates, strict=True):
            for group, rate in zip(optimizer.param_groups, kept, strict=True):
                group["lr"].copy_(rate)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._gradients(inputs, loss_of)
            self._update()
        return _Graph(graph, inputs, loss)
