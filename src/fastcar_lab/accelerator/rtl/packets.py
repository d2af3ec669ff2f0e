"""Instruction packets: a program as the words that DRS dispatches. accelerator.sv and sequencer.sv read them."""

from __future__ import annotations

from fastcar_cli.errors import RequestError
from fastcar_fpga.isa import UNIT_OF, Program
from fastcar_fpga.timing import Rates

OPERATIONS = {"load": 0, "multiply": 1, "activate": 2, "accumulate": 3, "store": 4, "code": 5}
_COUNT_BITS, _LENGTH_BITS = 16, 29


def counts(program: Program) -> dict[str, int]:
    """Instructions of each unit."""
    units = [UNIT_OF[i.op] for i in program.instructions]
    return {unit: units.count(unit) for unit in ("memory", "mac", "vector")}


def words_of(program: Program, rates: Rates) -> list[int]:
    """The packet of row 0: a header and a word an instruction, 64 bits each (layout: sequencer.sv).

    What an instruction waits for is written as how many of another unit must be done, since units run in
    order. Raises RequestError where a number does not fit its field.
    """
    count = counts(program)
    if len(program.instructions) >= 1 << _COUNT_BITS:
        raise RequestError(
            f"a row has {len(program.instructions)} instructions, a packet holds at most {(1 << _COUNT_BITS) - 1}",
            hint="an accelerator with a larger core.buffer, whose tiles are fewer",
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
                f"{instruction.op} takes {length:,} cycles, a packet holds at most {1 << _LENGTH_BITS:,}"
            )
        first = needs["memory" if unit == "mac" else "mac"]
        second = 0 if unit == "memory" else needs["vector"]
        words.append(OPERATIONS[instruction.op] | length << 3 | first << 32 | second << 48)
    return words
