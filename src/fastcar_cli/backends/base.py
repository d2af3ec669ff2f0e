"""The one thing the step loop asks of an executor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class MLPBackend(Protocol):
    """Executes the MLPs of a decode step."""

    name: str

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        """The MLP of a layer on normalised inputs [n, width], [n, width].

        `rows` are the batch rows that x holds; None means all of them, in order.
        """
        ...
