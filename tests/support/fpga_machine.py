"""The accelerator stepped cycle by cycle: what layer.py and isa.py compute, as slowly and plainly as can be."""

from __future__ import annotations

from collections.abc import Sequence

from fastcar_fpga.isa import UNIT_OF, Program, Rates
from fastcar_fpga.layer import Accelerator


class Port:
    """A memory port: requests wait their latency side by side, beats pass in order."""

    def __init__(self, latency: int) -> None:
        self.latency = latency
        self.requests: list[list[int]] = []

    def ask(self, now: int, length: int, name: int) -> None:
        self.requests.append([now + self.latency, length, name])

    def step(self, now: int) -> int | None:
        """Pass what passes in this cycle; the name of a request that is whole after it."""
        if self.requests and self.requests[0][0] <= now:
            self.requests[0][1] -= 1
            if self.requests[0][1] == 0:
                return self.requests.pop(0)[2]
        return None


class Core:
    """One core: which instructions of its row are done, and which are under way."""

    def __init__(self, program: Program, rates: Rates) -> None:
        self.program, self.rates = program, rates
        self.queue: list[tuple[int, int]] = []
        self.begin: int | None = None
        self.port = Port(rates.latency)
        self.reset()

    def reset(self) -> None:
        self.done: set[int] = set()
        self.running = {"mac": [0, -1], "vector": [0, -1]}
        self.waiting: dict[str, list[int]] = {"memory": [], "mac": [], "vector": []}
        for index, instruction in enumerate(self.program.instructions):
            self.waiting[UNIT_OF[instruction.op]].append(index)

    def ready(self, unit: str) -> int | None:
        """The next instruction of a unit, if what it needs is done."""
        if self.waiting[unit]:
            index = self.waiting[unit][0]
            if all(i in self.done for i in self.program.instructions[index].after):
                return index
        return None

    def issue(self, now: int, units: Sequence[str]) -> None:
        for unit in units:
            index = self.ready(unit)
            if index is None or (unit != "memory" and self.running[unit][0]):
                continue
            self.waiting[unit].pop(0)
            length = self.rates.length(self.program.instructions[index])
            if unit == "memory":
                self.port.ask(now, length, index)
            else:
                self.running[unit] = [length, index]

    def step(self, now: int) -> list[int]:
        """What is done at the end of this cycle."""
        finished = []
        for unit in self.running.values():
            if unit[0]:
                unit[0] -= 1
                if unit[0] == 0:
                    finished.append(unit[1])
        load = self.port.step(now)
        return finished if load is None else [*finished, load]


def run(
    machine: Accelerator, program: Program, rates: Rates, index: int, rows: int, gaps: Sequence[int]
) -> tuple[dict[int, tuple[int, int, int, int, int]], int]:
    """Step a layer to its end: row -> (core, first, last, begin, end) of those that compute, and its cycles."""
    c = machine.cores
    cores = [Core(program, rates) for _ in range(c)]
    stream, stream_next, stream_on = Port(rates.latency), 0, False
    loads = [i for i, x in enumerate(program.instructions) if x.op == "load"]
    turn, row, gap, passing = 0, 0, list(gaps), 0
    target: Core | None = None
    left = bin(index).count("1")
    seen: dict[int, list[int]] = {}
    pending: list[list[Core]] = []
    running: list[Core] = []
    now = 0
    while True:
        # The round that runs is over once each of its cores is done with its row.
        if (
            machine.weights != "private"
            and running
            and all(k.begin is not None and len(k.done) == len(program.instructions) for k in running)
        ):
            for core in running:
                seen[core.queue[0][0]].append(now)
                core.queue.pop(0)
                core.begin = None
            running, stream_on = [], False
        if machine.weights == "private":
            for core in cores:
                if core.begin is not None and len(core.done) == len(program.instructions):
                    seen[core.queue.pop(0)[0]].append(now)
                    core.begin = None
        if row == rows and not passing and not any(k.queue for k in cores):
            return {r: tuple(v) for r, v in seen.items()}, now  # type: ignore[misc]
        # DRS passes a word of a packet, or a cycle of a drop.
        if now > machine.remap:
            if not passing and row < rows:
                if gap[row]:
                    gap[row] -= 1
                elif not index >> row & 1:
                    passing, target = machine.drop, None
                elif len(cores[turn % c].queue) < machine.queue:
                    target = cores[turn % c]
                    if turn % c == 0:
                        pending.append(cores[: min(c, left)])
                        left -= len(pending[-1])
                    passing = machine.packet
                    seen[row] = [turn % c, now, now + passing]
                    target.queue.append((row, now + passing))
                    turn += 1
                if passing:
                    row += 1
            passing = max(0, passing - 1)

        # Who may start in the next cycle.
        def there(core: Core) -> bool:
            return bool(core.queue) and core.begin is None and core.queue[0][1] <= now  # noqa: B023

        starting: list[Core] = []
        if machine.weights == "private":
            starting = [k for k in cores if there(k)]
        else:
            if (
                not running
                and pending
                and (
                    all(there(k) for k in pending[0]) if machine.weights == "lockstep" else any(map(there, pending[0]))
                )
            ):
                running, stream_next = pending.pop(0), 0
            starting = [k for k in running if there(k)]
        for core in cores:
            if core.begin is not None and core.begin <= now:
                core.issue(now, ("mac", "vector") if machine.weights == "multicast" else ("memory", "mac", "vector"))
        if machine.weights == "multicast" and stream_on and stream_next < len(loads):
            load = loads[stream_next]
            if all(i in k.done for k in running for i in program.instructions[load].after):
                stream.ask(now, rates.length(program.instructions[load]), load)
                stream_next += 1
        for core in starting:
            core.begin = now + 1
            if not (machine.weights == "multicast" and stream_on):
                core.reset()
            seen[core.queue[0][0]].append(now + 1)
        if machine.weights == "multicast" and starting and not stream_on:
            stream_on = True
            for core in running:
                core.reset()
        for core in cores:
            core.done |= set(core.step(now))
        sent = stream.step(now)
        if sent is not None:
            for core in running:
                core.done.add(sent)
        now += 1
