"""Linear maps of few rows, bound by reading their weights.

A program reads a tile of weights once and uses it for every row. Tile sizes are constants, not
tuned at run time: another tile means another order of additions, and a seed has to give the same
tokens on the same kind of device. Results are rounded to the dtype of the activations where the
plain torch path rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastcar_cli.kernels.gpu import interpreted


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

    def launch(self, x: Tensor) -> dict[str, Any]:
        """What a kernel that takes inputs x [rows, K] in these tiles is compiled for."""
        rows = len(x)
        # The small operand of a tile product has a power of two of rows, no less than the hardware takes. The
        # interpreter multiplies bfloat16 tiles wrongly; widened to float32 the products are the same numbers.
        padded, upcast = max(16, triton.next_power_of_2(rows)), interpreted() and x.dtype != torch.float32
        sizes = {"BN": self.out, "BK": self.inner, "STAGES": self.stages, "num_warps": self.warps}
        return {**sizes, "ROWS": rows, "RP": padded, "UPCAST": upcast}


PROGRAMS = 264
"""Programs a launch should have at least: two for each of the 132 multiprocessors of an H100."""


# Chosen by arithmetic (docs/gpu.md), not by measuring.
LINEAR = Tile(out=32, inner=256, stages=3)


@triton.jit
def weight_tile(w, n, k, N, K: tl.constexpr, EVEN: tl.constexpr, UPCAST: tl.constexpr):
    """Tile [out, inner] of weights [N, K]."""
    at = w + n[:, None].to(tl.int64) * K + k[None, :]
    tile = tl.load(at) if EVEN else tl.load(at, mask=(n[:, None] < N) & (k[None, :] < K), other=0.0)
    return tile.to(tl.float32) if UPCAST else tile


@triton.jit
def _inputs(x, r, k, ROWS: tl.constexpr, K: tl.constexpr, UPCAST: tl.constexpr):
    """Tile [inner, rows] of activations [ROWS, K]."""
    tile = tl.load(x + r[None, :] * K + k[:, None], mask=(r[None, :] < ROWS) & (k[:, None] < K), other=0.0)
    return tile.to(tl.float32) if UPCAST else tile


@triton.jit
def _product(
    x, w, n, r, N,
    ROWS: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RP: tl.constexpr, STAGES: tl.constexpr,
    EVEN: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Outputs n of w x for all rows, float32 [BN, RP]; EVEN: every tile of w [N, K] is whole."""
    total = tl.zeros((BN, RP), tl.float32)
    for k0 in tl.range(0, K, BK, num_stages=STAGES):
        k = k0 + tl.arange(0, BK)
        weights = weight_tile(w, n, k, N, K, EVEN, UPCAST)
        total = tl.dot(weights, _inputs(x, r, k, ROWS, K, UPCAST), total, input_precision="ieee")
    return total


@triton.jit
def _linear_kernel(
    x, w0, w1, w2, b0, b1, b2, out,
    ROWS: tl.constexpr, K: tl.constexpr, N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, RP: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr,
    UPCAST: tl.constexpr,
):  # fmt: skip
    """Up to three linear maps of one input side by side, into out [ROWS, N0 + N1 + N2]; a program has a tile of one."""
    tile = tl.program_id(0)
    w, bias, column, size = w0, b0, tile * 0, tile * 0 + N0
    if N1 > 0:
        if tile >= tl.cdiv(N0, BN):
            w, bias, column, size = w1, b1, column + N0, column + N1
            tile -= tl.cdiv(N0, BN)
    if N2 > 0:
        if tl.program_id(0) >= tl.cdiv(N0, BN) + tl.cdiv(N1, BN):
            w, bias, column, size = w2, b2, column + N1, tile * 0 + N2
            tile -= tl.cdiv(N1, BN)
    n = tile * BN + tl.arange(0, BN)
    r = tl.arange(0, RP)
    even: tl.constexpr = N0 % BN == 0 and N1 % BN == 0 and N2 % BN == 0 and K % BK == 0
    y = _product(x, w, n, r, size, ROWS, K, BN, BK, RP, STAGES, even, UPCAST)
    if BIAS:
        y += tl.load(bias + n, mask=n < size, other=0.0).to(tl.float32)[:, None]
    inside = (n[:, None] < size) & (r[None, :] < ROWS)
    at = out + r[None, :] * (N0 + N1 + N2) + column + n[:, None]
    if GELU:
        y = y.to(out.dtype.element_ty).to(tl.float32)
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    if ADD:
        y = y.to(out.dtype.element_ty).to(tl.float32) + tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, y.to(out.dtype.element_ty), mask=inside)


def linear(
    x: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None],
    out: Tensor,
    *,
    add: bool = False,
    gelu: bool = False,
) -> Tensor:
    """Linear maps of x [rows, K] by one to three weights [N_i, K], side by side into out [rows, sum N_i].

    Biases are all tensors [N_i] or all None. `gelu` (erf form) comes after the bias, `add` adds to what
    out holds. Returns out.
    """
    inner = x.shape[1]
    sizes = [len(w) for w in weights] + [0] * (3 - len(weights))
    tile = LINEAR.of(sum(sizes), inner)
    w = weights + [weights[0]] * (3 - len(weights))
    given = [b for b in biases if b is not None]
    b = (given or weights[:1]) + (given or weights)[:1] * 2
    _linear_kernel[(sum(triton.cdiv(n, tile.out) for n in sizes),)](
        *(x, *w, *b[:3], out),
        **{"K": inner, "N0": sizes[0], "N1": sizes[1], "N2": sizes[2]},
        **{"BIAS": bool(given), "GELU": gelu, "ADD": add},
        **tile.launch(x),
    )
    return out
