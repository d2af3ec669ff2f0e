"""The gated SwiGLU MLP of few rows: a row that replays takes its output from the cache.

Each program reads the flags of its rows on the device and leaves the weights alone where every row
replays, so what is skipped is decided without the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from fastcar_cli.kernels.gpu.linear import Tile, _inputs, _product, weight_tile

# Chosen by arithmetic (docs/gpu.md), not by measuring.
GATE_UP = Tile(out=32, inner=128, stages=3)
DOWN = Tile(out=32, inner=256, stages=4)


@triton.jit
def _replays(flags, r, ROWS: tl.constexpr):
    """Replay flag of each row, int32 [RP]; rows that do not exist replay."""
    return tl.load(flags + r, mask=r < ROWS, other=1).to(tl.int32)


@triton.jit
def _gate_up_kernel(
    x, gate, up, out, flags,
    ROWS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RP: tl.constexpr,
    STAGES: tl.constexpr, REPLAY: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """A tile of silu(gate x) * (up x). Returns before any weight is read where every row replays."""
    r = tl.arange(0, RP)
    if REPLAY:
        if tl.min(_replays(flags, r, ROWS), 0) == 1:
            return
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    g = tl.zeros((BN, RP), tl.float32)
    u = tl.zeros((BN, RP), tl.float32)
    for k0 in tl.range(0, K, BK, num_stages=STAGES):
        k = k0 + tl.arange(0, BK)
        inputs = _inputs(x, r, k, ROWS, K, UPCAST)
        even: tl.constexpr = N % BN == 0 and K % BK == 0
        g = tl.dot(weight_tile(gate, n, k, N, K, even, UPCAST), inputs, g, input_precision="ieee")
        u = tl.dot(weight_tile(up, n, k, N, K, even, UPCAST), inputs, u, input_precision="ieee")
    kind = out.dtype.element_ty
    g = g.to(kind).to(tl.float32)
    g = (g / (1.0 + tl.exp(-g))).to(kind).to(tl.float32)
    y = g * u.to(kind).to(tl.float32)
    tl.store(out + r[None, :] * N + n[:, None], y.to(kind), mask=(n[:, None] < N) & (r[None, :] < ROWS))


@triton.jit(do_not_specialize=["frame"])
def _down_kernel(
    h, down, x, cache, flags, t,
    frame, CACHED: tl.constexpr,
    ROWS: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RP: tl.constexpr,
    STAGES: tl.constexpr, REPLAY: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """A tile of down h, into the replay cache where the row computes, and added to x for all rows.

    Where every row replays no weight is read: the cached output is added and that is all.
    """
    r = tl.arange(0, RP)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (n[:, None] < N) & (r[None, :] < ROWS)
    at = x + r[None, :] * N + n[:, None]
    even: tl.constexpr = N % BN == 0 and K % BK == 0
    kind = x.dtype.element_ty
    if REPLAY:
        replays = _replays(flags, r, ROWS)
        place = tl.load(t + r, mask=r < ROWS, other=0) % frame
        first = ((r % CACHED).to(tl.int64) * frame + place) * N
        slot = cache + first[None, :] + n[:, None]
        kept = inside & (replays[None, :] == 1)
        y = tl.load(slot, mask=kept, other=0.0).to(tl.float32)
        if tl.min(replays, 0) == 0:
            new = _product(h, down, n, r, N, ROWS, K, BN, BK, RP, STAGES, even, UPCAST).to(kind)
            tl.store(slot, new, mask=inside & (replays[None, :] == 0))
            y = tl.where(replays[None, :] == 1, y, new.to(tl.float32))
    else:
        y = _product(h, down, n, r, N, ROWS, K, BN, BK, RP, STAGES, even, UPCAST).to(kind).to(tl.float32)
    residual = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (residual + y).to(kind), mask=inside)


@dataclass(frozen=True)
class Cached:
    """What the MLP kernels read of a layer's replay state.

    flags: uint8 [lines], 1 where the line replays; t: int64 [lines], its input token; outputs: [rows, N, width],
    the MLP outputs of the last frame. Line l belongs to row l % rows; no two lines share a place of a row.
    """

    flags: Tensor
    t: Tensor
    outputs: Tensor


def mlp(
    h: Tensor,
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    x: Tensor,
    middle: Tensor,
    replay: Cached | None,
) -> Tensor:
    """Add the MLP of normalised inputs h [lines, width] to x [lines, width], in place; returns x.

    gate, up [mlp_width, width] and down [width, mlp_width] are the weights, middle [lines, mlp_width]
    is scratch. With `replay`, a line whose flag is set takes its output from the cache and the others
    leave theirs there; where every line replays, no program touches a weight.
    """
    width = h.shape[1]
    wide = len(gate)
    first, second = GATE_UP.of(wide, width), DOWN.of(width, wide)
    flags, t, cache = (middle, middle, middle) if replay is None else (replay.flags, replay.t, replay.outputs)
    frame, replaying = cache.shape[1], {"REPLAY": replay is not None}
    _gate_up_kernel[(triton.cdiv(wide, first.out),)](
        h, gate, up, middle, flags, N=wide, K=width, **replaying, **first.launch(h)
    )
    _down_kernel[(triton.cdiv(width, second.out),)](
        middle, down, x, cache, flags, t, frame, CACHED=len(cache), N=width, K=wide, **replaying, **second.launch(h)
    )
    return x
