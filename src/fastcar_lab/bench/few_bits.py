"""A network of random weights in few bits, as `fastcar convert` stores one."""

from __future__ import annotations

from torch import nn

from fastcar_cli.models.checkpoint import empty_network, ready
from fastcar_cli.models.network import Network
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.weights.formats import FORMATS


def in_bits(network: Network, name: str) -> Network:
    """A network whose maps (blocks, projector, draws of codes) are those of another in int4 or int8.

    A part with inputs that the format can't divide into groups stays in floats.
    """
    twin = empty_network(network.spec)
    group = FORMATS[name].group or 1
    inputs = {
        part: [m.in_features for m in module.modules() if isinstance(m, nn.Linear)]
        for part, module in twin.parts().items()
    }
    packed = {part: name for part, widths in inputs.items() if all(width % group == 0 for width in widths)}
    kept = WeightFormat(name, network.dtype, **packed).on(twin)
    state = {key: value for key, x in network.state_dict().items() for key, value in kept.stored(key, x).items()}
    kept.use().load_state_dict(state, strict=False, assign=True)
    return ready(twin, network.device)
