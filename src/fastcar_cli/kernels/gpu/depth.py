"""Attention among the few depths of one position, for the depth transformer."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastcar_cli.kernels.gpu.follow import early, follow


@triton.jit
def _depth_kernel(
    qkv, out, ROWS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, SEEN: tl.constexpr, SP: tl.constexpr,
    DP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One head of one row: the query of the last depth over all depths so far."""
    follow(EARLY)
    row = tl.program_id(0) // H
    head = tl.program_id(0) % H
    i = tl.arange(0, DP)
    j = tl.arange(0, SP)
    one = 3 * H * D
    q = tl.load(qkv + ((SEEN - 1) * ROWS + row) * one + head * D + i, mask=i < D, other=0.0).to(tl.float32)
    at = qkv + (j[:, None] * ROWS + row) * one + (H + head) * D + i[None, :]
    inside = (j[:, None] < SEEN) & (i[None, :] < D)
    k = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(at + H * D, mask=inside, other=0.0).to(tl.float32)
    score = tl.where(j < SEEN, tl.sum(k * q[None, :], 1) / tl.sqrt(D * 1.0), float("-inf"))
    p = tl.exp(score - tl.max(score, 0))
    total = tl.sum(p[:, None] * v, 0) / tl.sum(p, 0)
    tl.store(out + (row * H + head) * D + i, total.to(out.dtype.element_ty), mask=i < D)


def attend_depths(qkv: Tensor, heads: int, seen: int, out: Tensor) -> Tensor:
    """Causal attention of depth `seen` - 1 over depths 0 .. seen - 1, into out [rows, width]; returns out.

    qkv [depth, rows, 3 width] holds q, k and v side by side, heads contiguous; depths from `seen` on
    are not read.
    """
    rows, width = out.shape
    d = width // heads
    _depth_kernel[(rows * heads,)](
        qkv, out, ROWS=rows, H=heads, D=d, SEEN=seen, SP=triton.next_power_of_2(seen),
        DP=triton.next_power_of_2(d), num_warps=1, **early(qkv),
    )  # fmt: skip
    return out
