"""Dynamic Resource Scheduling, as published: its registers, and what they do with arriving instructions.

Once per layer, when its TAS is known: the Index Register takes one bit a row (1: compute), rows that
compute are dealt to the cores round-robin into the Mapping Registers. When the instructions of a row
arrive they are dropped if its bit is 0 and sent to the mapped core otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

INDEX_BITS = 32
"""Width of the Index Register, and so the most rows of a batch."""


class Drs:
    """The registers of one accelerator.

    index: int, bit i is 1 where row i computes. mapping: 32 registers of `mapping_bits` bits.
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
        """What happens to the instructions of a row: the core they go to, None if they are dropped."""
        return self.mapping[row] if self.index >> row & 1 else None
