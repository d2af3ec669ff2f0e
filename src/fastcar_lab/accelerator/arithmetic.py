"""The arithmetic of a core in SystemVerilog (folder arithmetic/), built with Verilator and run.

mac_array.sv sums int8 products; requantise.sv, activate.sv and coder.sv are the vector unit of integer.py. units.cpp is
the harness of all four; layer.sv is whole layers on cores with that arithmetic, layer.cpp its harness. What a harness
reads and writes is in its head.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.errors import RunError
from fastcar_cli.system.files import make_folder, write_whole
from fastcar_fpga.integer import FRACTION, MOST_SHIFT, Coded, Rows
from fastcar_fpga.preset import Preset
from fastcar_lab.accelerator.rtl.bundle import write_parameters, write_sources
from fastcar_lab.accelerator.rtl.joined import MLPLayer, expected, parameters, requests
from fastcar_lab.accelerator.rtl.tools import call, compiler, verilator
from fastcar_lab.accelerator.rtl.vectors import ACTIVATE, CODE, REQUANTISE, SUMS


def write_arithmetic(folder: Path) -> None:
    """Write the sources, and the table that activate.sv reads. Raises RunError where a file can't be."""
    for part in (folder, folder / "arithmetic"):
        make_folder(part)
    write_sources(folder)


class Built:
    """A module of a folder with these parameters and its harness, built by its build.sh. Raises RequestError where a
    program is missing, RunError where it is not built.
    """

    def __init__(self, folder: Path, top: str, values: Mapping[str, int]) -> None:
        self.arithmetic, self.made = folder.resolve() / "arithmetic", f"decoded_{top}"
        make_folder(self.arithmetic / self.made)
        write_parameters(self.arithmetic / self.made, values)
        words = [f"arithmetic/{self.made}", top, f"arithmetic/{top}.cpp", "-y", "arithmetic", "-y", "."]
        tools = {"VERILATOR": verilator(), "CXX": compiler()}
        code, output = call(["./build.sh", *words, f"arithmetic/{top}.sv"], folder, tools)
        if code:
            raise RunError(f"{top} could not be built in {folder} (status {code})", hint=output[-1500:])

    def run(self, sent: bytes, answers: bytes | None = None) -> bytes:
        """What the harness answers, or says where it compares. Raises RunError for a difference."""
        files = [f"{self.made}/requests.bin", f"{self.made}/expected.bin"][: 1 if answers is None else 2]
        for name, data in zip(files, (sent, answers or b""), strict=False):
            write_whole(self.arithmetic / name, data)
        done = subprocess.run([f"{self.made}/build/simulate", *files], cwd=self.arithmetic, capture_output=True)
        if done.returncode:
            said = (done.stdout if answers is not None else b"").decode() + done.stderr.decode()
            raise RunError(f"the arithmetic in {self.arithmetic}: {said.strip()}")
        return done.stdout


def compare_layers(folder: Path, preset: Preset, layers: Sequence[MLPLayer]) -> str:
    """Run whole layers on the cores of a preset: what the harness says of rows' cycles and outputs, the emulator's.
    Raises RequestError where a program is missing or for layers that layer.sv can't run, RunError where it can't be
    built, and for the first difference.
    """
    lanes = int(preset.core.vector_lanes.value)
    layers[0].check(int(preset.core.mac_array.value), lanes)
    built = Built(folder, "layer", parameters(layers[0], preset, lanes))
    return built.run(requests(layers, preset), expected(layers, preset)).decode().strip()


class Units:
    """The arithmetic as it lies in a folder, with an array of `macs` (a multiple of 8, at least 16), simulated. Raises
    RequestError where a program is missing, RunError where the sources can't be built or answer too late.
    """

    def __init__(self, folder: Path, macs: int) -> None:
        self._built = Built(folder, "units", {"MACS": macs})

    def _ask(self, *words: Tensor | Sequence[int]) -> Tensor:
        request = torch.cat([torch.as_tensor(w, dtype=torch.int64).flatten() for w in words])
        answer = self._built.run(request.numpy().astype(np.int32).tobytes())
        return torch.from_numpy(np.frombuffer(answer, np.int32).astype(np.int64))

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
