"""The instruction set, and its compilation: one instruction stream a row, once per layer shape.

A stream takes the weights of a layer through the local buffer, tile by tile. Its instructions run on three units of a
core: `load` on the memory port, `multiply` on the MAC array; on the vector unit `activate` (SiLU of the gate times up),
`accumulate`, `store` and, in int8-exact, `code` (activated numbers as int8).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Op = Literal["load", "multiply", "activate", "accumulate", "store", "code"]
VECTOR_OPS: tuple[Op, ...] = ("activate", "accumulate", "store", "code")
UNIT_OF: dict[str, str] = {"load": "memory", "multiply": "mac", **dict.fromkeys(VECTOR_OPS, "vector")}


@dataclass(frozen=True)
class Instruction:
    """amount: bytes of a load (of weights of so many outputs), MACs of a multiply, or elements. after: indices of
    instructions in the stream that must be done first; instructions of one unit run in order besides.
    """

    op: Op
    amount: int
    tile: int
    after: tuple[int, ...]
    outputs: int = 0


@dataclass(frozen=True)
class Program:
    """The stream of one row, with its totals."""

    name: str
    instructions: tuple[Instruction, ...]

    def total(self, op: Op) -> int:
        """Sum of the amounts of an operation."""
        return sum(i.amount for i in self.instructions if i.op == op)

    @property
    def words(self) -> int:
        """Words of the stream's packet: a header, which has the row and how many words follow, and the instructions."""
        return 1 + len(self.instructions)

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that pass the buffer."""
        return self.total("load")

    @property
    def macs(self) -> int:
        """Multiply-accumulates."""
        return self.total("multiply")

    @property
    def vector_elements(self) -> int:
        """Elements through the vector unit."""
        return sum(self.total(op) for op in VECTOR_OPS)


class _Stream:
    """A stream being written, with the buffer's rule: of `window` tiles, one may be loaded when the oldest is used."""

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


def _split(total: int, parts: int) -> list[int]:
    """Total in whole parts that differ by one at most."""
    return [total * (i + 1) // parts - total * i // parts for i in range(parts)]


def _tiles(inputs: int, outputs: int, bits: float, tile_bytes: int) -> list[tuple[int, int, int]]:
    """(outputs, bytes, MACs) of the tiles of a matrix, cut along its outputs.

    Where a row of it needs several tiles, its output counts for the last of them.
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
    return Program("mlp", tuple(stream.instructions))


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
    return Program(name, tuple(stream.instructions))
