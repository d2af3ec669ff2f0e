"""One layer's MLPs on the accelerator, cycle by cycle: DRS, the queues before the cores, the cores.

The contract, also of the RTL (docs/rtl.md): cycle 0 loads the Index Register, the mapping takes `remap` cycles. Then
the packets of the rows arrive in order, one word per cycle. A row that computes waits until its core's queue has room
for its packet; a dropped row costs `drop` cycles. A core that has its packet starts one cycle later. A packet leaves
the queue when its row is done. With the weights in `lockstep` the cores of a round start together once the last has its
packet; with `multicast` each starts with its own packet, and a tile is sent when every core of the round has room for
it; with `private` no core waits for another.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fastcar_cli.errors import RequestError
from fastcar_fpga.isa import Program, Rates, cycles
from fastcar_fpga.preset import Preset, Weights

INDEX_BITS = 32  # width of the Index Register, and so the maximum rows of a batch
START = 1  # cycles from a layer's start to the first mapping, and from a core's start signal to its first instruction


def check_rows(rows: int) -> None:
    """Refuse more rows (one per input token of a pass) than the Index Register has bits. Raises RequestError."""
    if rows > INDEX_BITS:
        raise RequestError(
            f"a pass has {rows} input tokens, all rows together; the accelerator allows at most {INDEX_BITS}",
            hint="use fewer rows (a guided video has two) or a shorter draft length",
        )


class Registers:
    """The registers of Dynamic Resource Scheduling, as published.

    Once per layer, when its TAS is known, the Index Register takes one bit per row (1: compute), and rows that compute
    are dealt to the cores round-robin into the 32 Mapping Registers of `mapping_bits` bits.
    """

    def __init__(self, cores: int) -> None:
        self.cores = cores
        self.mapping_bits = max(1, (cores - 1).bit_length())
        self.index = 0
        self.mapping = [0] * INDEX_BITS

    def remap(self, computing: Sequence[int]) -> None:
        """Load the rows that compute, in order, and deal them to the cores."""
        self.index = 0
        for turn, row in enumerate(computing):
            self.index |= 1 << row
            self.mapping[row] = turn % self.cores

    def arrive(self, row: int) -> int | None:
        """The core that the instructions of a row go to; None if they are dropped."""
        return self.mapping[row] if self.index >> row & 1 else None


class Row(NamedTuple):
    """When a row's packet passed or was dropped, [first, last), and when the row ran, [begin, end), in cycles from the
    layer's start; core, begin and end are None for a dropped row.
    """

    row: int
    core: int | None
    first: int
    last: int
    begin: int | None
    end: int | None


@dataclass(frozen=True)
class Accelerator:
    """The parameters of a layer's time, in cycles."""

    cores: int
    weights: Weights
    row: int  # of a row, from its begin
    late: int  # of a row whose first tiles arrive before it begins (`multicast`)
    remap: int
    packet: int  # of a row's packet
    drop: int  # of a dropped one
    queue: int  # packets a core can hold
    timed: Callable[[int, Sequence[int]], int] | None = None  # replaces `end`

    @classmethod
    def of(cls, preset: Preset, program: Program) -> Accelerator:
        """The accelerator of a preset that runs this stream in every row that computes."""
        rates, drs = Rates.of(preset), preset.drs
        packet = program.words if drs.dispatch is None else int(drs.dispatch.value)
        drop = packet if drs.fetch == "stream" else int(drs.drop.value)
        row, late = cycles(program, rates), cycles(program, rates, loaded=True)
        remap, queue = int(drs.remap.value), int(drs.queue.value)
        return cls(preset.cores, preset.hbm.weights, row, late, remap, packet, drop, queue)

    def rounds(self, rounds: int) -> int:
        """Cycles of this many rounds whose packets are all there: a layer without the cost of DRS."""
        return rounds * (START + self.row)

    def end(self, core: int, begins: Sequence[int]) -> int:
        """The cycle in which rows end that share the tiles of a core's memory and begin in cycles `begins`."""
        if self.timed is not None:
            return self.timed(core, begins)
        return max(min(begins) + self.row, max(begins) + self.late)

    def layer(
        self, index: int, rows: int, gaps: Sequence[int] = (), drs: Registers | None = None
    ) -> tuple[list[Row], int]:
        """Run a layer whose Index Register is `index`; returns its rows and its cycles.

        gaps [rows]: cycles by which a row's packet is delayed. drs: registers that the previous layer used.
        """
        drs = drs or Registers(self.cores)
        drs.remap([row for row in range(rows) if index >> row & 1])
        cores, now = _Cores(self), START + self.remap
        seen: list[tuple[int, int | None, int, int, int]] = []
        for row in range(rows):
            now += gaps[row] if gaps else 0
            core, turn = drs.arrive(row), 0
            if core is None:
                first, now = now, now + self.drop
            else:
                turn = len(cores.arrived[core])
                first = max(now, cores.end(core, turn - self.queue))
                now = first + self.packet
                cores.arrived[core].append(now)
            seen.append((row, core, first, now, turn))
        ran = [
            Row(row, core, first, last, *((None, None) if core is None else cores.span(core, turn)))
            for row, core, first, last, turn in seen
        ]
        return ran, max([now, *(row.end for row in ran if row.end is not None)])


class _Cores:
    """When the cores begin and end the rows whose packets have `arrived`; `turn` counts a core's rows."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.accelerator = accelerator
        self.arrived: dict[int, list[int]] = defaultdict(list)
        self.spans: dict[int, list[tuple[int, int]]] = defaultdict(list)

    def end(self, core: int, turn: int) -> int:
        """When a core was done with a row; 0 for a turn before the first."""
        return 0 if turn < 0 else self.span(core, turn)[1]

    def span(self, core: int, turn: int) -> tuple[int, int]:
        """Begin and end of a row."""
        m = self.accelerator
        # All cores of a round end together, so except for private weights `spans` has one list, that of the rounds.
        spans = self.spans[core if m.weights == "private" else 0]
        while len(spans) <= turn:
            free = spans[-1][1] if spans else 0
            if m.weights == "private":
                begin = max(self.arrived[core][len(spans)], free) + START
                spans.append((begin, m.end(core, [begin])))
                continue
            there = [max(a[len(spans)], free) + START for a in self.arrived.values() if len(a) > len(spans)]
            begins = there if m.weights == "multicast" else [max(there)]
            spans.append((min(begins), m.end(0, begins)))
        begin, end = spans[turn]
        if m.weights == "multicast":
            begin = max(self.arrived[core][turn], spans[turn - 1][1] if turn else 0) + START
        return begin, end
