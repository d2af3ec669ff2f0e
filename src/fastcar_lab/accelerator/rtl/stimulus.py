"""What the RTL is run on: instruction packets, which accelerator.sv and sequencer.sv read, and layers of saved
decisions, or random ones with late packets and full queues.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from fastcar_cli.errors import RequestError
from fastcar_fpga.decisions import Decisions
from fastcar_fpga.isa import UNIT_OF, Program, Rates, compile_mlp, cycles
from fastcar_fpga.layer import INDEX_BITS, Accelerator, Row
from fastcar_fpga.preset import Preset, Weights

OPERATIONS = {"load": 0, "multiply": 1, "activate": 2, "accumulate": 3, "store": 4, "code": 5}
_COUNT_BITS, _LENGTH_BITS = 16, 29
SHORT = ((4, 4, 64, 64.0), (16, 24, 64, 4.0), (16, 24, 64, 64.0), (24, 40, 128, 2.0))
"""Small streams (width, MLP width, bytes of a tile, memory bytes a cycle): rows shorter and longer than a packet."""


WEIGHTS: tuple[Weights, ...] = ("private", "lockstep", "multicast")  # by the number that barrier.sv has for each


def counts(program: Program) -> dict[str, int]:
    """Instructions of each unit."""
    units = [UNIT_OF[i.op] for i in program.instructions]
    return {unit: units.count(unit) for unit in ("memory", "mac", "vector")}


def words_of(program: Program, rates: Rates) -> list[int]:
    """The packet of row 0: a header and a word an instruction, 64 bits each (layout: sequencer.sv). What an instruction
    waits for is written as how many of another unit must be done, since units run in order. Raises RequestError where a
    number does not fit its field.
    """
    count = counts(program)
    if len(program.instructions) >= 1 << _COUNT_BITS:
        raise RequestError(
            f"a row has {len(program.instructions)} instructions, but a packet holds at most {(1 << _COUNT_BITS) - 1}",
            hint="use an accelerator with a larger core.buffer, so that a row has fewer tiles",
        )
    words = [len(program.instructions) | count["memory"] << 24 | count["mac"] << 40]
    position: list[int] = []
    seen = {"memory": 0, "mac": 0, "vector": 0}
    for instruction in program.instructions:
        unit = UNIT_OF[instruction.op]
        seen[unit] += 1
        position.append(seen[unit])
        needs = {"memory": 0, "mac": 0, "vector": 0}
        for index in instruction.after:
            other = UNIT_OF[program.instructions[index].op]
            needs[other] = max(needs[other], position[index])
        length = rates.length(instruction)
        if length >= 1 << _LENGTH_BITS:
            raise RequestError(
                f"{instruction.op} takes {length:,} cycles, but an instruction has at most {1 << _LENGTH_BITS:,}"
            )
        first = needs["memory" if unit == "mac" else "mac"]
        second = 0 if unit == "memory" else needs["vector"]
        words.append(OPERATIONS[instruction.op] | length << 3 | first << 32 | second << 48)
    return words


@dataclass(frozen=True)
class Packet:
    """A stream, the rates it runs at, and the accelerator that runs it in every row."""

    program: Program
    rates: Rates
    accelerator: Accelerator

    @property
    def passes(self) -> bool:
        """Whether its words, one a cycle, pass in the cycles that the preset gives a packet."""
        return self.accelerator.packet >= self.program.words


@dataclass(frozen=True)
class Layer:
    """One layer to run: pass and layer it was saved from (None: random), rows that compute, packet, late packets."""

    step: int | None
    layer: int
    index: int
    rows: int
    packet: int
    gaps: tuple[int, ...] = ()


def packet_of(preset: Preset, program: Program, rates: Rates) -> Packet:
    """A packet of a program that runs at these rates on the preset's accelerator."""
    accelerator = Accelerator.of(preset, program)
    return Packet(
        program, rates, replace(accelerator, row=cycles(program, rates), late=cycles(program, rates, loaded=True))
    )


