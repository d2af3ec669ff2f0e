"""Cycles of one instruction stream on one core.

A core has three in-order units: memory port, MAC array, vector unit. An instruction begins when its
unit is free and what it needs is done, so begin and end follow from those before it, in one pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from fastcar_cli.backends.fpga.isa import UNIT_OF, Instruction, Program
from fastcar_cli.backends.fpga.preset import Preset

_EPSILON = 1e-9


@dataclass(frozen=True)
class Rates:
    """What a core does in a cycle.

    bytes: of the memory it streams from, a cycle. burst: bytes of a burst; a transfer moves whole bursts.
    latency: cycles from a request to its first beat; requests are pipelined, one a cycle.
    """

    macs: float
    lanes: float
    bytes: float
    burst: int = 1
    latency: int = 0

    @classmethod
    def of(cls, preset: Preset) -> Rates:
        """The rates of a core of a preset: cores with private weights have a fixed share of the channels each."""
        hbm = preset.hbm
        return cls(
            preset.macs_per_cycle,
            preset.core.vector_lanes.value,
            preset.bytes_per_cycle / (preset.cores if hbm.weights == "private" else 1),
            int(hbm.beat.value * hbm.burst.value),
            int(hbm.latency.value),
        )

    def moved(self, size: float) -> float:
        """Bytes that cross the memory port for `size` bytes."""
        return math.ceil(size / self.burst - _EPSILON) * self.burst

    def length(self, instruction: Instruction) -> int:
        """Cycles the unit is busy with an instruction; of a load, those in which its beats pass."""
        if instruction.op == "load":
            return math.ceil(self.moved(instruction.amount) / self.bytes - _EPSILON)
        rate = self.macs if UNIT_OF[instruction.op] == "mac" else self.lanes
        return math.ceil(instruction.amount / rate - _EPSILON)


@dataclass(frozen=True)
class Span:
    """One instruction as it ran, in cycles from the begin of its row; a load begins with its request."""

    unit: str
    op: str
    begin: int
    end: int


def spans(program: Program, rates: Rates, *, loaded: bool = False) -> list[Span]:
    """Every instruction of a stream as it runs on one core.

    loaded: the tiles that fit the buffer wait in it already (a core that joins a multicast late).
    """
    ran: list[Span] = []
    free = {"memory": 0, "mac": 0, "vector": 0}
    passed = 0
    for instruction in program.instructions:
        unit = UNIT_OF[instruction.op]
        ready = max((ran[i].end for i in instruction.after), default=0)
        length = rates.length(instruction)
        if unit != "memory":
            begin = max(free[unit], ready)
            end = free[unit] = begin + length
        elif loaded and not instruction.after:
            begin = end = 0
        else:
            begin = max(free[unit], ready)
            free[unit] = begin + 1
            # Beats pass in the order of the requests; the latency of one passes beside the beats of another.
            end = passed = max(begin + rates.latency, passed) + length
        ran.append(Span(unit, instruction.op, begin, end))
    return ran


@lru_cache(maxsize=4096)
def cycles(program: Program, rates: Rates, loaded: bool = False) -> int:
    """Cycles of one stream on one core, from its first cycle to its last result."""
    return max(s.end for s in spans(program, rates, loaded=loaded))
