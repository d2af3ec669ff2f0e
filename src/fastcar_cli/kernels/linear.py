"""RMS norm, linear maps and the gated SwiGLU MLP of few rows.

All are bound by reading weights: a program reads a tile of weights once and uses it for every row.
Tile sizes are constants, not tuned at run time: another tile means another order of additions, and
a seed has to give the same tokens on the same kind of device. Results are rounded to the dtype of
the activations where the plain torch path rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from fastcar_cli.kernels import interpreted


@dataclass(frozen=True)
class Tile:
    """Outputs and inputs of a tile of weights, stages of the software pipeline, warps of a program."""

    out: int
    inner: int
    stages: int
    warps: int = 4

    def of(self, inner: int) -> Tile:
        """The same tile, not larger than a matrix with `inner` inputs needs."""
        return Tile(self.out, min(self.inner, max(16, triton.next_power_of_2(inner))), self.stages, self.warps)


# Chosen by arithmetic (docs/gpu.md), not by measuring.
LINEAR = Tile(out=32, inner=256, stages=3)
GATE_UP = Tile(out=32, inner=128, stages=3)
DOWN = Tile(out=32, inner=256, stages=4)


def padded_rows(rows: int) -> int:
    """Rows of the small operand of a tile product: a power of two, no less than the hardware takes."""
    return max(16, triton.next_power_of_2(rows))


@triton.jit
def _norm_kernel(x, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One row a program: x / rms(x) in float32, rounded, times weight."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < WIDTH
    values = tl.load(x + row * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(values * values, 0) / WIDTH + eps)
    normal = (values * scale).to(out.dtype.element_ty).to(tl.float32)
    w = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + i, (normal * w).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _weights(w, n, k, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, UPCAST: tl.constexpr):
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
    x,
    w,
    n,
    r,
    ROWS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    RP: tl.constexpr,
    STAGES: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Outputs n of w x for all rows, float32 [BN, RP]."""
    total = tl.zeros((BN, RP), tl.float32)
    for k0 in tl.range(0, K, BK, num_stages=STAGES):
        k = k0 + tl.arange(0, BK)
        weights = _weights(w, n, k, N, K, N % BN == 0 and K % BK == 0, UPCAST)
        total = tl.dot(weights, _inputs(x, r, k, ROWS, K, UPCAST), total, input_precision="ieee")
    return total


