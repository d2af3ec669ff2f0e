"""Who executes an MLP: the one thing the step loop asks, and the model's own torch modules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from fastcar_cli.models.decoder import Decoder


class MLPBackend(Protocol):
    """Executes the MLPs of a decode step."""

    name: str

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        """The MLP of a layer on normalised inputs [n, width], [n, width].

        `rows` are the batch rows that x holds; None means all of them, in order.
        """


class TorchBackend:
    """Runs each MLP where its weights are."""

    name = "torch"

    def __init__(self, decoder: Decoder) -> None:
        self._mlps = [block.mlp for block in decoder.blocks]

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        """See `MLPBackend.mlp`."""
        return self._mlps[layer](x)
