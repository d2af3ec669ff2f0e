"""Linear maps of few rows, bound by reading their weights.

A program reads a tile of weights once and uses it for every row. Tile sizes are constants, not
tuned at run time: another tile means another order of additions, and a seed has to give the same
tokens on the same kind of device. Results are rounded to the dtype of the activations where the
plain torch path rounds them. Weights with few bits are widened in registers, rounded to the dtype of
the activations and multiplied as floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from fastcar_cli.kernels.gpu import upcast


class Matrix(NamedTuple):
    """Weights [outputs, K]: floats, or the numbers and scales of int8 or int4 (`fastcar_cli.formats`); a bias [outputs]
    in floats.
    """

    numbers: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def of(cls, module: nn.Module) -> Matrix:
        """The matrix of a linear map, of torch's or in few bits."""
        return cls(module.weight, getattr(module, "scale", None), module.bias)  # type: ignore[arg-type]

    @property
    def bits(self) -> int:
        """Of a weight in few bits; 0 of floats."""
        return {torch.uint8: 4, torch.int8: 8}.get(self.numbers.dtype, 0)

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """What a kernel is given; of floats it does not look at the second."""
        return self.numbers, self.numbers if self.scale is None else self.scale


@dataclass(frozen=True)
class Tile:
    """Outputs and inputs of a tile of weights, stages of the software pipeline, warps of a program."""

    out: int
    inner: int
    stages: int
    warps: int = 4

    def of(self, outputs: int, inner: int) -> Tile:
        """The tile for a matrix [outputs, inner]: lower where programs would be few, no wider than the matrix."""
        out = self.out if outputs >= PROGRAMS * self.out else max(16, self.out // 2)
        return Tile(out, min(self.inner, max(16, triton.next_power_of_2(inner))), self.stages, self.warps)

    def launch(self, x: Tensor, weights: Matrix) -> dict[str, Any]:
        """What a kernel that takes inputs x [rows, K] and such weights in these tiles is compiled for."""
        # The small operand of a tile product has a power of two of rows, no less than the hardware takes.
        padded = max(16, triton.next_power_of_2(len(x)))
        sizes = {"BN": self.out, "BK": self.inner, "STAGES": self.stages, "num_warps": self.warps}
        return {**sizes, "K": x.shape[1], "RP": padded, "BITS": weights.bits, "UPCAST": upcast(x)}


PROGRAMS = 264
"""Programs a launch should have at least: two for each of the 132 multiprocessors of an H100."""


# Chosen by arithmetic (docs/gpu.md), not by measuring.
LINEAR = Tile(out=32, inner=256, stages=3)


@triton.jit
def _read(at, n, k, N, K: tl.constexpr, EVEN: tl.constexpr):
    """Elements [out, inner] of an array [N, K] at these pointers, 0 outside; EVEN: none is outside."""
    return tl.load(at) if EVEN else tl.load(at, mask=(n[:, None] < N) & (k[None, :] < K), other=0)


@triton.jit
def _inputs(x, r, k, rows, K: tl.constexpr, EVEN: tl.constexpr, kind: tl.constexpr):
    """Tile [inner, rows] of activations [rows, K]."""
    inside = r[None, :] < rows
    if not EVEN:
        inside = inside & (k[:, None] < K)
    return tl.load(x + r[None, :] * K + k[:, None], mask=inside, other=0.0).to(kind)


@triton.jit
def add_tile(
    total, x, w, scale, n, r, k0, rows, N,
    K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, BITS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Add to float32 [BN, RP] what outputs n of w [N, K] have from inputs k0 to k0 + BK; of int8 without the scale."""
    kind: tl.constexpr = tl.float32 if UPCAST else x.dtype.element_ty
    first = n[:, None].to(tl.int64)
    if BITS == 4:
        # A byte holds elements k and k + 16 of a group of 32, whose scale is that of 16 bytes.
        byte, group = k0 // 2 + tl.arange(0, BK // 2), k0 // 32 + tl.arange(0, BK // 32)
        pairs = _read(w + first * (K // 2) + byte[None, :], n, byte, N, K // 2, EVEN)
        scales = _read(scale + first * (K // 32) + group[None, :], n, group, N, K // 32, EVEN).to(tl.float32)
        scales = tl.broadcast_to(scales[:, :, None], (BN, BK // 32, 16)).reshape(BN, BK // 2)
        k = byte // 16 * 32 + byte % 16
        low = (((pairs & 15).to(tl.float32) - 8) * scales).to(kind)
        total = tl.dot(low, _inputs(x, r, k, rows, K, EVEN, kind), total, input_precision="ieee")
        high = (((pairs >> 4).to(tl.float32) - 8) * scales).to(kind)
        return tl.dot(high, _inputs(x, r, k + 16, rows, K, EVEN, kind), total, input_precision="ieee")
    else:
        k = k0 + tl.arange(0, BK)
        weights = _read(w + first * K + k[None, :], n, k, N, K, EVEN).to(kind)
        return tl.dot(weights, _inputs(x, r, k, rows, K, EVEN, kind), total, input_precision="ieee")


@triton.jit
def scaled(total, scale, n, N, BITS: tl.constexpr):
    """Sums [BN, RP] of products of int8 times the scale of each output; others as they are."""
    return total * tl.load(scale + n, mask=n < N, other=0.0)[:, None] if BITS == 8 else total


@triton.jit
def product(
    x, w, scale, n, r, rows, N,
    K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RP: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    BITS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Outputs n of w x for all rows, float32 [BN, RP]; EVEN: every tile of w [N, K] is whole."""
    total = tl.zeros((BN, RP), tl.float32)
    for k0 in tl.range(0, K, BK, num_stages=STAGES):
        total = add_tile(total, x, w, scale, n, r, k0, rows, N, K, BN, BK, EVEN, BITS, UPCAST)
    return scaled(total, scale, n, N, BITS)


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x, w0, w1, w2, s0, s1, s2, b0, b1, b2, out, rows,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, BIAS: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr,
    K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RP: tl.constexpr, STAGES: tl.constexpr, BITS: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Up to three linear maps of one input side by side, into out [rows, N0 + N1 + N2]; a program has a tile of one."""
    tile = tl.program_id(0)
    w, scale, bias, column, size = w0, s0, b0, tile * 0, tile * 0 + N0
    if N1 > 0:
        if tile >= tl.cdiv(N0, BN):
            w, scale, bias, column, size = w1, s1, b1, column + N0, column + N1
            tile -= tl.cdiv(N0, BN)
    if N2 > 0:
        if tl.program_id(0) >= tl.cdiv(N0, BN) + tl.cdiv(N1, BN):
            w, scale, bias, column, size = w2, s2, b2, column + N1, tile * 0 + N2
            tile -= tl.cdiv(N1, BN)
    n = tile * BN + tl.arange(0, BN)
    r = tl.arange(0, RP)
    even: tl.constexpr = N0 % BN == 0 and N1 % BN == 0 and N2 % BN == 0 and K % BK == 0
    y = product(x, w, scale, n, r, rows, size, K, BN, BK, RP, STAGES, even, BITS, UPCAST)
    if BIAS:
        y += tl.load(bias + n, mask=n < size, other=0.0).to(tl.float32)[:, None]
    inside = (n[:, None] < size) & (r[None, :] < rows)
    at = out + r[None, :] * (N0 + N1 + N2) + column + n[:, None]
    if GELU:
        y = y.to(out.dtype.element_ty).to(tl.float32)
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    if ADD:
        y = y.to(out.dtype.element_ty).to(tl.float32) + tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, y.to(out.dtype.element_ty), mask=inside)


def linear(x: Tensor, matrices: list[Matrix], out: Tensor, *, add: bool = False, gelu: bool = False) -> Tensor:
    """Linear maps of x [rows, K] by one to three matrices [N_i, K], side by side into out [rows, sum N_i].

    The matrices are all of one format, and all have a bias or none has. `gelu` (erf form) comes after the bias, `add`
    adds to what out holds. Returns out.
    """
    sizes = [len(m.numbers) for m in matrices] + [0] * (3 - len(matrices))
    tile = LINEAR.of(sum(sizes), x.shape[1])
    numbers, scales = zip(*(m.tensors for m in (matrices * 3)[:3]), strict=True)
    biases = [m.numbers if m.bias is None else m.bias for m in (matrices * 3)[:3]]
    _linear_kernel[(sum(triton.cdiv(n, tile.out) for n in sizes),)](
        *(x, *numbers, *scales, *biases, out, len(x)),
        **{"N0": sizes[0], "N1": sizes[1], "N2": sizes[2]},
        **{"BIAS": matrices[0].bias is not None, "GELU": gelu, "ADD": add},
        **tile.launch(x, matrices[0]),
    )
    return out
