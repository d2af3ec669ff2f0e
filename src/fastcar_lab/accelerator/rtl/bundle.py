"""The folder of `fastcar fpga rtl`: sources, parameters, packets, what is run, and what the emulator expects of it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import csv_of, file_text, make_folder, sha256_of, write_whole
from fastcar_cli.system.plain_data import parse_json
from fastcar_fpga.decisions import Decisions
from fastcar_fpga.device import Constant, Order
from fastcar_fpga.integer import TABLE
from fastcar_fpga.isa import Rates, mlp_program
from fastcar_fpga.layer import INDEX_BITS, Registers
from fastcar_fpga.preset import Preset, Weights
from fastcar_lab.accelerator.rtl import joined, stimulus
from fastcar_lab.accelerator.rtl.tools import ARITHMETIC, SOURCE
from fastcar_lab.accelerator.rtl.vectors import macs_of, vectors

RANDOM_LAYERS = 320  # random layers that are run before those of saved decisions


STREAMS: dict[Weights, tuple[str, Order, float]] = {
    "private": ("DDR4-2400", "rows", 800),
    "multicast": ("HBM2-1800", "groups", 200),
}
"""Channels that bound whole layers beside the preset's memory: the part, the order of its bursts, MHz of its port.

One by the reads of a row, the other by the port.
"""
CLOCK = 900  # MHz of the cores behind them, so that an array takes more than they give


def check(preset: Preset) -> None:
    """Refuse a preset whose accelerator the RTL does not have. Raises RequestError."""
    drs, hbm = preset.drs, preset.hbm
    problems = [
        (drs.remap.value < 32, f"drs.remap {drs.remap.value:g}", "use at least 32: one cycle per register"),
        (drs.fetch == "skip" and drs.drop.value < 1, "drs.drop 0", "use at least 1: a dropped header takes a cycle"),
        (hbm.latency.value < 1, "hbm.latency 0", "use at least 1"),
    ]
    for wrong, what, hint in problems:
        if wrong:
            raise RequestError(f"accelerator preset {preset.name}: the RTL has no {what}", hint=hint)


def _constant(value: float, unit: str) -> Constant:
    return Constant(value=value, unit=unit, source="another accelerator for the RTL", kind="assumption")


def _sharing(preset: Preset, weights: Weights, cores: int) -> Preset:
    """A preset with another way to share weights on so many cores."""
    window = _constant(2, "tiles") if weights == "multicast" else None
    hbm = preset.hbm.model_copy(update={"weights": weights, "window": window})
    return preset.model_copy(update={"cores": cores, "hbm": hbm})


def _bound(preset: Preset, part: str, order: Order, port_clock: float) -> Preset:
    """A preset with fast cores behind one channel of another memory and its port of 64 bytes."""
    one = _constant(1, "1")
    port = {"channels": one, "ports": one, "beat": _constant(64, "bytes"), "port_clock": _constant(port_clock, "MHz")}
    hbm = preset.hbm.model_copy(update={"part": part, "order": order, **port})
    return preset.model_copy(update={"hbm": hbm, "clock": _constant(CLOCK, "MHz")})


def others(preset: Preset) -> dict[str, Preset]:
    """Two more accelerators by folder, whose DRS does what the preset's leaves out, so that a fault there shows. Cores
    and queues in no power of two, the other way to drop, paced packets, a jump of one cycle, a longer mapping, and
    weights that each core streams for itself, or that are sent when every core has room.
    """

    def variant(
        weights: Weights, cores: int, remap: int, fetch: Literal["skip", "stream"], drop: int, dispatch: int | None
    ) -> Preset:
        drs = preset.drs.model_copy(
            update={
                "remap": _constant(remap, "cycles/layer"),
                "fetch": fetch,
                "drop": _constant(drop, "cycles/row"),
                "dispatch": None if dispatch is None else _constant(dispatch, "cycles/row"),
                "queue": _constant(preset.drs.queue.value + 1, "packets"),
            }
        )
        return _sharing(preset, weights, cores).model_copy(update={"drs": drs})

    short = 1 if preset.drs.fetch == "skip" else 9
    return {
        "machine_3": variant("private", 3, 40, "stream", 1, 70),
        "machine_5": variant("multicast", 5, 33, "skip", short, None),
    }


def write(folder: Path, preset: Preset, decisions: Decisions | None, passes: int | None = None) -> dict[str, Any]:
    """Write the folder; returns what is in it: parameters, layers, sources that were changed there and stay. Raises
    RequestError for a preset or a model that the RTL can't run, RunError where a file can't be written.
    """
    check(preset)
    packets: list[stimulus.Packet] = []
    layers: list[stimulus.Layer] = []
    if decisions is not None:
        decisions = decisions.fitting()
        decoder = decisions.spec.decoder
        program = mlp_program(preset, decoder.width, decoder.mlp_width)
        packets.append(stimulus.packet_of(preset, program, Rates.of(preset)))
        _check_dispatch(preset, packets[0])
        layers += stimulus.layers_of(decisions, 0, passes)
    short = _short(preset)
    first = len(packets)
    packets += short
    layers = [*stimulus.crossed(stimulus.random_layers(RANDOM_LAYERS, len(short), first), packets), *layers]
    machines = others(preset)
    for directory in (folder, *(folder / name for name in (ARITHMETIC.name, *machines))):
        make_folder(directory)
    kept = write_sources(folder)
    values = _machine(folder, preset, packets, layers)
    for name, other in machines.items():
        short = _short(other)
        shapes = stimulus.random_layers(RANDOM_LAYERS, len(short), 0, seed=other.cores)
        _machine(folder / name, other, short, list(stimulus.crossed(shapes, short)))
    _arithmetic(folder / ARITHMETIC.name, preset)
    return {"folder": str(folder), "parameters": values, "layers": len(layers), "kept": kept}


def _arithmetic(folder: Path, preset: Preset) -> None:
    """Write what layers and the parts of a core's arithmetic are built with, their requests, and expected answers."""
    _built(folder / "units", {"MACS": macs_of(preset)}, *vectors())
    paced = preset.model_copy(update={"drs": preset.drs.model_copy(update={"dispatch": None})})
    for weights in stimulus.WEIGHTS:
        cores = preset.cores if weights == "lockstep" else 3
        machine = _sharing(paced, weights, cores)
        if weights in STREAMS:
            machine = _bound(machine, *STREAMS[weights])
        layers = joined.random_mlps(machine)
        layers[0].check(joined.MACS, joined.LANES)
        sent, answers = joined.requests(layers, machine), joined.expected(layers, machine)
        _built(folder / f"layer_{weights}", joined.parameters(layers[0], machine, joined.LANES), sent, answers)


