"""The instruction set: one stream of instructions per row, compiled once per layer shape, and its cycles on one core.

A stream takes the weights of a layer through the local buffer, tile by tile. Its instructions run on three units of a
core: `load` on the memory port, `multiply` on the MAC array; on the vector unit `activate` (SiLU of the gate times up),
`accumulate`, `store` and, in int8-exact, `code` (activated numbers as int8). A unit runs its instructions in order; one
begins when its unit is free and what it needs is done, so one pass over the stream finds all begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fastcar_fpga.preset import Preset

Op = Literal["load", "multiply", "activate", "accumulate", "store", "code"]
VECTOR_OPS: tuple[Op, ...] = ("activate", "accumulate", "store", "code")
UNIT_OF: dict[str, str] = {"load": "memory", "multiply": "mac", **dict.fromkeys(VECTOR_OPS, "vector")}


@dataclass(frozen=True)
class Instruction:
    """One step of a unit."""

    op: Op
    amount: int  # bytes of a load, MACs of a multiply, or elements
    tile: int
    after: tuple[int, ...]  # indices of instructions that must be done first; besides, each unit runs in order
    outputs: int = 0  # of a load: number of outputs that have weights in it


@dataclass(frozen=True)
class Program:
    """The stream of one row."""

    name: str
    instructions: tuple[Instruction, ...]
    words: int  # of its packet: a header with the row and the number of words, then the instructions
    weight_bytes: int  # that pass the buffer
    macs: int
    vector_elements: int


class _Stream:
    """A stream being built. The buffer holds `window` tiles: the next is loaded when the oldest has been used."""

    def __init__(self, window: int) -> None:
        self.window = window
        self.instructions: list[Instruction] = []
        self._uses: list[int] = []

    def add(self, op: Op, amount: int, after: tuple[int, ...] = (), tile: int = -1, outputs: int = 0) -> int:
        self.instructions.append(Instruction(op, amount, tile, tuple(sorted(set(after))), outputs))
        return len(self.instructions) - 1

    def tile(self, outputs: int, size: int, macs: int, after: tuple[int, ...] = ()) -> int:
        """Load a tile and multiply by it; returns the index of the multiply."""
        free = (self._uses[-self.window],) if len(self._uses) >= self.window else ()
        tile = len(self._uses)
        load = self.add("load", size, free, tile, outputs)
        self._uses.append(self.add("multiply", macs, (load, *after), tile))
        return self._uses[-1]

    def program(self, name: str) -> Program:
        """The whole stream, with its totals."""
        totals = dict.fromkeys(("memory", "mac", "vector"), 0)
        for i in self.instructions:
            totals[UNIT_OF[i.op]] += i.amount
        return Program(name, tuple(self.instructions), 1 + len(self.instructions), *totals.values())


def _split(total: int, parts: int) -> list[int]:
    """Split a total into whole parts that differ by at most one."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def _tiles(inputs: int, outputs: int, bits: float, tile_bytes: int) -> list[tuple[int, int, int]]:
    """(outputs, bytes, MACs) of the tiles of a matrix, cut along its outputs. If a row of it needs several tiles,
    its output counts for the last of them.
    """
    size = math.ceil(inputs * outputs * bits / 8)
    count = min(inputs * outputs, max(1, -(-size // tile_bytes)))
    return list(zip(_split(outputs, count), _split(size, count), _split(inputs * outputs, count), strict=True))


def compile_mlp(
    width: int, mlp_width: int, bits: float, tile_bytes: int, window: int = 2, coded: bool = False
) -> Program:
    """SwiGLU of one row: gate and up tile by tile, activated as they come, then down, accumulated and stored.

    window: tiles the buffer holds. coded: the vector unit codes the activated vector before down.
    """
    stream = _Stream(window)
    activated: list[int] = []
    for channels, size, macs in _tiles(width, mlp_width, bits, tile_bytes):
        gate = stream.tile(channels, size, macs)
        up = stream.tile(channels, size, macs)
        if channels:
            activated.append(stream.add("activate", channels, (gate, up)))
    if coded:
        activated.append(stream.add("code", mlp_width, (activated[-1],)))
    last: tuple[int, ...] = ()
    for channels, size, macs in _tiles(mlp_width, width, bits, tile_bytes):
        # The first tile of down needs the whole activated vector; in-order units take care of the rest.
        down = stream.tile(channels, size, macs, (activated[-1],))
        if channels:
            last = (stream.add("accumulate", channels, (down,)),)
    stream.add("store", width, last)
    return stream.program("mlp")


def compile_linear(
    name: str, weights: int, outputs: int, bits: float, tile_bytes: int, window: int = 2, columns: int = 0
) -> Program:
    """Linear maps of one row with `columns` outputs, `outputs` of which are stored, as one stream of tiles."""
    stream = _Stream(window)
    last: tuple[int, ...] = ()
    tiles = _tiles(1, weights, bits, tile_bytes)
    for part, (_, size, macs) in zip(_split(columns, len(tiles)), tiles, strict=True):
        last = (stream.tile(part, size, macs),)
    stream.add("store", outputs, last)
    return stream.program(name)


_EPSILON = 1e-9

SETTLE = 10  # cycles from an operation of the vector unit in int8-exact to its results: those of coder.sv, the longest


def drain(macs: int) -> int:
    """Cycles from a multiply of an array of this many MACs in int8-exact to its fixed-point numbers (requantise.sv)."""
    return (macs - 1).bit_length() + 9


def mlp_program(preset: Preset, width: int, mlp_width: int) -> Program:
    """The stream of an MLP of these widths on a preset's core."""
    bits, exact = preset.format.stored_bits, preset.format.kind == "int8-exact"
    return compile_mlp(width, mlp_width, bits, preset.tile_bytes, preset.window, exact)


@dataclass(frozen=True)
class Rates:
    """A core's work per cycle: MACs, elements of vectors, bytes of memory."""

    macs: float
    lanes: float
    bytes: float
    burst: int = 1  # bytes of a burst; a transfer moves whole bursts
    latency: int = 0  # cycles from a request to its first beat; requests are pipelined, one per cycle
    drain: int = 0  # cycles from the end of a multiply until the vector unit has its sums
    settle: int = 0  # cycles from the end of one of its operations to the results
    scale: float = 0.0  # cycles in which the scales of an output arrive

    @classmethod
    def of(cls, preset: Preset) -> Rates:
        """The rates of a core of a preset: cores with private weights have a fixed share of the channels each."""
        hbm, exact, scales = preset.hbm, preset.format.kind == "int8-exact", preset.hbm.scales
        core = preset.core
        return cls(
            core.mac_array.value * core.utilisation.value,
            core.vector_lanes.value,
            preset.rate() * preset.dealt,
            int(hbm.beat.value * hbm.burst.value),
            int(hbm.latency.value),
            drain(int(core.mac_array.value)) if exact else 0,
            SETTLE if exact else 0,
            scales.cycles(hbm.latency.value) if scales else 0.0,
        )

    def lag(self, unit: str, for_unit: str) -> int:
        """Cycles from the end of an instruction of `unit` until one of `for_unit` may use its result."""
        return self.settle if unit == "vector" else self.drain if (unit, for_unit) == ("mac", "vector") else 0

    def moved(self, size: float) -> float:
        """Bytes that cross the memory port for `size` bytes."""
        return math.ceil(size / self.burst - _EPSILON) * self.burst

    def length(self, instruction: Instruction) -> int:
        """Cycles the unit is busy with an instruction; for a load, those in which its beats pass."""
        if instruction.op == "load":
            weights = self.moved(instruction.amount) / self.bytes
            return math.ceil(max(weights, instruction.outputs * self.scale) - _EPSILON)
        rate = self.macs if UNIT_OF[instruction.op] == "mac" else self.lanes
        return math.ceil(instruction.amount / rate - _EPSILON)


@dataclass(frozen=True)
class Span:
    """One instruction as it ran, in the cycles of `begins` (see `spans`); a load begins with its request."""

    unit: str
    op: str
    begin: int
    end: int


def spans(
    program: Program,
    rates: Rates,
    begins: Sequence[int] = (0,),
    *,
    loaded: bool = False,
    serve: Callable[[int, int], int] | None = None,
) -> list[list[Span]]:
    """Every instruction as it runs on each core of a round; begins: the cycles in which the cores' rows begin.

    A tile is sent to all of them when each has room for it. loaded: tiles that fit the buffer are already there. serve:
    the time a load arrives, from its request and bytes; None: beats at the rate, `latency` after the request.
    """
    ran: list[list[Span]] = [[] for _ in begins]
    free = [{"mac": begin, "vector": begin} for begin in begins]
    request, passed = min(begins), 0
    for instruction in program.instructions:
        unit = UNIT_OF[instruction.op]
        ready = [max((of[i].end + rates.lag(of[i].unit, unit) for i in instruction.after), default=0) for of in ran]
        length = rates.length(instruction)
        if unit == "memory":
            begin = end = 0
            if instruction.after or not loaded:
                begin = max(request, *ready)
                request = begin + 1
                # Beats pass in the order of the requests; the latency of one overlaps the beats of another.
                requested = begin + rates.latency
                end = passed = serve(requested, instruction.amount) if serve else max(requested, passed) + length
            for of in ran:
                of.append(Span(unit, instruction.op, begin, end))
            continue
        for core, of in enumerate(ran):
            begin = max(free[core][unit], ready[core])
            free[core][unit] = begin + length
            of.append(Span(unit, instruction.op, begin, begin + length))
    return ran


@lru_cache(maxsize=4096)
def cycles(program: Program, rates: Rates, loaded: bool = False) -> int:
    """Cycles of one stream on one core, from its first cycle to its last result."""
    return max(s.end for s in spans(program, rates, loaded=loaded)[0])
