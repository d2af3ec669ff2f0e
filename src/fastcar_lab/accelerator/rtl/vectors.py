"""What run.sh sends to the arithmetic in SystemVerilog, and the answers of integer.py, as words of units.cpp."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fastcar_fpga import integer
from fastcar_fpga.integer import FRACTION, LIMIT, MANTISSA_BITS, MULTIPLIER_BITS, Coded, Rows
from fastcar_fpga.preset import Preset

SUMS, REQUANTISE, ACTIVATE, CODE = 1, 2, 3, 4  # the requests of units.cpp
MOST_MACS = 64  # of the array that is simulated; a larger one has more of the same
TERMS = (1, 2, 3, 37, 64, 65, 256, 1, 1100) * 16  # of the sums: more than float32 adds without rounding among them


def macs_of(preset: Preset) -> int:
    """MACs of the array that is simulated: the preset's, in eights as units.cpp takes them, from 16 to `MOST_MACS`."""
    return min(MOST_MACS, max(16, int(preset.core.mac_array.value) // 8 * 8))


def _numbers(shape: tuple[int, ...], draws: torch.Generator) -> Tensor:
    """Fixed-point numbers of every size and both signs, int64."""
    size = torch.randint(0, LIMIT, shape, generator=draws) >> torch.randint(0, 31, shape, generator=draws)
    return size * (torch.randint(0, 2, shape, generator=draws) * 2 - 1)


def vectors() -> tuple[bytes, bytes]:
    """Requests and their answers, both int32 words."""
    draws = torch.Generator().manual_seed(0)
    sent: list[Tensor] = []
    answers: list[Tensor] = []

    def request(what: int, count: int, *words: Tensor) -> None:
        sent.extend([torch.tensor([what, count]), *words])

    outputs = []
    for terms in TERMS:
        q, weight = torch.randint(-127, 128, (2, terms), generator=draws)
        outputs += [torch.tensor([terms]), q, weight]
        answers.append((weight @ q)[None])
    request(SUMS, len(TERMS), *outputs)

    totals = _numbers((64, 40), draws)
    multiplier = torch.randint(0, 1 << MULTIPLIER_BITS, (40,), generator=draws)
    mantissa = torch.randint(1, (1 << MANTISSA_BITS) + 1, (64, 1), generator=draws)
    # Every shift there is: 0 to 62 (MOST_SHIFT), one a row, and one that is limited.
    x = Coded(torch.empty(0), mantissa, torch.arange(64)[:, None])
    rows = Rows(torch.empty(0), multiplier, FRACTION)
    by = x.exponent.clamp(max=integer.MOST_SHIFT)
    request(REQUANTISE, totals.numel(), *(w.expand(totals.shape) for w in (totals, multiplier, mantissa, by)))
    answers.append(integer.requantised(totals, rows, x))

    gate, up = _numbers((4000,), draws), _numbers((4000,), draws)
    request(ACTIVATE, gate.numel(), gate, up)
    answers.append(integer.activated(gate, up))

    for bits in range(0, 31, 3):
        given = _numbers((40,), draws) >> bits
        coded = integer.code(given[None])
        request(CODE, given.numel(), given)
        answers += [coded.mantissa, FRACTION - coded.exponent, coded.q]
    return _words(sent), _words(answers)


def _words(parts: list[Tensor]) -> bytes:
    flat = torch.cat([part.long().flatten() for part in parts])
    return bytes(flat.numpy().astype(np.dtype("<i4")).tobytes())
