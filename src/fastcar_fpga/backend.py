"""The values the cores compute: an MLP backend in the accelerator's number format."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from fastcar_cli.models.decoder import MLP, Decoder
from fastcar_cli.weights.quantised import QuantisedLinear
from fastcar_fpga.drs import Drs
from fastcar_fpga.formats import QuantisedMLP, check_weights, stored
from fastcar_fpga.integer import IntegerMLP
from fastcar_fpga.preset import Preset
from fastcar_fpga.workload import check_rows


def mlp_of(mlp: MLP, preset: Preset) -> Callable[[Tensor], Tensor]:
    """The MLP of a block in an accelerator's format, [n, width] to [n, width]; RequestError for weights of another."""
    if isinstance(mlp.gate_proj, QuantisedLinear):
        check_weights(mlp.gate_proj.form.name, preset)
    kind = preset.format.kind
    if kind == "float":
        return mlp
    return IntegerMLP(*stored(mlp, "int8")) if kind == "int8-exact" else QuantisedMLP(mlp, kind)


class FpgaBackend:
    """Executes the rows that compute on the cores DRS maps them to; counts what each core executed.

    executed [cores] counts rows. Raises RequestError for more rows than the Index Register has bits, and for weights
    that the accelerator's format can't hold.
    """

    name = "fpga-sim"

    def __init__(self, decoder: Decoder, preset: Preset, rows: int) -> None:
        check_rows(rows)
        self.preset, self.rows = preset, rows
        self.executed = [0] * preset.cores
        self._drs = Drs(preset.cores)
        self._mlps = [mlp_of(b.mlp, preset) for b in decoder.blocks]

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        """See `MLPBackend.mlp`. Cores share weights and number format, so all rows are computed in one call."""
        self._drs.remap(range(self.rows) if rows is None else rows)
        for row in range(self.rows):
            core = self._drs.arrive(row)
            if core is not None:
                self.executed[core] += 1
        return self._mlps[layer](x)
