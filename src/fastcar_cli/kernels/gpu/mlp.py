"""The gated SwiGLU MLP of few rows: a row that replays takes its output from the cache.

Each program reads the flags of its rows on the device and reads no weights if every row replays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from fastcar_cli.kernels.gpu.follow import follow
from fastcar_cli.kernels.gpu.linear import (
    FEW,
    LINEAR,
    MANY,
    Matrix,
    Tile,
    Tiles,
    add_tile,
    gathered,
    is_last,
    leave,
    product,
    scaled,
    sums,
    tile_of,
)

# Chosen on an H200, int8 like int4; docs/data/gpu.md has the times of passes.
GATE_UP: Tiles = LINEAR | {0: (Tile(32, 128, 3),), 8: (FEW, Tile(64, 128, 4), MANY)}  # the tiles of gate and up
DOWN: Tiles = LINEAR | {4: (Tile(64, 256, 3, programs=500), Tile(64, 128, 4, programs=500), MANY)}
"""The tiles of down, which has more inputs than outputs."""


@triton.jit
def _replays(flags, r, rows):
    """Replay flag of each row, int32 [RP]; rows that do not exist replay."""
    return tl.load(flags + r, mask=r < rows, other=1).to(tl.int32)


@triton.jit(do_not_specialize=["rows"])
def _gate_up_kernel(
    x, gate, up, gate_scale, up_scale, out, flags, parts, counts, rows,
    N: tl.constexpr, REPLAY: tl.constexpr, SPLIT: tl.constexpr,
    K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RP: tl.constexpr, STAGES: tl.constexpr, BITS: tl.constexpr,
    UPCAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A tile of silu(gate x) * (up x). Returns before reading weights if every row replays."""
    follow(EARLY)
    r = tl.arange(0, RP)
    if REPLAY:
        if tl.min(_replays(flags, r, rows), 0) == 1:
            return
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    even: tl.constexpr = N % BN == 0 and K % BK == 0
    span: tl.constexpr = (K + BK * SPLIT - 1) // (BK * SPLIT) * BK
    begin = tl.program_id(1) * span
    g = tl.zeros((BN, RP), tl.float32)
    u = tl.zeros((BN, RP), tl.float32)
    for k0 in tl.range(begin, min(begin + span, K), BK, num_stages=STAGES):
        g = add_tile(g, x, gate, gate_scale, n, r, k0, rows, N, K, BN, BK, even, BITS, UPCAST)
        u = add_tile(u, x, up, up_scale, n, r, k0, rows, N, K, BN, BK, even, BITS, UPCAST)
    g, u = scaled(g, gate_scale, n, N, BITS), scaled(u, up_scale, n, N, BITS)
    inside = (n[:, None] < N) & (r[None, :] < rows)
    at = r[None, :] * N + n[:, None]
    if SPLIT > 1:
        # The parts of both side by side: [SPLIT, 2, rows, N].
        leave(g, parts + at, inside, 2 * rows * N)
        leave(u, parts + rows * N + at, inside, 2 * rows * N)
        last = is_last(counts, SPLIT)
        inside = inside & (r[None, :] < tl.where(last, rows, 0))
        if last:
            g = gathered(parts + at, inside, 2 * rows * N, SPLIT)
            u = gathered(parts + rows * N + at, inside, 2 * rows * N, SPLIT)
    kind = out.dtype.element_ty
    g = g.to(kind).to(tl.float32)
    g = (g / (1.0 + tl.exp(-g))).to(kind).to(tl.float32)
    y = g * u.to(kind).to(tl.float32)
    tl.store(out + at, y.to(kind), mask=inside)


@triton.jit(do_not_specialize=["frame", "rows"])
def _down_kernel(
    h, down, scale, x, cache, flags, t, parts, counts,
    frame, rows, CACHED: tl.constexpr, N: tl.constexpr, REPLAY: tl.constexpr,
    SPLIT: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, RP: tl.constexpr, STAGES: tl.constexpr,
    BITS: tl.constexpr, UPCAST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A tile of down h: stored in the replay cache for rows that do not replay, and added to x for all rows. If every
    row replays, no weights are read and only the cached output is added.
    """
    follow(EARLY)
    r = tl.arange(0, RP)
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = (n[:, None] < N) & (r[None, :] < rows)
    at = r[None, :] * N + n[:, None]
    even: tl.constexpr = N % BN == 0 and K % BK == 0
    kind = x.dtype.element_ty
    computes = True
    if REPLAY:
        replays = _replays(flags, r, rows)
        computes = tl.min(replays, 0) == 0
    y = tl.zeros((BN, RP), tl.float32)
    last = tl.program_id(1) == 0
    if computes:
        y = product(h, down, scale, n, r, rows, N, K, BN, BK, RP, STAGES, even, BITS, UPCAST, SPLIT)
        if SPLIT > 1:
            leave(y, parts + at, inside, rows * N)
            last = is_last(counts, SPLIT)
            if last:
                y = gathered(parts + at, inside, rows * N, SPLIT)
    inside = inside & (r[None, :] < tl.where(last, rows, 0))
    y = y.to(kind).to(tl.float32)
    if REPLAY:
        place = tl.load(t + r, mask=r < rows, other=0) % frame
        first = ((r % CACHED).to(tl.int64) * frame + place) * N
        slot = cache + first[None, :] + n[:, None]
        cached = tl.load(slot, mask=inside & (replays[None, :] == 1), other=0.0).to(tl.float32)
        tl.store(slot, y.to(kind), mask=inside & (replays[None, :] == 0))
        y = tl.where(replays[None, :] == 1, cached, y)
    residual = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(x + at, (residual + y).to(kind), mask=inside)


@dataclass(frozen=True)
class Cached:
    """A layer's replay state for the MLP kernels; line l belongs to row l % rows, and no two lines share a slot."""

    flags: Tensor  # uint8 [lines], 1 if the line replays
    t: Tensor  # int64 [lines], its input token
    outputs: Tensor  # [rows, N, width], of the last frame


def mlp(h: Tensor, matrices: Sequence[Matrix], x: Tensor, middle: Tensor, replay: Cached | None) -> Tensor:
    """Add the MLP of normalised inputs h [lines, width] to x [lines, width], in place; returns x.

    The matrices are gate and up [mlp_width, width], of one format, and down [width, mlp_width]; middle [lines,
    mlp_width] is scratch. With `replay`, a line whose flag is set takes its output from the cache and the others store
    theirs there.
    """
    width, wide = h.shape[1], middle.shape[1]
    gate, up, down = matrices
    first, second = tile_of(GATE_UP, h, gate), tile_of(DOWN, middle, down)
    flags, t, cache = (middle, middle, middle) if replay is None else (replay.flags, replay.t, replay.outputs)
    numbers, scales = zip(gate.tensors, up.tensors, strict=True)
    tiles = triton.cdiv(wide, first.out)
    split = first.split(tiles, width)
    _gate_up_kernel[(tiles, split)](
        *(h, *numbers, *scales, middle, flags, *sums(h, 2 * wide, split), len(h)),
        **{"N": wide, "REPLAY": replay is not None, "SPLIT": split, **first.launch(h, gate)},
    )
    tiles = triton.cdiv(width, second.out)
    split = second.split(tiles, wide)
    _down_kernel[(tiles, split)](
        *(middle, *down.tensors, x, cache, flags, t, *sums(x, width, split), cache.shape[1], len(h)),
        **{"CACHED": len(cache), "N": width, "REPLAY": replay is not None, "SPLIT": split},
        **second.launch(middle, down),
    )
    return x
