"""Assigns a weight format to each part of a network; the network lists its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fastcar_cli.models.network import Network
from fastcar_cli.weights.formats import FORMATS, Format, QuantisedLinear


@dataclass(frozen=True)
class WeightFormat:
    """The stored format of each part of a network (`Network.parts`): int8, int4, or None for `floats`.
    `name` is the name of the whole format; `floats` is the dtype of everything else, also of activations and caches.
    """

    name: str
    floats: torch.dtype
    blocks: str | None = None
    projector: str | None = None
    depth: str | None = None

    def on(self, network: Network) -> NetworkFormat:
        """The format of each parameter of a network whose linear layers are still in floats."""
        return NetworkFormat(self, network)


class NetworkFormat:
    """The stored format of each parameter, by name."""

    def __init__(self, form: WeightFormat, network: Network) -> None:
        self._floats, self._network = form.floats, network
        paths = {module: path for path, module in network.named_modules()}
        self._packed: dict[str, Format] = {}
        for part, module in network.parts().items():
            if (name := getattr(form, part)) is not None:
                linears = [paths[m] for m in module.modules() if isinstance(m, nn.Linear)]
                self._packed |= {f"{path}.weight": FORMATS[name] for path in linears}
        self._pixels = {f"{paths[m]}.{name}" for m in network.pixels() for name in m.state_dict()}

    def of(self, name: str) -> Format | None:
        """The format of the parameter of this name; None for floats."""
        return self._packed.get(name)

    def float_of(self, name: str) -> torch.dtype:
        """The dtype of the parameter of this name if it stays in floats."""
        return torch.float32 if name in self._pixels else self._floats

    def stored(self, name: str, tensor: Tensor) -> Mapping[str, Tensor]:
        """The stored tensors of a parameter by name: itself in floats, or numbers and scales."""
        if (form := self.of(name)) is None:
            return {name: tensor.to(self.float_of(name))}
        numbers, scale = form.quantise(tensor)
        return {name: numbers, scale_name(name): scale}

    def use(self) -> Network:
        """Replace the network's linear layers by those of this format, without weights; returns the network.
        Raises ValueError for a matrix whose inputs the format can't divide into groups.
        """
        for name, form in self._packed.items():
            path = name.removesuffix(".weight")
            parent, _, last = path.rpartition(".")
            old = self._network.get_submodule(path)
            assert isinstance(old, nn.Linear)
            with torch.device(old.weight.device):
                new = QuantisedLinear(form, old.in_features, old.out_features, old.bias is not None)
            setattr(self._network.get_submodule(parent), last, new)
        return self._network

    def bytes_of(self, name: str, shape: torch.Size) -> int:
        """Bytes of a parameter of this name and shape."""
        form = self.of(name)
        return shape.numel() * self.float_of(name).itemsize if form is None else form.bytes_of(*shape)


def scale_name(name: str) -> str:
    """The name of a matrix's scales."""
    return name.removesuffix("weight") + "scale"
