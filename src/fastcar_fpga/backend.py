"""The arithmetic of the cores: an MLP backend in the accelerator's number format (integer.py has `int8-exact`).

Weights are quantised as with `--dtype`, activations are int8 with one scale per token. Sums of products are exact;
between two products, scales and SiLU are computed in floats.
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
"""The weight format of each number format that is not float."""

_EXAMPLES = {"int8": "edge-int8 or u280-int8", "int4": "edge-int4 or u280-int4"}


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise x float32 [n, k] to symmetric int8 [n, k] with one scale per token, float32 [n, 1]."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127.0
    return (x / scale).round().to(torch.int8), scale


def group_sums(x: Tensor, linear: QuantisedLinear) -> Tensor:
    """Like `sums`, for int4 weights: sums of groups times their scales, exact below 2^29, float64 [n, out]."""
    return F.linear(x.double(), linear.widened(torch.float64))


def product(linear: QuantisedLinear, x: Tensor) -> Tensor:
    """Map float32 [n, in], quantised to int8, to float32 [n, out]."""
    whole, scale = quantise(x)
    if linear.form.group:
        return (group_sums(whole, linear) * scale).float()
    return (sums(whole, linear.weight) * scale * linear.scale).float()


def stored(mlp: MLP, kind: str) -> tuple[QuantisedLinear, QuantisedLinear, QuantisedLinear]:
    """The gate, up and down matrices in format `kind`: unchanged if already quantised, otherwise quantised here.

    int4 pads the inputs of down with zeros to whole groups, like `convert` (silu(0) * 0 = 0). Raises RequestError for a
    width that groups don't divide.
    """
    matrices = (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
    if isinstance(mlp.gate_proj, QuantisedLinear):
        return cast(tuple[QuantisedLinear, QuantisedLinear, QuantisedLinear], matrices)
    gate, up, down = (m.weight for m in matrices)
    if kind == "int4":
        if gate.shape[1] % GROUP:
            raise RequestError(
                f"int4 weights need input widths divisible by {GROUP}, but the model's MLPs have width {gate.shape[1]}",
                hint="use an accelerator with another number format, such as u280-int8",
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
    """Refuse a model with quantised weights on an accelerator of another format. Raises RequestError."""
    wanted = WEIGHTS.get(preset.format.kind)
    if held in PACKED and held != wanted:
        raise RequestError(
            ("can't be used with ", Key("backend.preset"), f" {preset.name}, whose format is {preset.format.kind}"),
            key="dtype",
            value=held,
            allowed=f"an accelerator of format {held}, such as {_EXAMPLES[held]}, or a float model",
        )


def mlp_of(mlp: MLP, preset: Preset) -> Callable[[Tensor], Tensor]:
    """The MLP of a block in an accelerator's format, [n, width] to [n, width]; RequestError for weights in another."""
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
    """Computes the MLPs in an accelerator's format. Raises RequestError for too many rows, or weights in another."""

    name = "fpga-sim"

    def __init__(self, decoder: Decoder, preset: Preset, rows: int) -> None:
        check_rows(rows)
        self._mlps = [mlp_of(b.mlp, preset) for b in decoder.blocks]

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        """See `MLPBackend.mlp`. Cores share weights and number format, so all rows are computed in one call."""
        return self._mlps[layer](x)
