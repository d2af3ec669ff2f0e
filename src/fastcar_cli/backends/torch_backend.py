"""MLPs through the model's own torch modules."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from fastcar_cli.models.decoder import Decoder


class TorchBackend:
    """Runs each MLP where its weights are."""

    name = "torch"

    def __init__(self, decoder: Decoder) -> None:
        self._mlps = [block.mlp for block in decoder.blocks]

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        """See `MLPBackend.mlp`."""
        return self._mlps[layer](x)
