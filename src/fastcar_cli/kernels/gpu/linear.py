"""Linear maps of few rows, limited by reading their weights.

A program reads a tile of weights once and uses it for every row. Tile sizes are constants, since another tile
would change the order of additions. Results are rounded to the dtype of the activations wherever plain torch does so.
Quantised weights are dequantised in registers, rounded to that dtype and multiplied as floats.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from fastcar_cli.kernels.gpu import upcast
from fastcar_cli.kernels.gpu.follow import early, follow


class Matrix(NamedTuple):
    """Weights [outputs, K] in floats or as numbers and scales of int8 or int4; a bias [outputs] in floats."""

    numbers: Tensor
    scale: Tensor | None = None
    bias: Tensor | None = None

    @classmethod
    def of(cls, module: nn.Module) -> Matrix:
        """The matrix of a linear map, torch's or a quantised one."""
        return cls(module.weight, getattr(module, "scale", None), module.bias)  # type: ignore[arg-type]

    @property
    def bits(self) -> int:
        """Bits of a quantised weight; 0 for floats."""
        return {torch.uint8: 4, torch.int8: 8}.get(self.numbers.dtype, 0)

    @property
    def tensors(self) -> tuple[Tensor, Tensor]:
        """Numbers and scales for a kernel, which ignores the scales of floats."""
        return self.numbers, self.numbers if self.scale is None else self.scale


@dataclass(frozen=True)
class Tile:
    """Outputs and inputs of a tile of weights, stages of the software pipeline, warps of a program, and the number
    of programs to launch: if a matrix has fewer tiles of outputs, programs share one, each with a part of the inputs.
    """

    out: int
    inner: int
    stages: int
    warps: int = 4
    programs: int = 150

    def split(self, tiles: int, inner: int) -> int:
        """Number of programs that share a tile of outputs, for a matrix with this many tiles and inputs."""
        parts = 1
        while tiles * parts < self.programs and 4 * parts * self.inner < inner:
            parts *= 2
        return parts

    def launch(self, x: Tensor, weights: Matrix) -> dict[str, Any]:
        """Compile-time arguments of a kernel for inputs x [rows, K] and these weights in this tile."""
        # The small operand of a tile product has a power of two of rows, at least what the hardware requires.
        padded, inner = max(16, triton.next_power_of_2(len(x))), max(16, triton.next_power_of_2(x.shape[1]))
        sizes = {"BN": self.out, "BK": min(self.inner, inner), "STAGES": self.stages, "num_warps": self.warps}
        return {**sizes, **early(x), "K": x.shape[1], "RP": padded, "BITS": weights.bits, "UPCAST": upcast(x)}


SMALL = Tile(32, 64, 3)
"""The tile for float32 activations, without matrix units: larger ones do not fit the registers."""
Tiles = dict[int, tuple[Tile, ...]]
"""By bits of a weight (0: floats), tiles for up to 16, up to 32 and more rows; the last serves all larger numbers."""
FEW, MANY = Tile(32, 256, 3, warps=2, programs=500), Tile(64, 128, 4, warps=8, programs=300)
"""Tiles for quantised weights: four warps would dequantise 32 outputs twice; with more than 32 rows wider tiles do
not fit the registers.
"""
# Chosen on an H200, int8 like int4; docs/data/gpu.md has the times of passes.
LINEAR: Tiles = {0: (Tile(64, 128, 4),), 8: (FEW, Tile(64, 256, 3), MANY), 4: (FEW, Tile(64, 256, 3), MANY)}
"""The tiles of linear maps for 16-bit activations."""


def tile_of(tiles: Tiles, x: Tensor, weights: Matrix) -> Tile:
    """The tile for a product of activations and weights."""
    if x.dtype.itemsize == 4:
        return SMALL
    by_rows = tiles[weights.bits]
    return by_rows[min((len(x) > 16) + (len(x) > 32), len(by_rows) - 1)]


def sums(x: Tensor, outputs: int, split: int) -> tuple[Tensor, Tensor]:
    """Memory for programs that share a tile: parts float32 [split, rows, outputs], and zeroed counts of parts."""
    return x.new_empty(split if split > 1 else 0, len(x), outputs, dtype=torch.float32), _counts(x.device)


@functools.cache
def _counts(device: torch.device) -> Tensor:
    """A count for every tile of a launch, zero again after each launch."""
    return torch.zeros(4096, dtype=torch.int32, device=device)


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


