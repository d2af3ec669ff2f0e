"""What the sequencer of a core makes its MAC array sum: a row's program with its weights, and every sum with its cycle.

core.sv takes the tiles of a program (isa.py) as they lie in memory, a word of as many weights as the array has MACs a
cycle. What it sums, and when, follows from the matrices and from `timing.spans`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fastcar_cli.backends.fpga.isa import UNIT_OF, Instruction, Program, compile_mlp
from fastcar_cli.backends.fpga.rtl.packets import counts, words_of
from fastcar_cli.backends.fpga.timing import Rates, spans
from fastcar_cli.errors import RequestError


@dataclass(frozen=True)
class CoreRow:
    """A row whose MLP a core computes: program, rates, int8 matrices [out, in], its input and the activated vector."""

    program: Program
    rates: Rates
    gate: Tensor
    up: Tensor
    down: Tensor
    x: Tensor
    activated: Tensor

    def tiles(self) -> Iterator[tuple[Tensor, Tensor, int, Instruction, int]]:
        """Of every multiply: its matrix, the vector it reads, its first weight in the matrix, itself, and its begin."""
        at = {"gate": 0, "up": 0, "down": 0}
        program = self.program.instructions
        first = True
        for span, instruction in zip(spans(self.program, self.rates), program, strict=True):
            if instruction.op != "multiply":
                continue
            if any(UNIT_OF[program[i].op] == "vector" for i in instruction.after):
                name, vector = "down", self.activated
            else:
                name, vector, first = "gate" if first else "up", self.x, not first
            yield getattr(self, name), vector, at[name], instruction, span.begin
            at[name] += instruction.amount

    def check(self, macs: int) -> None:
        """Refuse what core.sv can't run. Raises RequestError."""
        whole = self.rates.macs == macs and all(
            i.amount % macs == 0 and start % macs == 0 and v.numel() % macs == 0 and (
                v is self.activated or (start % v.numel() == 0 and i.amount % v.numel() == 0)
            )
            for _, v, start, i, _ in self.tiles()
        )  # fmt: skip
        if not whole or self.rates.bytes > macs:
            raise RequestError(
                f"an array of {macs} MACs does not run {self.program.name} as core.sv has it",
                hint="tiles and vectors in whole words of it, gate and up in whole outputs, a word a cycle at most",
            )


def _packed(numbers: Tensor) -> Tensor:
    """Four int8 numbers in an int32 word."""
    return numbers.to(torch.int8).contiguous().view(torch.int32)


def requests(rows: list[CoreRow], macs: int) -> bytes:
    """What core.cpp reads of rows. Raises RequestError for those that core.sv can't run."""
    parts: list[Tensor] = []
    for row in rows:
        row.check(macs)
        packet = torch.tensor([w - (w >> 63 << 64) for w in words_of(row.program, row.rates)]).view(torch.int32)
        loads = counts(row.program)["memory"]
        sizes = [len(packet) // 2, row.x.numel() // macs, row.activated.numel() // macs, row.rates.latency, loads]
        parts += [torch.tensor(sizes, dtype=torch.int32), packet, _packed(row.x), _packed(row.activated)]
        for matrix, _, start, instruction, _ in row.tiles():
            words = torch.tensor([instruction.amount // macs], dtype=torch.int32)
            parts += [words, _packed(matrix.flatten()[start : start + instruction.amount])]
    return torch.cat(parts).numpy().tobytes()


def expected(row: CoreRow, macs: int) -> Tensor:
    """Every sum of a row with the cycle in which it comes, counted from the row's begin: int32 [sums, 2]."""
    # The buffer's read, and the array.
    latency = 1 + (macs - 1).bit_length() + 3
    totals: list[tuple[int, int]] = []
    for matrix, vector, start, instruction, begin in row.tiles():
        terms = vector.numel()
        outputs = range(start // terms, (start + instruction.amount) // terms)
        sums = matrix[outputs.start : outputs.stop].long() @ vector.long()
        for output, total in zip(outputs, sums.tolist(), strict=True):
            totals.append((begin + ((output + 1) * terms - start) // macs - 1 + latency, total))
    return torch.tensor(totals, dtype=torch.int32)


def parameters(row: CoreRow, macs: int, window: int) -> dict[str, int]:
    """Parameters of core.sv for rows of this program and these shapes."""

    def bits(count: int) -> int:
        return max(1, (count - 1).bit_length())

    count = counts(row.program)
    return {
        "MACS": macs,
        "WINDOW": window,
        "LOAD_BITS": bits(2 * count["memory"]),
        "MAC_BITS": bits(2 * count["mac"]),
        "VECTOR_BITS": bits(2 * count["vector"]),
        "BUFFER_BITS": bits(window * max(tile.amount // macs for *_, tile, _ in row.tiles())),
        "INPUT_BITS": bits(max(row.x.numel(), row.activated.numel()) // macs),
    }


def random_rows(macs: int, latency: int, window: int) -> list[CoreRow]:
    """Rows with random numbers: memory slower than the array and as fast, an output of down in two tiles."""
    draws = torch.Generator().manual_seed(0)
    width, inner = 2 * macs, 3 * macs
    program = compile_mlp(width, inner, 8, width * macs, window)

    def numbers(*shape: int) -> Tensor:
        return torch.randint(-127, 128, shape, generator=draws)

    return [
        CoreRow(
            program, Rates(float(macs), 8.0, speed * macs, 1, latency), numbers(inner, width), numbers(inner, width),
            numbers(width, inner), numbers(width), numbers(inner),
        )
        for speed in (0.3, 0.7, 1.0)
    ]  # fmt: skip
