"""Dynamic Resource Scheduling, as published: its registers, and what they do with arriving instructions.

Once per layer, when its TAS is known: the Index Register takes one bit a row (1: compute), rows that
compute are dealt to the cores round-robin into the Mapping Registers. When the instructions of a row
arrive they are dropped if its bit is 0 and sent to the mapped core otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastcar_cli.errors import RequestError

INDEX_BITS = 32
"""Width of the Index Register, and so the most rows of a batch."""


def check_rows(rows: int) -> None:
    """Refuse a batch with more rows than the Index Register has bits. Raises RequestError."""
    if rows > INDEX_BITS:
        raise RequestError(
            f"{rows} rows: the Index Register of DRS has {INDEX_BITS} bits, one a row",
            hint=f"at most {INDEX_BITS} rows at once; with guidance a video is two rows",
        )


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
        """Load the rows that compute and deal them to the cores. Raises RequestError above 32 rows."""
        check_rows(max(computing, default=0) + 1)
        self.index = 0
        for turn, row in enumerate(computing):
            self.index |= 1 << row
            self.mapping[row] = turn % self.cores & (1 << self.mapping_bits) - 1

    def arrive(self, row: int) -> int | None:
        """What happens to the instructions of a row: the core they go to, None if they are dropped."""
        return self.mapping[row] if self.index >> row & 1 else None