def _built(folder: Path, values: Mapping[str, int], sent: bytes, answers: bytes) -> None:
    """What build.sh and the harness of a part read."""
    make_folder(folder)
    write_parameters(folder, values)
    write_whole(folder / "requests.bin", sent)
    write_whole(folder / "expected.bin", answers)


def write_parameters(folder: Path, values: Mapping[str, int], widths: Mapping[str, int] | None = None) -> None:
    """Parameters for Verilator and, with what else it compares, for a harness."""
    write_whole(folder / "parameters.f", "".join(f"-G{k}={v}\n" for k, v in values.items()))
    write_whole(folder / "parameters.h", "".join(f"#define {k} {v}\n" for k, v in {**values, **(widths or {})}.items()))


def _short(preset: Preset) -> list[stimulus.Packet]:
    """The packets of the random layers. Raises RequestError where none passes in the preset's cycles."""
    short = stimulus.short_packets(preset)
    _check_dispatch(preset, min(short, key=lambda packet: packet.program.words))
    return [packet for packet in short if packet.passes]


def _machine(
    folder: Path, preset: Preset, packets: Sequence[stimulus.Packet], layers: Sequence[stimulus.Layer]
) -> dict[str, int]:
    """Write what one accelerator is built with, runs, and is expected to do; returns its parameters."""
    values = stimulus.control_parameters(preset, packets)
    # The RTL has widths of its own, which the harness compares with those of layer.py.
    write_parameters(folder, values, {"INDEX_BITS": INDEX_BITS, "MAPPING_BITS": Registers(preset.cores).mapping_bits})
    write_whole(folder / "parameters.json", json.dumps({"preset": preset.name, **values}, indent=1) + "\n")
    for number, packet in enumerate(packets):
        words = stimulus.words_of(packet.program, packet.rates)
        write_whole(folder / f"packet_{number}.hex", "".join(f"{w:016x}\n" for w in words))
    _tables(folder, layers, packets)
    return values


