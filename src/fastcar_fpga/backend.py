"""What the cores compute: an MLP backend in the accelerator's number format (integer.py has `int8-exact`).

Weights are rounded as `--dtype` would, activations are int8 with a scale a token. Sums of products are exact; what is
between two products (scales, SiLU) is computed in floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.decoder import MLP, Decoder
from fastcar_cli.weights.formats import FORMATS, GROUP, PACKED, QuantisedLinear
from fastcar_fpga.integer import IntegerMLP, sums
from fastcar_fpga.layer import check_rows
from fastcar_fpga.preset import Preset

WEIGHTS = {"int8": "int8", "int8-exact": "int8", "int4": "int4"}
"""What weights are stored as in the formats that are not float."""

_EXAMPLES = {"int8": "edge-int8 or u280-int8", "int4": "edge-int4 or u280-int4"}


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 of x float32 [n, k], a scale a token: int8 [n, k], and scales float32 [n, 1]."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127.0
    return (x / scale).round().to(torch.int8), scale


def group_sums(x: Tensor, linear: QuantisedLinear) -> Tensor:
    """As `sums`, with int4 weights and the sum of a group times its scale, exact below 2^29: float64 [n, out]."""
    return F.linear(x.double(), linear.widened(torch.float64))


def product(linear: QuantisedLinear, x: Tensor) -> Tensor:
    """The map of float32 [n, in] coded in int8, float32 [n, out]."""
    whole, scale = quantise(x)
    if linear.form.group:
        return (group_sums(whole, linear) * scale).float()
    return (sums(whole, linear.weight) * scale * linear.scale).float()


def stored(mlp: MLP, kind: str) -> tuple[QuantisedLinear, QuantisedLinear, QuantisedLinear]:
    """Gate, up and down as `kind`: themselves where they are held so, else rounded.

    int4 divides the inputs of down into groups by adding zeros, as `convert` does: silu(0) * 0 = 0. Raises RequestError
    for a width that it can't divide.
    """
    matrices = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    if isinstance(mlp.gate_proj, QuantisedLinear):
        return cast(tuple[QuantisedLinear, QuantisedLinear, QuantisedLinear], matrices)
    gate, up, down = (m.weight for m in matrices)
    if kind == "int4":
        if gate.shape[1] % GROUP:
            raise RequestError(
                f"int4 weights need input widths divisible by {GROUP}, the model's MLPs have {gate.shape[1]}",
                hint="an accelerator with another format, such as u280-int8",
            )
        missing = -down.shape[1] % GROUP
        gate, up, down = F.pad(gate, (0, 0, 0, missing)), F.pad(up, (0, 0, 0, missing)), F.pad(down, (0, missing))
    return _rounded(gate, kind), _rounded(up, kind), _rounded(down, kind)


def _rounded(weight: Tensor, kind: str) -> QuantisedLinear:
    numbers, scale = FORMATS[kind].quantise(weight.detach())
    with torch.device("meta"):
        linear = QuantisedLinear(FORMATS[kind], weight.shape[1], weight.shape[0])
    linear.load_state_dict({"weight": numbers, "scale": scale}, assign=True)
    return linear


def check_weights(held: str, preset: Preset) -> None:
    """Refuse a model whose weights are held in few bits on an accelerator of another format. Raises RequestError."""
    wanted = WEIGHTS.get(preset.format.kind)
    if held in PACKED and held != wanted:
        raise RequestError(
            ("can't be used with ", Key("backend.preset"), f" {preset.name}, whose format is {preset.format.kind}"),
            key="dtype",
            value=held,
            allowed=f"an accelerator of format {held}, such as {_EXAMPLES[held]}, or a model in floats",
        )


def mlp_of(mlp: MLP, preset: Preset) -> Callable[[Tensor], Tensor]:
    """The MLP of a block in an accelerator's format, [n, width] to [n, width]; RequestError for weights of another."""
    if isinstance(mlp.gate_proj, QuantisedLinear):
        check_weights(mlp.gate_proj.form.name, preset)
    kind = preset.format.kind
    if kind == "float":
        return mlp
    gate, up, down = stored(mlp, WEIGHTS[kind])
    if kind == "int8-exact":
        return IntegerMLP(gate, up, down)

    def quantised(x: Tensor) -> Tensor:
        wide = x.float()
        return product(down, F.silu(product(gate, wide)) * product(up, wide)).to(x.dtype)

    return quantised


class FpgaBackend:
    """Computes the MLPs in an accelerator's format. Raises RequestError for too many rows, and for other weights."""

    name = "fpga-sim"

    def __init__(self, decoder: Decoder, preset: Preset, rows: int) -> None:
        check_rows(rows)
        self._mlps = [mlp_of(b.mlp, preset) for b in decoder.blocks]

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        """See `MLPBackend.mlp`. Cores share weights and number format, so all rows are computed in one call."""
        return self._mlps[layer](x)
