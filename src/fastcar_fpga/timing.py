"""Cycles of one instruction stream on one core, whose three units (memory port, MAC array, vector unit) run in order.

An instruction begins when its unit is free and what it needs is done, so one pass over the stream finds all begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from fastcar_fpga.isa import UNIT_OF, Instruction, Program, compile_mlp
from fastcar_fpga.preset import Preset

_EPSILON = 1e-9

SETTLE = 10
"""Cycles from an operation of the vector unit in int8-exact to its results: those of coder.sv, the longest."""


def drain(macs: int) -> int:
    """Cycles from a multiply in int8-exact to its fixed-point numbers: an array of so many MACs, requantise.sv."""
    return (macs - 1).bit_length() + 9


def mlp_program(preset: Preset, width: int, mlp_width: int) -> Program:
    """The stream of an MLP of these widths on a preset's core."""
    bits, exact = preset.format.stored_bits, preset.format.kind == "int8-exact"
    return compile_mlp(width, mlp_width, bits, preset.tile_bytes, preset.window, exact)


@dataclass(frozen=True)
class Rates:
    """What a core does in a cycle: MACs, elements of vectors, bytes of memory.

    burst: bytes of a burst; a transfer moves whole bursts. latency: cycles from a request to its first beat; requests
    are pipelined, one a cycle. drain, settle: cycles from the end of a multiply until the vector unit has its sums, and
    from the end of one of its operations to the results. scale: cycles in which the scales of an output come.
    """

    macs: float
    lanes: float
    bytes: float
    burst: int = 1
    latency: int = 0
    drain: int = 0
    settle: int = 0
    scale: float = 0.0

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
        """Cycles from the end of an instruction of `unit` until one of `for_unit` may use what it made."""
        return self.settle if unit == "vector" else self.drain if (unit, for_unit) == ("mac", "vector") else 0

    def moved(self, size: float) -> float:
        """Bytes that cross the memory port for `size` bytes."""
        return math.ceil(size / self.burst - _EPSILON) * self.burst

    def length(self, instruction: Instruction) -> int:
        """Cycles the unit is busy with an instruction; of a load, those in which its beats pass."""
        if instruction.op == "load":
            weights = self.moved(instruction.amount) / self.bytes
            return math.ceil(max(weights, instruction.outputs * self.scale) - _EPSILON)
        rate = self.macs if UNIT_OF[instruction.op] == "mac" else self.lanes
        return math.ceil(instruction.amount / rate - _EPSILON)


@dataclass(frozen=True)
class Span:
    """One instruction as it ran, from the cycle in which its row begins at 0; a load begins with its request."""

    unit: str
    op: str
    begin: int
    end: int


def spans(program: Program, rates: Rates, *, loaded: bool = False) -> list[Span]:
    """Every instruction of a stream on one core; loaded: tiles that fit the buffer wait in it (a late join of a
    multicast).
    """
    return round_spans(program, rates, (0,), loaded=loaded)[0]


def round_spans(
    program: Program,
    rates: Rates,
    begins: Sequence[int],
    *,
    loaded: bool = False,
    serve: Callable[[int, int], int] | None = None,
) -> list[list[Span]]:
    """Every instruction as it runs on each core of a round, by the cycles in which their rows begin.

    A tile is sent to all of them, when each has room for it. serve: when the bytes of a load that is requested at a
    time are there; None: beats at the rate, `latency` after the request.
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
                # Beats pass in the order of the requests; the latency of one passes beside the beats of another.
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
    return max(s.end for s in spans(program, rates, loaded=loaded))
