"""A network of random weights in few bits, as `fastcar convert` stores one."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fastcar_cli.models.checkpoint import empty_network, ready
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.weights.formats import FORMATS


def stored_in(form: WeightFormat, spec: Spec, weights: Mapping[str, Tensor], device: torch.device) -> Network:
    """A network of these weights by name, which lie on a device, in a format."""
    network = empty_network(spec)
    kept = form.on(network)
    stored = {key: value for name, tensor in weights.items() for key, value in kept.stored(name, tensor).items()}
    kept.use().load_state_dict(stored, strict=False, assign=True)
    return ready(network, device)


def in_bits(network: Network, name: str) -> Network:
    """A network whose maps (blocks, projector, draws of codes) are those of another in int4 or int8. A part with inputs
    that the format can't divide into groups stays in floats.
    """
    group = FORMATS[name].group or 1
    inputs = {
        part: [m.in_features for m in module.modules() if isinstance(m, nn.Linear)]
        for part, module in network.parts().items()
    }
    packed = {part: name for part, widths in inputs.items() if all(width % group == 0 for width in widths)}
    return stored_in(WeightFormat(name, network.dtype, **packed), network.spec, network.state_dict(), network.device)