# Four bits in the mantissa of 128 (bfloat16) or 1024 (float16) give that number plus 0 to 15; then that number and 8
# are subtracted, exactly. Each step is a fused multiply-add: capability 8.0 has no other instruction for bfloat16.
_WIDEN = """{{
.reg .b32 p, q, r, t, one, less, zero;
mov.b32 one, {one};
mov.b32 less, {less};
mov.b32 zero, 0x80008000;
prmt.b32 p, $4, 0, 0x4140;
prmt.b32 q, $4, 0, 0x4342;
shr.u32 r, p, 4;
shr.u32 t, q, 4;
lop3.b32 p, p, 0x000F000F, {base}, 0xEA;
lop3.b32 q, q, 0x000F000F, {base}, 0xEA;
lop3.b32 r, r, 0x000F000F, {base}, 0xEA;
lop3.b32 t, t, 0x000F000F, {base}, 0xEA;
fma.rn.{kind} p, p, one, less;
fma.rn.{kind} q, q, one, less;
fma.rn.{kind} r, r, one, less;
fma.rn.{kind} t, t, one, less;
fma.rn.{kind} $0, p, $5, zero;
fma.rn.{kind} $1, q, $6, zero;
fma.rn.{kind} $2, r, $5, zero;
fma.rn.{kind} $3, t, $6, zero;
}}"""
_WIDEN_BFLOAT16 = tl.constexpr(_WIDEN.format(kind="bf16x2", base="0x43004300", one="0x3F803F80", less="0xC308C308"))
_WIDEN_FLOAT16 = tl.constexpr(_WIDEN.format(kind="f16x2", base="0x64006400", one="0x3C003C00", less="0xE408E408"))


