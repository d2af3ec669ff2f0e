"""Switching activity for the vendor's power estimate, which needs the vendor's tool."""

from __future__ import annotations

from pathlib import Path

from fastcar_cli.errors import RunError
from fastcar_cli.system.files import write_whole
from fastcar_lab.accelerator.rtl.tools import simulate

LAYERS = 40
"""Layers whose activity is recorded: a signal a cycle is slow to watch."""

SCRIPT = """\
# NOT RUN BY US: this needs AMD Vivado, which the project does not have. It says how activity.saif is meant to be
# used; expect to adjust it. Run in this folder: vivado -mode batch -source power.tcl
read_verilog -sv [glob *.sv]
synth_design -top accelerator -part xcu280-fsvh2892-2L-e -mode out_of_context {generics}
create_clock -name clk -period {period:.3f} [get_ports clk]
opt_design
place_design
route_design
read_saif -strip_path TOP/accelerator activity.saif
report_power -file power.rpt
report_timing_summary -file timing.rpt
report_utilization -file utilization.rpt
"""


def activity(folder: Path, parameters: dict[str, int], megahertz: float) -> Path:
    """Run the first layers with every signal watched; writes activity.saif and power.tcl beside it.

    Raises RunError where the RTL differs from the emulator: its activity would mean nothing.
    """
    generics = " ".join(f"-generic {k}={v}" for k, v in parameters.items())
    write_whole(folder / "power.tcl", SCRIPT.format(generics=generics, period=1e3 / megahertz))
    same, line = simulate(folder, layers=LAYERS, saif=True)
    if not same:
        raise RunError(f"{folder}: {line}")
    return folder / "activity.saif"