def short_packets(preset: Preset) -> list[Packet]:
    """The packets of the random layers."""
    latency = int(preset.hbm.latency.value)
    return [
        packet_of(preset, compile_mlp(width, inner, 8, tile, preset.window), Rates(16.0, 8.0, speed, 1, latency))
        for width, inner, tile, speed in SHORT
    ]


def random_layers(count: int, packets: int, first: int, seed: int = 0) -> Iterator[Layer]:
    """Random layers of 1 to 32 rows, from none to all computing, half of them with late packets.

    first: number of the first of the short packets, of which there are `packets`.
    """
    rng = np.random.default_rng(seed)
    for number in range(count):
        # Every number of rows comes, the full register and the empty one among them.
        rows = number % INDEX_BITS + 1
        density = rng.choice([0.0, 0.2, 0.5, 0.8, 1.0])
        index = sum(1 << int(r) for r in np.flatnonzero(rng.random(rows) < density))
        late = rng.random(rows) < 0.3
        gaps = np.where(late, rng.integers(1, 90, rows), 0) if number % 2 else np.zeros(rows, dtype=np.int64)
        yield Layer(None, number, index, rows, first + int(rng.integers(packets)), tuple(int(g) for g in gaps))


def crossed(layers: Iterable[Layer], packets: Sequence[Packet]) -> Iterator[Layer]:
    """The layers; of those without late packets each gets one, where its core can hold it, that is whole in the very
    cycle in which the core starts another row.
    """
    for layer in layers:
        accelerator = packets[layer.packet].accelerator

        def run(gaps: Sequence[int], layer: Layer = layer, accelerator: Accelerator = accelerator) -> list[Row]:
            return accelerator.layer(layer.index, layer.rows, gaps)[0]

        ran = [] if any(layer.gaps) else [r for r in run(()) if r.begin is not None]
        for other, row in combinations(ran, 2):
            late = (other.begin or 0) - row.last
            gaps = tuple(late if r == row.row else 0 for r in range(layer.rows))
            if other.core == row.core and late > 0 and run(gaps)[row.row].last == other.begin:
                layer = replace(layer, gaps=gaps)
                break
        yield layer


def layers_of(decisions: Decisions, packet: int, passes: int | None) -> Iterator[Layer]:
    """The layers of decisions in the order they run, of the first `passes`; rows are the slots of a pass."""
    replayed, windows, rows = decisions.replayed, decisions.windows, decisions.replayed.shape[1]
    computing = ~(replayed if windows is None else windows.slots)
    for step in range(computing.shape[2])[:passes]:
        slots = rows if windows is None else rows * int(windows.taken[step])
        for layer in range(computing.shape[0]):
            index = sum(1 << int(r) for r in np.flatnonzero(computing[layer, :slots, step]))
            yield Layer(step, layer, index, slots, packet)


def control_parameters(preset: Preset, packets: Sequence[Packet]) -> dict[str, int]:
    """Parameters of accelerator.sv."""
    queue = int(preset.drs.queue.value)

    def bits(unit: str) -> int:
        most = max(counts(p.program)[unit] for p in packets)
        return max(1, (queue * most - 1).bit_length())

    return {
        "CORES": preset.cores,
        "REMAP": int(preset.drs.remap.value),
        "DROP": max(1, int(preset.drs.drop.value)),
        "STREAM": int(preset.drs.fetch == "stream"),
        "DISPATCH": 0 if preset.drs.dispatch is None else int(preset.drs.dispatch.value),
        "WEIGHTS": WEIGHTS.index(preset.hbm.weights),
        "WINDOW": preset.window,
        "QUEUE": queue,
        "LATENCY": int(preset.hbm.latency.value),
        "LOAD_BITS": bits("memory"),
        "MAC_BITS": bits("mac"),
        "VECTOR_BITS": bits("vector"),
    }
