"""`int8-exact`: an MLP in integers from its coded input to its output, so that hardware can match every bit.

int8 weights and activations, int32 sums, and a vector unit without floats: requantisation multiplies and shifts, SiLU
is a table with lines between its entries. Between the products, and at the end, numbers are fixed point with FRACTION
fractional bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.errors import RequestError
from fastcar_cli.weights.formats import QuantisedLinear

EXACT_TERMS = 1024
"""Products of two int8 numbers that float32 adds without rounding, in any order: 1,024 x 128 x 127 < 2^24."""

FRACTION = 16  # fractional bits of a fixed-point number of 32 bits: steps of 1.5e-5, up to 32,768
LIMIT = 2**31 - 1  # the largest fixed-point number; larger ones, and smaller than its negative, become it
MANTISSA_BITS = 15  # a mantissa is at most 2^15, and above 2^14 unless its vector is 0 or has no more bits
MULTIPLIER_BITS = 16  # bits of a weight row's multiplier
MOST_SHIFT = 62  # a longer shift leaves nothing of a product of sum, multiplier and mantissa

TABLE_STEP, TABLE_END = 5, 16
"""The table of the logistic function has 2^5 entries per unit, from 0 to 16; beyond, the function is 1."""

TABLE = torch.tensor([round(2**16 / (1 + math.exp(-i / 2**TABLE_STEP))) for i in range((TABLE_END << TABLE_STEP) + 1)])
"""The logistic function of i / 32 in units of 2^-16, int64 [513]."""


@dataclass(frozen=True)
class Coded:
    """Vectors as q * mantissa * 2^-exponent / 127: q int8 [n, k], mantissa and exponent int64 [n, 1]."""

    q: Tensor
    mantissa: Tensor
    exponent: Tensor


@dataclass(frozen=True)
class Rows:
    """A weight matrix int8 [out, in] whose rows' scales are 127 * multiplier * 2^-exponent, multiplier int64 [out]."""

    weight: Tensor
    multiplier: Tensor
    exponent: int


def sums(x: Tensor, weight: Tensor) -> Tensor:
    """Sums of products of int8 x [n, k] and int8 weights [out, k], exact: integers in float64 [n, out]."""
    total = torch.zeros(len(x), len(weight), dtype=torch.float64, device=x.device)
    for piece, part in zip(x.split(EXACT_TERMS, 1), weight.split(EXACT_TERMS, 1), strict=True):
        total += F.linear(piece.float(), part.float())
    return total


def shifted(x: Tensor, by: Tensor | int) -> Tensor:
    """Integers divided by 2^by and rounded, halves upwards; int64."""
    by = torch.as_tensor(by, device=x.device)
    return (x + (torch.ones_like(by) << by >> 1)) >> by


def _limited(x: Tensor) -> Tensor:
    return x.clamp(-LIMIT, LIMIT)


def rows_of(linear: QuantisedLinear) -> Rows:
    """An int8 matrix with its scales as integers. Raises RequestError for weights above 16,129."""
    scale = linear.scale.double() / 127
    exponent = MULTIPLIER_BITS - int(torch.frexp(scale.amax()).exponent)
    if exponent < FRACTION:
        raise RequestError(
            f"the format int8-exact allows weights up to {127 * 127:,}, not {float(scale.amax()) * 127 * 127:,.0f}",
            hint="use an accelerator with another number format, such as u280-int8",
        )
    multiplier = (scale * 2.0**exponent).round().clamp(max=2**MULTIPLIER_BITS - 1).long()
    return Rows(linear.weight, multiplier, exponent)


def code_floats(x: Tensor) -> Coded:
    """Code float vectors [n, k] from the norm before an MLP, up to 32,768; halves are rounded away from 0."""
    x = x.double()
    most = x.abs().amax(-1, keepdim=True)
    exponent = (MANTISSA_BITS - torch.frexp(most).exponent.long()).clamp(0, MOST_SHIFT)
    mantissa = torch.ldexp(most, exponent).ceil().clamp(1, 2**MANTISSA_BITS)
    size = (torch.ldexp(x.abs() * 127, exponent) / mantissa + 0.5).floor().clamp(max=127)
    return Coded((size * x.sign()).to(torch.int8), mantissa.long(), exponent)


def code(x: Tensor) -> Coded:
    """Code fixed-point vectors int64 [n, k]; quotients are exact before they are rounded, halves away from 0."""
    most = x.abs().amax(-1, keepdim=True)
    # frexp of an integer below 2^53 gives how many bits it has.
    drop = (torch.frexp(most.double()).exponent.long() - MANTISSA_BITS).clamp(min=0)
    mantissa = (-(-most >> drop)).clamp(min=1)
    divisor = mantissa << drop
    size = (x.abs() * 254 + divisor) // (2 * divisor)
    return Coded((size * x.sign()).to(torch.int8), mantissa, FRACTION - drop)


def requantised(total: Tensor, rows: Rows, x: Coded) -> Tensor:
    """Sums int64 [n, out] of coded inputs and weights as fixed-point numbers int64 [n, out]."""
    by = (x.exponent + rows.exponent - FRACTION).clamp(max=MOST_SHIFT)
    return _limited(shifted(total * rows.multiplier * x.mantissa, by))


def product(rows: Rows, x: Coded) -> Tensor:
    """Coded inputs [n, in] through a matrix: fixed-point numbers int64 [n, out]."""
    return requantised(sums(x.q, rows.weight).long(), rows, x)


def logistic(x: Tensor) -> Tensor:
    """1 / (1 + e^-x) of fixed-point numbers, int64 in units of 2^-16, at most 1.3e-5 + 2^-16 off."""
    bits = FRACTION - TABLE_STEP
    size = x.abs().clamp(max=TABLE_END << FRACTION)
    entry, between = size >> bits, size & ((1 << bits) - 1)
    table = TABLE.to(x.device)
    low, high = table[entry], table[(entry + 1).clamp(max=len(table) - 1)]
    value = low + shifted((high - low) * between, bits)
    return torch.where(x < 0, (1 << 16) - value, value)


def activated(gate: Tensor, up: Tensor) -> Tensor:
    """SiLU of the gate times up, all fixed-point numbers int64."""
    silu = shifted(gate * logistic(gate), 16)
    return _limited(shifted(silu * up, FRACTION))


class IntegerMLP:
    """An MLP in integers; maps [n, width] to [n, width] in the same dtype."""

    def __init__(self, gate: QuantisedLinear, up: QuantisedLinear, down: QuantisedLinear) -> None:
        self.gate, self.up, self.down = rows_of(gate), rows_of(up), rows_of(down)

    def whole(self, x: Coded) -> Tensor:
        """Coded inputs to fixed-point outputs, int64 [n, width]."""
        return product(self.down, code(activated(product(self.gate, x), product(self.up, x))))

    def __call__(self, x: Tensor) -> Tensor:
        """[n, width] to [n, width]."""
        return (self.whole(code_floats(x)).double() / (1 << FRACTION)).to(x.dtype)