@triton.jit
def _linear_tile(
    x,
    w,
    bias,
    out,
    tile,
    column,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    RP: tl.constexpr,
    STAGES: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """One tile of one linear map, into columns from `column` on of out [ROWS, WIDTH]."""
    n = tile * BN + tl.arange(0, BN)
    r = tl.arange(0, RP)
    y = _product(x, w, n, r, ROWS, N, K, BN, BK, RP, STAGES, UPCAST)
    if BIAS:
        y += tl.load(bias + n, mask=n < N, other=0.0).to(tl.float32)[:, None]
    inside = (n[:, None] < N) & (r[None, :] < ROWS)
    at = out + r[None, :] * WIDTH + column + n[:, None]
    if ADD:
        y = y.to(out.dtype.element_ty).to(tl.float32) + tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, y.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _linear_kernel(
    x,
    w0,
    w1,
    w2,
    b0,
    b1,
    b2,
    out,
    ROWS: tl.constexpr,
    K: tl.constexpr,
    N0: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    RP: tl.constexpr,
    STAGES: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Up to three linear maps of one input in one launch; a program has a tile of one of them."""
    tile = tl.program_id(0)
    first = tl.cdiv(N0, BN)
    second = first + tl.cdiv(N1, BN)
    width: tl.constexpr = N0 + N1 + N2
    if tile < first:
        _linear_tile(x, w0, b0, out, tile, 0, width, ROWS, N0, K, BN, BK, RP, STAGES, BIAS, ADD, UPCAST)
    if N1 > 0:
        if tile >= first and tile < second:
            _linear_tile(x, w1, b1, out, tile - first, N0, width, ROWS, N1, K, BN, BK, RP, STAGES, BIAS, ADD, UPCAST)
    if N2 > 0:
        if tile >= second:
            _linear_tile(
                x, w2, b2, out, tile - second, N0 + N1, width, ROWS, N2, K, BN, BK, RP, STAGES, BIAS, ADD, UPCAST
            )


@triton.jit
def _replays(flags, t, r, ROWS: tl.constexpr, TOKENS: tl.constexpr):
    """Replay flag of each row at token t, int32 [RP]; rows that do not exist replay."""
    at = flags + r.to(tl.int64) * TOKENS + tl.load(t)
    return tl.load(at, mask=r < ROWS, other=1).to(tl.int32)


@triton.jit
def _gate_up_kernel(
    x,
    gate,
    up,
    out,
    flags,
    t,
    ROWS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    TOKENS: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    RP: tl.constexpr,
    STAGES: tl.constexpr,
    REPLAY: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A tile of silu(gate x) * (up x). Returns before any weight is read where every row replays."""
    r = tl.arange(0, RP)
    if REPLAY:
        if tl.min(_replays(flags, t, r, ROWS, TOKENS), 0) == 1:
            return
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    g = tl.zeros((BN, RP), tl.float32)
    u = tl.zeros((BN, RP), tl.float32)
    for k0 in tl.range(0, K, BK, num_stages=STAGES):
        k = k0 + tl.arange(0, BK)
        inputs = _inputs(x, r, k, ROWS, K, UPCAST)
        even: tl.constexpr = N % BN == 0 and K % BK == 0
        g = tl.dot(_weights(gate, n, k, N, K, even, UPCAST), inputs, g, input_precision="ieee")
        u = tl.dot(_weights(up, n, k, N, K, even, UPCAST), inputs, u, input_precision="ieee")
    kind = out.dtype.element_ty
    g = g.to(kind).to(tl.float32)
    g = (g / (1.0 + tl.exp(-g))).to(kind).to(tl.float32)
    y = g * u.to(kind).to(tl.float32)
    tl.store(out + r[None, :] * N + n[:, None], y.to(kind), mask=(n[:, None] < N) & (r[None, :] < ROWS))


@triton.jit
def _down_kernel(
    h,
    down,
    x,
    cache,
    flags,
    t,
    ROWS: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    TOKENS: tl.constexpr,
    FRAME: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    RP: tl.constexpr,
    STAGES: tl.constexpr,
    REPLAY: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """A tile of down h, into the replay cache where the row computes, and added to x for all rows.

    Where every row replays no weight is read: the cached output is added and that is all.
    """
    r = tl.arange(0, RP)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (n[:, None] < N) & (r[None, :] < ROWS)
    at = x + r[None, :] * N + n[:, None]
    kind = x.dtype.element_ty
    if REPLAY:
        replays = _replays(flags, t, r, ROWS, TOKENS)
        place = (r.to(tl.int64) * FRAME + tl.load(t) % FRAME) * N
        slot = cache + place[None, :] + n[:, None]
        kept = inside & (replays[None, :] == 1)
        y = tl.load(slot, mask=kept, other=0.0).to(tl.float32)
        if tl.min(replays, 0) == 0:
            new = _product(h, down, n, r, ROWS, N, K, BN, BK, RP, STAGES, UPCAST).to(kind)
            tl.store(slot, new, mask=inside & (replays[None, :] == 0))
            y = tl.where(replays[None, :] == 1, y, new.to(tl.float32))
    else:
        y = _product(h, down, n, r, ROWS, N, K, BN, BK, RP, STAGES, UPCAST).to(kind).to(tl.float32)
    residual = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (residual + y).to(kind), mask=inside)


def _upcast(x: Tensor) -> bool:
    # The interpreter multiplies bfloat16 tiles wrongly; in float32 the products are the same numbers.
    return interpreted() and x.dtype != torch.float32


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> Tensor:
    """RMS norm of x [rows, width] times weight [width], into out [rows, width]; returns out."""
    rows, width = x.shape
    _norm_kernel[(rows,)](
        x, weight, out, eps, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=8 if width >= 2048 else 4
    )
    return out


def linear(
    x: Tensor,
    weights: list[Tensor],
    biases: list[Tensor | None],
    out: Tensor,
    *,
    add: bool = False,
    tile: Tile = LINEAR,
) -> Tensor:
    """Linear maps of x [rows, K] by one to three weights [N_i, K], side by side into out [rows, sum N_i].

    Biases are all tensors [N_i] or all None. `add` adds to what out holds. Returns out.
    """
    rows, inner = x.shape
    tile = tile.of(inner)
    sizes = [len(w) for w in weights] + [0] * (3 - len(weights))
    w = weights + [weights[0]] * (3 - len(weights))
    given = [b for b in biases if b is not None]
    b = (given or weights[:1]) + (given or weights)[:1] * 2
    _linear_kernel[(sum(triton.cdiv(n, tile.out) for n in sizes),)](
        x,
        *w,
        *b[:3],
        out,
        ROWS=rows,
        K=inner,
        N0=sizes[0],
        N1=sizes[1],
        N2=sizes[2],
        BN=tile.out,
        BK=tile.inner,
        RP=padded_rows(rows),
        STAGES=tile.stages,
        BIAS=bool(given),
        ADD=add,
        UPCAST=_upcast(x),
        num_warps=tile.warps,
    )
    return out


@dataclass(frozen=True)
class Gate:
    """What the MLP kernels read of a layer's replay state.

    flags: uint8 [rows, tokens], 1 where the row replays at that token; t: int64 [1], the input
    token; cache: MLP outputs [rows, frame, width].
    """

    flags: Tensor
    t: Tensor
    cache: Tensor


def mlp(
    h: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    x: Tensor,
    middle: Tensor,
    replay: Gate | None,
    *,
    tiles: tuple[Tile, Tile] = (GATE_UP, DOWN),
) -> Tensor:
    """Add the MLP of normalised inputs h [rows, width] to x [rows, width], in place; returns x.

    gate, up [mlp_width, width] and down [width, mlp_width] are the weights, middle [rows, mlp_width]
    is scratch. With `replay`, a row whose flag is set takes its output from the cache and the others
    leave theirs there; where every row replays, no program touches a weight.
    """
    rows, width = h.shape
    wide = len(gate)
    first, second = tiles[0].of(width), tiles[1].of(wide)
    flags, t, cache = (middle, middle, middle) if replay is None else (replay.flags, replay.t, replay.cache)
    shared = {"ROWS": rows, "TOKENS": flags.shape[1], "RP": padded_rows(rows), "UPCAST": _upcast(h)}
    _gate_up_kernel[(triton.cdiv(wide, first.out),)](
        h,
        gate,
        up,
        middle,
        flags,
        t,
        N=wide,
        K=width,
        BN=first.out,
        BK=first.inner,
        STAGES=first.stages,
        REPLAY=replay is not None,
        num_warps=first.warps,
        **shared,
    )
    _down_kernel[(triton.cdiv(width, second.out),)](
        middle,
        down,
        x,
        cache,
        flags,
        t,
        N=width,
        K=wide,
        FRAME=cache.shape[1],
        BN=second.out,
        BK=second.inner,
        STAGES=second.stages,
        REPLAY=replay is not None,
        num_warps=second.warps,
        **shared,
    )
    return x
