"""Event-driven simulation of cores that run instruction streams and share the memory.

Each core has three in-order units. Transfers share the bandwidth equally; with broadcast weights,
cores that ask for the same tile of the same layer in the same cycle share one transfer.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from fastcar_cli.backends.fpga.isa import UNIT_OF, Program
from fastcar_cli.backends.fpga.preset import Preset

_EPSILON = 1e-9


@dataclass(frozen=True)
class Rates:
    """What a core does in a cycle, and the bytes a cycle of the memory."""

    macs: float
    lanes: float
    bytes: float
    broadcast: bool

    @classmethod
    def of(cls, preset: Preset) -> Rates:
        """The rates of a preset."""
        return cls(
            preset.macs_per_cycle,
            preset.core.vector_lanes.value,
            preset.bytes_per_cycle,
            preset.hbm.weights == "broadcast",
        )


@dataclass(frozen=True)
class Span:
    """One instruction as it ran: row and index say which, begin and end are cycles."""

    core: int
    unit: str
    op: str
    row: int
    begin: float
    end: float


@dataclass
class Simulation:
    """What a simulation found, in cycles and bytes."""

    finished: list[float]
    mac_busy: list[float]
    memory_bytes: float = 0.0
    executed: list[tuple[int, int]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)

    @property
    def cycles(self) -> float:
        """When the last core is done."""
        return max(self.finished, default=0.0)


@dataclass
class _Transfer:
    begin: float
    remaining: float
    key: tuple[int, int]
    listeners: list[tuple[int, int]]


class _CoreState:
    """Where a core stands in its rows' streams."""

    def __init__(self, rows: Sequence[tuple[int, Program]]) -> None:
        self.rows = list(rows)
        self.position = -1
        self.next_row()

    def next_row(self) -> None:
        self.position += 1
        self.done: set[int] = set()
        self.waiting: dict[str, list[int]] = {"memory": [], "mac": [], "vector": []}
        self.busy = {"memory": False, "mac": False, "vector": False}
        if self.position < len(self.rows):
            for index, instruction in reversed(list(enumerate(self.rows[self.position][1].instructions))):
                self.waiting[UNIT_OF[instruction.op]].append(index)

    @property
    def finished(self) -> bool:
        return self.position >= len(self.rows)


def simulate(queues: Sequence[Sequence[tuple[int, Program]]], rates: Rates, keep_spans: bool = False) -> Simulation:
    """Run the (row, program) queues of the cores to their end.

    A row begins when the one before it on its core is stored.
    """
    cores = [_CoreState(q) for q in queues]
    result = Simulation([0.0] * len(cores), [0.0] * len(cores))
    transfers: list[_Transfer] = []
    events: list[tuple[float, int, int, str, int]] = []
    now, order = 0.0, 0
    begun: dict[tuple[int, int], float] = {}

    def start(c: int) -> None:
        nonlocal order
        core = cores[c]
        if core.finished:
            return
        instructions = core.rows[core.position][1].instructions
        for unit, queue in core.waiting.items():
            if core.busy[unit] or not queue or any(d not in core.done for d in instructions[queue[-1]].after):
                continue
            index = queue.pop()
            instruction = instructions[index]
            core.busy[unit] = True
            begun[c, index] = now
            if unit == "memory":
                key = (core.position, instruction.tile)
                shared = next((t for t in transfers if rates.broadcast and t.key == key and t.begin == now), None)
                if shared is not None:
                    shared.listeners.append((c, index))
                else:
                    transfers.append(_Transfer(now, float(instruction.amount), key, [(c, index)]))
                    result.memory_bytes += instruction.amount
                continue
            rate = rates.macs if unit == "mac" else rates.lanes
            duration = math.ceil(instruction.amount / rate - _EPSILON)
            if unit == "mac":
                result.mac_busy[c] += duration
            order += 1
            heapq.heappush(events, (now + duration, order, c, unit, index))

    def finish(c: int, unit: str, index: int) -> None:
        core = cores[c]
        row, program = core.rows[core.position]
        if keep_spans:
            result.spans.append(Span(c, unit, program.instructions[index].op, row, begun[c, index], now))
        core.done.add(index)
        core.busy[unit] = False
        if len(core.done) == len(program.instructions):
            result.executed.append((row, c))
            result.finished[c] = now
            core.next_row()

    for c in range(len(cores)):
        start(c)
    while events or transfers:
        share = rates.bytes / len(transfers) if transfers else 0.0
        least = min((t.remaining for t in transfers), default=0.0)
        landing = now + least / share if transfers else float("inf")
        then = min(landing, events[0][0] if events else float("inf"))
        landed = []
        if landing <= then + _EPSILON:
            # By bytes and not by clock: a short transfer late in a run is below the clock's resolution.
            landed = [t for t in transfers if t.remaining <= least * (1 + _EPSILON) + _EPSILON]
        for t in transfers:
            t.remaining -= min(t.remaining, (then - now) * share)
        now = then
        touched: set[int] = set()
        for t in landed:
            transfers.remove(t)
            for c, index in t.listeners:
                finish(c, "memory", index)
                touched.add(c)
        while events and events[0][0] <= now + _EPSILON:
            _, _, c, unit, index = heapq.heappop(events)
            finish(c, unit, index)
            touched.add(c)
        for c in sorted(touched):
            start(c)
    return result
