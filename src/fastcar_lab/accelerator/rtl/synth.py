"""Resources of the RTL by yosys: what an open synthesiser makes of it, which is no vendor's figure."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from fastcar_cli.errors import RunError
from fastcar_cli.system.files import csv_of, write_whole
from fastcar_fpga.device import load_device
from fastcar_fpga.preset import Preset
from fastcar_lab.accelerator.rtl.tools import call, yosys

FAMILY = "xcup"
CAVEAT = "yosys estimate"
CARDS = ("KV260", "U280", "V80")  # devices of which units take a share; device.py has what each has, and from where

KINDS = ("LUT", "FF", "DSP", "BRAM36", "URAM")

MACS = 16  # MACs of the array that is synthesised: a core's has more of the same

ARTEFACT = "yosys estimate; the adder tree takes LUTs and FFs, some of which a vendor's tool packs into DSPs"

CORE = "a core"
CORE_CAVEAT = (
    f"{CAVEAT} of sequencer and, in int8-exact, vector unit; by the preset one DSP per MAC, and the bits of the weight "
    "buffer; LUT and FF of the MAC array are not counted"
)
ALL = "all cores with DRS"

UNITS = {
    "DRS": ("drs", ("CORES", "REMAP", "DROP", "STREAM", "DISPATCH"), CAVEAT),
    "barrier": ("barrier", ("CORES", "WEIGHTS"), CAVEAT),
    "sequencer of a core": ("sequencer", ("QUEUE", "WINDOW", "LOAD_BITS", "MAC_BITS", "VECTOR_BITS"), CAVEAT),
    f"MAC array, {MACS} MACs": ("mac_array", ("MACS",), ARTEFACT),
    "requantisation": ("requantise", (), CAVEAT),
    "SiLU of a lane": ("activate", (), CAVEAT),
    "coder of a lane": ("coder", (), CAVEAT),
}
"""What is synthesised: its name, its module, its parameters, and what to know of its counts."""


LUTRAM = {
    "RAM32M16": 8, "RAM32M": 4, "RAM64M8": 8, "RAM64M": 4, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4, "SRL16E": 1,
    "SRLC32E": 1,
}  # fmt: skip
"""LUTs of a distributed memory or a shift register (AMD UG974)."""


def kind_of(cell: str) -> str | None:
    """What a cell counts for: LUT, FF, DSP, BRAM36, BRAM18, URAM; None for carries, multiplexers, inverters, buffers. A
    memory or shift register made of LUTs counts for those it takes. Inverters end up in the LUTs beside them.
    """
    if cell.startswith("LUT") or cell in LUTRAM:
        return "LUT"
    if cell.startswith(("FD", "LD")):
        return "FF"
    for start, kind in (("DSP", "DSP"), ("RAMB36", "BRAM36"), ("RAMB18", "BRAM18"), ("URAM", "URAM")):
        if cell.startswith(start):
            return kind
    return None


def totals(cells: dict[str, int]) -> dict[str, float]:
    """LUT, FF, DSP, BRAM36 (two RAMB18 are one) and URAM of counted cells."""
    used = dict.fromkeys(KINDS, 0.0)
    for cell, count in cells.items():
        kind = kind_of(cell)
        if kind == "LUT":
            used["LUT"] += LUTRAM.get(cell, 1) * count
        elif kind == "BRAM18":
            used["BRAM36"] += count / 2
        elif kind is not None:
            used[kind] += count
    return used


def _share(used: dict[str, float], card: str) -> dict[str, float]:
    """What a unit takes of each resource of a device, above 1 where it does not fit."""
    there = load_device(card).resources
    return {} if there is None else {kind: used[kind] / getattr(there, kind) for kind in KINDS}


def synthesise(folder: Path, parameters: dict[str, int], preset: Preset) -> list[dict[str, Any]]:
    """Synthesise the sources in a folder; writes resources.csv there and returns a row a unit, a core, and all.

    A core is its sequencer as synthesised, and in int8-exact its vector unit, and from the preset a DSP a MAC and its
    weight buffer in RAMB36. share: of the devices CARDS, above 1 where it does not fit. Raises
    RequestError where yosys is missing, RunError where it fails.
    """
    program = yosys()
    code, version = call([program, "--version"], folder)
    if code:
        raise RunError(f"{program} --version ended with status {code}", hint=version[-500:])
    version = version.strip().splitlines()[-1]
    rows: list[dict[str, Any]] = []
    table: list[list[object]] = []
    made: dict[str, Counter[str]] = {}

    def add(name: str, module: str, cells: dict[str, int], tool: str, caveat: str) -> None:
        table.extend(
            [name, module, cell, count, kind_of(cell) or "", tool, version, FAMILY, caveat]
            for cell, count in sorted(cells.items())
        )
        used = totals(cells)
        rows.append({"unit": name, **used, "share": {card: _share(used, card) for card in CARDS}})

    parameters = {**parameters, "MACS": MACS}
    for name, (module, names, caveat) in UNITS.items():
        made[module] = Counter(_cells(program, folder, module, {n: parameters[n] for n in names}))
        add(name, module, made[module], "yosys", caveat)
    lanes = int(preset.core.vector_lanes.value) if preset.format.kind == "int8-exact" else 0
    core = made["sequencer"].copy()
    for module, count in (("requantise", min(lanes, 1)), ("activate", lanes), ("coder", lanes)):
        core.update({cell: count * n for cell, n in made[module].items()})
    by_preset = arithmetic(preset)
    core.update(DSP48E2=round(by_preset["DSP"] / preset.cores), RAMB36E2=math.ceil(by_preset["RAMB36"] / preset.cores))
    add(CORE, "sequencer", core, "yosys, preset", CORE_CAVEAT)
    every = made["drs"] + made["barrier"] + Counter({cell: preset.cores * n for cell, n in core.items()})
    add(ALL, "accelerator", every, "yosys, preset", CORE_CAVEAT)
    header = ["unit", "module", "cell", "count", "counts_as", "tool", "version", "family", "caveat"]
    write_whole(folder / "resources.csv", csv_of(header, table))
    return rows


def _cells(program: str, folder: Path, module: str, parameters: dict[str, int]) -> dict[str, int]:
    """Cells of one module after synthesis, by a script that stays in the folder: synth_MODULE.ys."""
    sources = [f"{module}.sv" if (folder / f"{module}.sv").exists() else f"arithmetic/{module}.sv"]
    sources += ["instructions.sv", "late.sv"] if module == "sequencer" else []
    lines = (
        f"read_verilog -sv {' '.join(sources)}",
        *([f"chparam {' '.join(f'-set {k} {v}' for k, v in parameters.items())} {module}"] if parameters else []),
        f"hierarchy -top {module}",
        f"synth_xilinx -family {FAMILY} -flatten -noiopad -noclkbuf",
        f"tee -q -o synth_{module}.json stat -json",
    )
    script, stat = folder / f"synth_{module}.ys", folder / f"synth_{module}.json"
    stat.unlink(missing_ok=True)
    write_whole(script, "".join(f"{line}\n" for line in lines))
    code, output = call([program, "-q", "-s", script.name], folder)
    if code or not stat.exists():
        raise RunError(f"{program} could not synthesise {module} (status {code})", hint=output[-1500:])
    counted = json.loads(stat.read_text(encoding="utf-8"))
    # What begins with a dollar is a note of yosys and no cell of the device.
    return {k: int(v) for k, v in counted["design"]["num_cells_by_type"].items() if not k.startswith("$")}


def arithmetic(preset: Preset) -> dict[str, float]:
    """What follows from the preset alone, for all cores: memory of the weight buffers by bits, a DSP a MAC."""
    bits = preset.cores * preset.window * preset.tile_bytes * 8
    return {"RAMB36": bits / 36_864, "URAM288": bits / 294_912, "DSP": preset.cores * preset.core.mac_array.value}
