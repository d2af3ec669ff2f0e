"""The arithmetic of a core in SystemVerilog (folder arithmetic/), built with Verilator and asked for results.

mac_array.sv sums int8 products; requantise.sv, activate.sv and coder.sv are the vector unit of integer.py. units.cpp is
the harness of all four; what it reads and writes is in its head.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.backends.fpga.integer import FRACTION, MOST_SHIFT, Coded, Rows
from fastcar_cli.backends.fpga.rtl.tools import call, compiler, verilator
from fastcar_cli.errors import RunError
from fastcar_cli.files import write_whole

ARITHMETIC = Path(__file__).parent / "arithmetic"
_GROUPS, _REQUANTISE, _ACTIVATE, _CODE = 1, 2, 3, 4
"""The requests of units.cpp."""


def write_arithmetic(folder: Path) -> None:
    """Write the sources and the table that activate.sv reads. Raises RunError where a file can't be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RunError(f"the folder {folder} can't be made: {e.strerror}") from None
    for source in ARITHMETIC.iterdir():
        write_whole(folder / source.name, source.read_bytes())


def _made(arguments: Sequence[str], folder: Path) -> str:
    code, said = call(arguments, folder)
    if code:
        raise RunError(f"{Path(arguments[0]).name} failed in {folder} (status {code})", hint=said[-1500:])
    return said


class Units:
    """The arithmetic as it lies in a folder, with an array of `macs` (a multiple of 8, at least 16), simulated.

    Raises RequestError where a program is missing, RunError where the sources can't be built or answer too late.
    """

    def __init__(self, folder: Path, macs: int) -> None:
        folder = folder.resolve()
        self._macs, self._folder = macs, folder
        shutil.rmtree(folder / "made", ignore_errors=True)
        program = verilator()
        include = Path(_made([program, "--getenv", "VERILATOR_ROOT"], folder).strip()) / "include"
        sources = sorted(f.name for f in folder.glob("*.sv"))
        options = ["--cc", "--top", "units", "-Mdir", "made", "-O3", "-Wno-fatal", f"-GMACS={macs}"]
        _made([program, *options, *sources], folder)
        made = sorted(str(f.relative_to(folder)) for f in (folder / "made").glob("*.cpp"))
        runtime = [str(include / name) for name in ("verilated.cpp", "verilated_threads.cpp")]
        flags = ["-std=c++17", "-O1", f"-DMACS={macs}", "-Imade", f"-I{include}", f"-I{include / 'vltstd'}"]
        _made([compiler(), *flags, "units.cpp", *made, *runtime, "-pthread", "-o", "units"], folder)

    def _ask(self, *words: Tensor | Sequence[int]) -> Tensor:
        request = torch.cat([torch.as_tensor(w, dtype=torch.int64).flatten() for w in words])
        given = request.numpy().astype(np.int32).tobytes()
        done = subprocess.run([self._folder / "units"], cwd=self._folder, input=given, capture_output=True)
        if done.returncode:
            raise RunError(f"the arithmetic in {self._folder}: {done.stderr.decode().strip()}")
        return torch.from_numpy(np.frombuffer(done.stdout, np.int32).astype(np.int64))

    def sums(self, q: Tensor, weight: Tensor) -> Tensor:
        """Sums of an input int8 [in] and weights int8 [out, in], int64 [out]; zeros fill the last `macs` outputs."""
        outputs, inputs = weight.shape
        padded = torch.zeros(-(-outputs // self._macs) * self._macs, inputs, dtype=torch.int64)
        padded[:outputs] = weight
        groups = padded.split(self._macs)
        words = [w for group in groups for w in (torch.tensor([inputs]), q, group.T)]
        return self._ask([_GROUPS, len(groups)], *words)[:outputs]

    def requantised(self, found: Tensor, rows: Rows, x: Coded) -> Tensor:
        """`integer.requantised` of sums int64 [n, out]."""
        by = (x.exponent + rows.exponent - FRACTION).clamp(max=MOST_SHIFT)
        words = (w.expand(found.shape) for w in (found, rows.multiplier, x.mantissa, by))
        return self._ask([_REQUANTISE, found.numel()], *words).view(found.shape)

    def activated(self, gate: Tensor, up: Tensor) -> Tensor:
        """`integer.activated` of fixed-point numbers int64 of any shape."""
        return self._ask([_ACTIVATE, gate.numel()], gate, up).view(gate.shape)

    def code(self, x: Tensor) -> Coded:
        """`integer.code` of one vector of fixed-point numbers, int64 [1, k]."""
        found = self._ask([_CODE, x.numel()], x)
        return Coded(found[None, 2:].to(torch.int8), found[None, :1], FRACTION - found[None, 1:2])
