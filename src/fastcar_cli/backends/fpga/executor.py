"""The values the cores compute: an MLP backend in the accelerator's number format."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.backends.fpga.drs import Drs, check_rows
from fastcar_cli.backends.fpga.preset import Preset
from fastcar_cli.models.decoder import MLP, Decoder


def quantise(x: Tensor) -> tuple[Tensor, Tensor]:
    """Symmetric int8 of x [n, k], a scale a row: whole numbers -127..127 in float32, and scales [n, 1]."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127.0
    return (x / scale).round(), scale


class _Int8Linear:
    """W x with weights quantised a channel and activations a token. Products and sums are of whole numbers."""

    def __init__(self, weight: Tensor) -> None:
        self.weight, self.scale = quantise(weight.float())

    def __call__(self, x: Tensor) -> Tensor:
        whole, scale = quantise(x.float())
        return F.linear(whole, self.weight) * scale * self.scale[:, 0]


class _Int8MLP:
    def __init__(self, mlp: MLP) -> None:
        self.gate = _Int8Linear(mlp.gate_proj.weight)
        self.up = _Int8Linear(mlp.up_proj.weight)
        self.down = _Int8Linear(mlp.down_proj.weight)

    def __call__(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x)).to(x.dtype)


class FpgaBackend:
    """Executes the rows that compute on the cores DRS maps them to; counts what each core executed.

    executed [cores] counts rows. Raises RequestError for more rows than the Index Register has bits.
    """

    name = "fpga-sim"

    def __init__(self, decoder: Decoder, preset: Preset, rows: int) -> None:
        check_rows(rows)
        self.preset, self.rows = preset, rows
        self.executed = [0] * preset.cores
        self._drs = Drs(preset.cores)
        blocks = decoder.blocks
        if preset.format.kind == "int8":
            self._mlps: list[MLP | _Int8MLP] = [_Int8MLP(b.mlp) for b in blocks]
        else:
            self._mlps = [b.mlp for b in blocks]

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        """See `MLPBackend.mlp`. Cores share weights and number format, so all rows are computed in one call."""
        self._drs.remap(range(self.rows) if rows is None else rows)
        for row in range(self.rows):
            core = self._drs.arrive(row)
            if core is not None:
                self.executed[core] += 1
        return self._mlps[layer](x)
