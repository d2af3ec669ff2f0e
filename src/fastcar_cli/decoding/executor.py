"""How a decode pass is executed: one small protocol. `plain`, `native` and `graph` are behind it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor

from fastcar_cli.decoding.prefill import prefill
from fastcar_cli.decoding.state import Batch, Step


class Executor(Protocol):
    """Decodes positions of a batch whose prompts have been run."""

    name: str

    def step(self, index: int) -> Step:
        """Decode position `index`: run token index - 1 through the decoder, draw the codes. In order, from 1 on.

        What is yielded may still be running on the device; its tensors are good until the next step.
        """
        ...


class HostExecutor(ABC):
    """An executor that returns to the host between the decoder and the depth transformer."""

    name: str

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def prefill(self) -> Tensor:
        """Run the prompts; returns the final-normed hidden state of the last position, [rows, width]."""
        return prefill(self._batch)

    @abstractmethod
    def run(self, t: int, latent: Tensor) -> Tensor:
        """The decode pass with input token t, whose code vectors sum to latent [P, code_width]: hidden [rows, width].

        Appends to the KV cache, which the caller advances.
        """

    @abstractmethod
    def draw(self, hidden: Tensor, index: int) -> Step:
        """Draw the codes of a position from its hidden states [rows, width], into the batch."""

    def token_pass(self, t: int, latent: Tensor | None = None) -> Tensor:
        """`run`, and on to the next token."""
        batch = self._batch
        hidden = self.run(t, batch.input_latent(t) if latent is None else latent)
        batch.cache.advance()
        batch.passes = t + 1
        return hidden

    def step(self, index: int) -> Step:
        """See `Executor.step`."""
        hidden = self.token_pass(index - 1)
        began = time.perf_counter()
        step = self.draw(hidden, index)
        self._batch.clock.draw += time.perf_counter() - began
        return step
