"""Layers for layer.sv, from packets to outputs, and what the emulator expects: every row's cycles and outputs.

Memory is that of the preset with its timing (device.py), or beats at a constant rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fastcar_cli.errors import RequestError
from fastcar_fpga.device import Dram
from fastcar_fpga.integer import FRACTION, MOST_SHIFT, Coded, Rows, activated, code, product
from fastcar_fpga.isa import SETTLE, Program, Rates, compile_mlp, drain, spans
from fastcar_fpga.layer import Row
from fastcar_fpga.preset import Preset
from fastcar_lab.accelerator.rtl.stimulus import control_parameters, counts, packet_of, random_layers, words_of

MACS, LANES, LAYERS = 16, 4, 10  # of the cores that random layers run on, and how many


class Memory:
    """What a port of the harness is: a channel of the preset's memory, and the cycles in which its words come."""

    def __init__(self, preset: Preset, word: int) -> None:
        self.dram, self.word = Dram(preset.stream()), word
        self.across = preset.part.burst_bytes * int(preset.hbm.channels.value)
        self.period = round(1e6 / preset.clock.value)
        self.bursts = self.there = self.passed = 0

    def serve(self, at: int, size: int) -> int:
        """The first cycle after a tile that is requested in cycle `at`."""
        fetched = 0
        for wanted in range(self.word, size + 1, self.word):
            while fetched < wanted:
                self.there = self.dram.read(self.bursts, at * self.period)
                self.bursts += 1
                fetched += self.across
            self.passed = max(self.passed, -(-self.there // self.period)) + 1
        return self.passed

    def numbers(self) -> list[int]:
        """The timing that dram.h reads, in its order."""
        d, part = self.dram, self.dram.stream.part
        shape = [self.period, self.across, d.columns, part.groups, part.banks, int(d.stream.order == "rows")]
        stream = [d.stream.ahead, d.stream.port, *d.ccd, d.data]
        return [*shape, *stream, d.rcd, d.rp, d.ras, d.rtp, d.rrd_s, d.rrd_l, d.faw, d.cl, d.rfc, d.refi]


@dataclass(frozen=True)
class MLPLayer:
    """A layer: matrices, the input of each row (one of which computes at least, or none), late packets."""

    program: Program
    rates: Rates  # of a core
    gate: Rows
    up: Rows
    down: Rows
    rows: Sequence[Coded]
    index: int
    gaps: Sequence[int]
    dram: bool  # whether its memory is the preset's, or has the rates' bytes a cycle

    def outputs(self, row: int) -> Tensor:
        """Fixed-point outputs of a row, int64 [width]."""
        x = self.rows[row]
        return product(self.down, code(activated(product(self.gate, x), product(self.up, x))))[0]

    def tiles(self) -> Iterator[tuple[Tensor, int]]:
        """The weights of every load, and the numbers in the vector that they are multiplied with."""
        at, turn = [0, 0, 0], 0
        matrices, program = (self.gate.weight, self.up.weight, self.down.weight), self.program.instructions
        coded = next(i for i, x in enumerate(program) if x.op == "code")
        for i, load in enumerate(program):
            if load.op != "load":
                continue
            m, turn = (2, turn) if i > coded else (turn, 1 - turn)
            yield matrices[m].flatten()[at[m] : at[m] + load.amount], matrices[m].shape[1]
            at[m] += load.amount

    def check(self, macs: int, lanes: int) -> None:
        """Refuse what layer.sv can't run. Raises RequestError."""
        width, inner = self.down.weight.shape
        sizes = [(len(tile), 1 if terms == inner else terms) for tile, terms in self.tiles()]
        whole = all(size % macs == 0 and size % terms == 0 for size, terms in sizes)
        groups = all(i.amount % lanes == 0 for i in self.program.instructions if i.op in ("activate", "code", "store"))
        if not whole or not groups or macs % lanes or lanes & lanes - 1 or width % macs or inner % macs:
            raise RequestError(
                f"layer.sv can't run {self.program.name} on an array of {macs} MACs and {lanes} lanes",
                hint="use whole words of the array for tiles and vectors, and whole groups of lanes for gate and up",
            )
        if self.rates.macs != macs or self.rates.bytes > macs:
            raise RequestError("layer.sv reads one word of weights per cycle", hint="use a memory of one word")

    def run(self, preset: Preset) -> tuple[list[Row], int]:
        """The rows and the cycles of the layer on a preset's cores."""
        accelerator = packet_of(preset, self.program, self.rates).accelerator
        if self.dram:
            accelerator = replace(accelerator, timed=self._timed(preset))
        return accelerator.layer(self.index, len(self.rows), self.gaps)

    def _timed(self, preset: Preset) -> Callable[[int, Sequence[int]], int]:
        ports = [Memory(preset, int(self.rates.macs)) for _ in range(preset.cores)]

        def end(core: int, begins: Sequence[int]) -> int:
            ran = spans(self.program, self.rates, begins, serve=ports[core].serve)
            return max(s.end for of in ran for s in of)

        return end


def parameters(layer: MLPLayer, preset: Preset, lanes: int) -> dict[str, int]:
    """Parameters of layer.sv."""

    def bits(count: int) -> int:
        return max(1, (count - 1).bit_length())

    macs = int(layer.rates.macs)
    longest = max(layer.down.weight.shape)
    values = control_parameters(preset, [packet_of(preset, layer.program, layer.rates)])
    del values["LATENCY"]
    return {
        **values,
        "MACS": macs,
        "LANES": lanes,
        "BUFFER_BITS": bits(preset.window * max(len(tile) // macs for tile, _ in layer.tiles())),
        "INPUT_BITS": bits(longest // macs),
        "NUMBER_BITS": bits(longest),
    }


def _packed(numbers: Tensor) -> Tensor:
    """Four int8 numbers in an int32 word."""
    return numbers.to(torch.int8).contiguous().view(torch.int32)


def _whole(numbers: Sequence[int]) -> Tensor:
    """Numbers of 32 bits, whatever their sign."""
    return torch.tensor(numbers).to(torch.int32)


def requests(layers: Sequence[MLPLayer], preset: Preset) -> bytes:
    """What layer.cpp reads of layers."""
    parts = [_whole(Memory(preset, 1).numbers())]
    for layer in layers:
        macs, matrices = int(layer.rates.macs), (layer.gate, layer.up, layer.down)
        packet = torch.tensor([w - (w >> 63 << 64) for w in words_of(layer.program, layer.rates)]).view(torch.int32)
        width, inner = layer.down.weight.shape
        shifts = [min(m.exponent - FRACTION, MOST_SHIFT) for m in matrices]
        sizes = [len(layer.rows), layer.index, width // macs, inner // macs, *shifts, width, int(layer.dram)]
        sizes += [layer.rates.latency, len(packet) // 2, counts(layer.program)["memory"]]
        parts += [_whole([*sizes, *(len(m.weight) for m in matrices)]), packet]
        for x, late in zip(layer.rows, layer.gaps or [0] * len(layer.rows), strict=True):
            parts += [_whole([late, int(x.mantissa), int(x.exponent)]), _packed(x.q[0])]
        parts += [m.multiplier.to(torch.int32) for m in matrices]
        for tile, _ in layer.tiles():
            parts += [_whole([len(tile) // macs]), _packed(tile)]
    return torch.cat(parts).numpy().tobytes()


def expected(layers: Sequence[MLPLayer], preset: Preset) -> bytes:
    """What layer.cpp compares with."""
    parts: list[Tensor] = []
    for layer in layers:
        ran, length = layer.run(preset)
        parts.append(_whole([length]))
        for r in ran:
            cells = [-1 if cell is None else cell for cell in (r.core, r.first, r.last - 1, r.begin, r.end)]
            parts += [_whole(cells), *([] if r.core is None else [layer.outputs(r.row).to(torch.int32)])]
    return torch.cat(parts).numpy().tobytes()


def random_mlps(preset: Preset) -> list[MLPLayer]:
    """Layers with random numbers: memory slower than the array, as fast, and that of the preset; late packets. Tiles of
    down begin within an output.
    """
    draws = torch.Generator().manual_seed(preset.cores)
    width, inner = 2 * MACS, 3 * MACS
    program = compile_mlp(width, inner, 8, width * MACS, preset.window, coded=True)

    def matrix(*shape: int) -> Rows:
        weight = torch.randint(-127, 128, shape, generator=draws).to(torch.int8)
        return Rows(weight, torch.randint(1, 2**16, shape[:1], generator=draws), 22)

    def vector() -> Coded:
        q = torch.randint(-127, 128, (1, width), generator=draws).to(torch.int8)
        mantissa = torch.randint(2**14, 2**15 + 1, (1, 1), generator=draws)
        # One in nine is shifted by more than the longest shift, so that nothing is left of it.
        exponent = torch.randint(15, 24, (1, 1), generator=draws)
        return Coded(q, mantissa, exponent if exponent > 15 else exponent + 45)

    made = []
    shapes = list(random_layers(3 * LAYERS, 1, 0, seed=preset.cores))[::3]
    for number, shape in enumerate(shapes):
        speed = (0.3, 0.7, 1.0)[number % 3]
        rates = Rates(
            float(MACS), float(LANES), speed * MACS, 1, int(preset.hbm.latency.value), drain(MACS), SETTLE
        )  # fmt: skip
        made.append(
            MLPLayer(
                program, rates, matrix(inner, width), matrix(inner, width), matrix(width, inner),
                [vector() for _ in range(shape.rows)], shape.index, shape.gaps,
                (number + 1) // 2 % 2 == 1,
            )
        )  # fmt: skip
    return made