def _check_dispatch(preset: Preset, packet: stimulus.Packet) -> None:
    if not packet.passes:
        raise RequestError(
            f"accelerator preset {preset.name}: drs.dispatch is {packet.accelerator.packet}, "
            f"but a packet of {packet.program.words} words passes the RTL at one word per cycle",
            hint="use at least that many cycles, or omit drs.dispatch: a cycle per word",
        )


def _sources() -> dict[str, bytes]:
    """Files of the RTL by name, the table of the logistic function among them."""
    files = {file.name: file.read_bytes() for file in sorted(SOURCE.iterdir())}
    files |= {f"{ARITHMETIC.name}/{file.name}": file.read_bytes() for file in sorted(ARITHMETIC.iterdir())}
    # The last number is read with one behind it, of which nothing is ever added.
    table = "".join(f"{number:05x}\n" for number in [*TABLE.tolist(), int(TABLE[-1])])
    return files | {f"{ARITHMETIC.name}/logistic.hex": table.encode()}


def write_sources(folder: Path) -> list[str]:
    """Write the sources; one that was changed in the folder since stays, and its name is returned."""
    written_file = folder / "sources.json"
    written: dict[str, str] = {}
    # Without that list, or with a damaged one, whatever differs counts as changed.
    with contextlib.suppress(OSError, ValueError, TypeError):
        written = dict(parse_json(file_text(written_file)))
    kept = []
    for name, data in _sources().items():
        target, digest = folder / name, sha256(data).hexdigest()
        if target.exists() and not (target.is_file() and sha256_of(target) in (written.get(name), digest)):
            kept.append(name)
            continue
        write_whole(target, data)
        written[name] = digest
        if target.suffix == ".sh":
            target.chmod(0o755)
    write_whole(written_file, json.dumps(written, indent=1) + "\n")
    return kept


def _tables(folder: Path, layers: Sequence[stimulus.Layer], packets: Sequence[stimulus.Packet]) -> None:
    run, rows, late = [], [], []
    # One set of registers for all layers, as the RTL has it.
    drs = Registers(packets[0].accelerator.cores)
    for number, layer in enumerate(layers):
        ran, length = packets[layer.packet].accelerator.layer(layer.index, layer.rows, layer.gaps, drs)
        step = "" if layer.step is None else layer.step
        run.append([number, step, layer.layer, f"{layer.index:08x}", layer.rows, layer.packet, length])
        rows += [[number, step, layer.layer, r.row, r.core, r.first, r.last - 1, r.begin, r.end] for r in ran]
        late += [[number, row, gap] for row, gap in enumerate(layer.gaps) if gap]
    names = ["number", "pass", "layer"]
    write_whole(folder / "layers.csv", csv_of([*names, "index", "rows", "packet", "cycles"], run))
    cells = [*names, "row", "core", "first_word", "last_word", "begin", "end"]
    write_whole(folder / "expected.csv", csv_of(cells, rows))
    write_whole(folder / "gaps.csv", csv_of(["number", "row", "cycles"], late))