@triton.jit
def _widen(pairs, scales):
    """Dequantise the low and the high elements of int4 bytes with the scales of their groups, in the scales' dtype. In
    assembly: converting every number would take longer than reading it.
    """
    packed: tl.constexpr = "=r,=r,=r,=r,r,r,r"
    if scales.dtype == tl.bfloat16:
        return tl.inline_asm_elementwise(
            _WIDEN_BFLOAT16, packed, [pairs, scales], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    elif scales.dtype == tl.float16:
        return tl.inline_asm_elementwise(
            _WIDEN_FLOAT16, packed, [pairs, scales], dtype=(tl.float16, tl.float16), is_pure=True, pack=4
        )
    else:
        return ((pairs & 15).to(tl.float32) - 8) * scales, ((pairs >> 4).to(tl.float32) - 8) * scales


@triton.jit
def add_tile(
    total, x, w, scale, n, r, k0, rows, N,
    K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, EVEN: tl.constexpr, BITS: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """Add to float32 [BN, RP] the products of inputs k0 to k0 + BK for outputs n of w [N, K]; int8 without scales."""
    kind: tl.constexpr = tl.float32 if UPCAST else x.dtype.element_ty
    first = n[:, None].to(tl.int64)
    if BITS == 4:
        # A byte holds elements k and k + 16 of a group of 32, so 16 bytes share a scale.
        byte, group = k0 // 2 + tl.arange(0, BK // 2), k0 // 32 + tl.arange(0, BK // 32)
        pairs = _read(w + first * (K // 2) + byte[None, :], n, byte, N, K // 2, EVEN)
        scales = _read(scale + first * (K // 32) + group[None, :], n, group, N, K // 32, EVEN).to(tl.float32)
        scales = tl.broadcast_to(scales.to(kind)[:, :, None], (BN, BK // 32, 16)).reshape(BN, BK // 2)
        low, high = _widen(pairs, scales)
        k = byte // 16 * 32 + byte % 16
        total = tl.dot(low, _inputs(x, r, k, rows, K, EVEN, kind), total, input_precision="ieee")
        return tl.dot(high, _inputs(x, r, k + 16, rows, K, EVEN, kind), total, input_precision="ieee")
    else:
        k = k0 + tl.arange(0, BK)
        weights = _read(w + first * K + k[None, :], n, k, N, K, EVEN).to(kind)
        return tl.dot(weights, _inputs(x, r, k, rows, K, EVEN, kind), total, input_precision="ieee")


@triton.jit
def scaled(total, scale, n, N, BITS: tl.constexpr):
    """Sums [BN, RP], for int8 times the scale of each output."""
    return total * tl.load(scale + n, mask=n < N, other=0.0)[:, None] if BITS == 8 else total


@triton.jit
def product(
    x, w, scale, n, r, rows, N,
    K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RP: tl.constexpr, STAGES: tl.constexpr, EVEN: tl.constexpr,
    BITS: tl.constexpr, UPCAST: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Outputs n of w x for all rows, float32 [BN, RP], from this program's inputs; EVEN: all tiles of w are whole."""
    span: tl.constexpr = (K + BK * SPLIT - 1) // (BK * SPLIT) * BK
    begin = tl.program_id(1) * span
    total = tl.zeros((BN, RP), tl.float32)
    for k0 in tl.range(begin, min(begin + span, K), BK, num_stages=STAGES):
        total = add_tile(total, x, w, scale, n, r, k0, rows, N, K, BN, BK, EVEN, BITS, UPCAST)
    return scaled(total, scale, n, N, BITS)


@triton.jit
def leave(total, parts, inside, size):
    """Store this program's part of a tile's sums [BN, RP] for `gathered`; parts are `size` numbers apart."""
    tl.store(parts + tl.program_id(1) * size, total, mask=inside)


@triton.jit
def is_last(counts, SPLIT: tl.constexpr):
    """Whether this program is the last of its tile to store its part; the last one adds all parts."""
    tl.debug_barrier()
    count = counts + tl.program_id(0)
    last = tl.atomic_add(count, 1, sem="acq_rel") == SPLIT - 1
    if last:
        tl.store(count, 0)
    return last


@triton.jit
def gathered(parts, inside, size, SPLIT: tl.constexpr):
    """The sum of all parts of a tile in their order, so that it does not depend on which program adds them."""
    total = tl.load(parts, mask=inside, other=0.0, cache_modifier=".cg")
    for part in tl.static_range(1, SPLIT):
        total += tl.load(parts + part * size, mask=inside, other=0.0, cache_modifier=".cg")
    return total


@triton.jit(do_not_specialize=["rows"])
def _linear_kernel(
    x, w0, w1, w2, s0, s1, s2, b0, b1, b2, out, parts, counts, rows,
    N0: tl.constexpr, N1: tl.constexpr, N2: tl.constexpr, BIAS: tl.constexpr, GELU: tl.constexpr, ADD: tl.constexpr,
    SPLIT: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RP: tl.constexpr, STAGES: tl.constexpr,
    BITS: tl.constexpr, UPCAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Up to three linear maps of one input, side by side in out [rows, N0 + N1 + N2]; a program computes one tile."""
    follow(EARLY)
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
    y = product(x, w, scale, n, r, rows, size, K, BN, BK, RP, STAGES, even, BITS, UPCAST, SPLIT)
    inside = (n[:, None] < size) & (r[None, :] < rows)
    at = r[None, :] * (N0 + N1 + N2) + column + n[:, None]
    if SPLIT > 1:
        leave(y, parts + at, inside, rows * (N0 + N1 + N2))
        last = is_last(counts, SPLIT)
        inside = inside & (r[None, :] < tl.where(last, rows, 0))
        if last:
            y = gathered(parts + at, inside, rows * (N0 + N1 + N2), SPLIT)
    if BIAS:
        y += tl.load(bias + n, mask=n < size, other=0.0).to(tl.float32)[:, None]
    if GELU:
        y = y.to(out.dtype.element_ty).to(tl.float32)
        y = 0.5 * y * (1.0 + tl.erf(y * 0.7071067811865476))
    if ADD:
        y = y.to(out.dtype.element_ty).to(tl.float32) + tl.load(out + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, y.to(out.dtype.element_ty), mask=inside)


def linear(x: Tensor, matrices: list[Matrix], out: Tensor, *, add: bool = False, gelu: bool = False) -> Tensor:
    """Linear maps of x [rows, K] by one to three matrices [N_i, K], side by side into out [rows, sum N_i].

    The matrices are all of one format, and all have a bias or none has. `gelu` (erf form) comes after the bias, `add`
    adds to what out holds. Returns out.
    """
    sizes = [len(m.numbers) for m in matrices] + [0] * (3 - len(matrices))
    tile = tile_of(LINEAR, x, matrices[0])
    tiles = sum(triton.cdiv(n, tile.out) for n in sizes)
    split = tile.split(tiles, x.shape[1])
    numbers, scales = zip(*(m.tensors for m in (matrices * 3)[:3]), strict=True)
    biases = [m.numbers if m.bias is None else m.bias for m in (matrices * 3)[:3]]
    _linear_kernel[(tiles, split)](
        *(x, *numbers, *scales, *biases, out, *sums(x, out.shape[1], split), len(x), *sizes),
        **{"BIAS": matrices[0].bias is not None, "GELU": gelu, "ADD": add, "SPLIT": split},
        **tile.launch(x, matrices[0]),
    )
    return out
