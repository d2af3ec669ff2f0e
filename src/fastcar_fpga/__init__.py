"""`fpga-sim`: the emulated accelerator of FastCar (arXiv 2505.14709) with Dynamic Resource Scheduling (docs/fpga.md).

`fastcar_cli` uses only the names below and imports no module of the package.
"""

from fastcar_fpga.backend import FpgaBackend, check_weights
from fastcar_fpga.decisions import Decisions, Windows, draw, read, save
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.layer import INDEX_BITS
from fastcar_fpga.preset import Preset, load_preset
from fastcar_fpga.summary import Comparison, compare, emulate, explain, write_csvs
from fastcar_fpga.workload import Workload, check_memory, preset_for, workload_of

__all__ = [
    "INDEX_BITS",
    "Comparison",
    "Decisions",
    "Emulator",
    "FpgaBackend",
    "Preset",
    "Windows",
    "Workload",
    "check_memory",
    "check_weights",
    "compare",
    "draw",
    "emulate",
    "explain",
    "load_preset",
    "preset_for",
    "read",
    "save",
    "workload_of",
    "write_csvs",
]
