"""The arithmetic of a core in SystemVerilog (folder arithmetic/), built with Verilator and run.

mac_array.sv sums int8 products; requantise.sv, activate.sv and coder.sv are the vector unit of integer.py. units.cpp is
the harness of all four; core.sv is the array with the sequencer that drives it, core.cpp its harness. What a harness
reads and writes is in its head.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.backends.fpga.integer import FRACTION, MOST_SHIFT, Coded, Rows
from fastcar_cli.backends.fpga.rtl.core import CoreRow, parameters, requests
from fastcar_cli.backends.fpga.rtl.tools import ARITHMETIC, SOURCE, call, compiler, verilator
from fastcar_cli.backends.fpga.rtl.vectors import ACTIVATE, CODE, REQUANTISE, SUMS
from fastcar_cli.errors import RunError
from fastcar_cli.files import write_whole


def write_arithmetic(folder: Path) -> None:
    """Write the sources, the table that activate.sv reads, and the sequencer. Raises RunError where a file can't be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RunError(f"the folder {folder} can't be made: {e.strerror}") from None
    for source in [*ARITHMETIC.iterdir(), SOURCE / "sequencer.sv", SOURCE / "instructions.sv"]:
        write_whole(folder / source.name, source.read_bytes())


def _run(arguments: Sequence[str], folder: Path) -> str:
    code, output = call(arguments, folder)
    if code:
        raise RunError(f"{Path(arguments[0]).name} failed in {folder} (status {code})", hint=output[-1500:])
    return output


def _built(folder: Path, top: str, parameters: Mapping[str, int]) -> Path:
    """The harness of a module of a folder, or of the one above it, with these parameters, built."""
    build = f"made_{top}"
    shutil.rmtree(folder / build, ignore_errors=True)
    program = verilator()
    include = Path(_run([program, "--getenv", "VERILATOR_ROOT"], folder).strip()) / "include"
    values = [f"-G{name}={value}" for name, value in parameters.items()]
    options = ["--cc", "--top", top, "-y", ".", "-y", "..", "-Mdir", build, "-O3", "-Wno-fatal", *values]
    _run([program, *options, f"{top}.sv"], folder)
    sources = [top + ".cpp", *sorted(str(f.relative_to(folder)) for f in (folder / build).glob("*.cpp"))]
    searched = [f"-I{build}", f"-I{include}", f"-I{include / 'vltstd'}"]
    flags = ["-std=c++17", "-O1", f"-DMACS={parameters['MACS']}", *searched, "-pthread", "-o", top]
    _run([compiler(), *flags, *sources, *_runtime(compiler(), include)], folder)
    return folder / top


@cache
def _runtime(program: str, include: Path) -> tuple[str, ...]:
    """Verilator's own part, the same for every module: compiled once a process."""
    folder = Path(_temporary().name)
    objects = []
    for name in ("verilated", "verilated_threads"):
        objects.append(str(folder / f"{name}.o"))
        searched = [f"-I{include}", f"-I{include / 'vltstd'}"]
        _run([program, "-std=c++17", "-O1", "-c", *searched, "-o", objects[-1], str(include / f"{name}.cpp")], folder)
    return tuple(objects)


@cache
def _temporary() -> TemporaryDirectory[str]:
    """A folder that goes when the process does."""
    return TemporaryDirectory(prefix="fastcar-verilator-")


def _answer(program: Path, request: bytes) -> Tensor:
    """What a harness answers: int64 words."""
    done = subprocess.run([program], cwd=program.parent, input=request, capture_output=True)
    if done.returncode:
        raise RunError(f"the arithmetic in {program.parent}: {done.stderr.decode().strip()}")
    return torch.from_numpy(np.frombuffer(done.stdout, np.int32).astype(np.int64))


class Core:
    """A core as it lies in a folder, simulated; `row` has the shapes of those it will run.

    Raises RequestError where a program is missing or for rows that core.sv can't run, RunError where it is not built.
    """

    def __init__(self, folder: Path, row: CoreRow, macs: int, window: int) -> None:
        row.check(macs)
        self._macs = macs
        self._program = _built(folder.resolve(), "core", parameters(row, macs, window))

    def sums(self, row: CoreRow) -> Tensor:
        """What it sums and when, int64 [sums, 2], as `core.expected` has it."""
        return _answer(self._program, requests([row], self._macs))[1:].view(-1, 2)


class Units:
    """The arithmetic as it lies in a folder, with an array of `macs` (a multiple of 8, at least 16), simulated.

    Raises RequestError where a program is missing, RunError where the sources can't be built or answer too late.
    """

    def __init__(self, folder: Path, macs: int) -> None:
        self._program = _built(folder.resolve(), "units", {"MACS": macs})

    def _ask(self, *words: Tensor | Sequence[int]) -> Tensor:
        request = torch.cat([torch.as_tensor(w, dtype=torch.int64).flatten() for w in words])
        return _answer(self._program, request.numpy().astype(np.int32).tobytes())

    def sums(self, q: Tensor, weight: Tensor) -> Tensor:
        """Sums of an input int8 [in] and weights int8 [out, in], int64 [out]."""
        words = [w for row in weight for w in (torch.tensor([len(row)]), q, row)]
        return self._ask([SUMS, len(weight)], *words)

    def requantised(self, total: Tensor, rows: Rows, x: Coded) -> Tensor:
        """`integer.requantised` of sums int64 [n, out]."""
        by = (x.exponent + rows.exponent - FRACTION).clamp(max=MOST_SHIFT)
        words = (w.expand(total.shape) for w in (total, rows.multiplier, x.mantissa, by))
        return self._ask([REQUANTISE, total.numel()], *words).view(total.shape)

    def activated(self, gate: Tensor, up: Tensor) -> Tensor:
        """`integer.activated` of fixed-point numbers int64 of any shape."""
        return self._ask([ACTIVATE, gate.numel()], gate, up).view(gate.shape)

    def code(self, x: Tensor) -> Coded:
        """`integer.code` of one vector of fixed-point numbers, int64 [1, k]."""
        words = self._ask([CODE, x.numel()], x)
        return Coded(words[None, 2:].to(torch.int8), words[None, :1], FRACTION - words[None, 1:2])
