"""RMS norm, also of heads, and layer norm, one program per row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastcar_cli.kernels.gpu.follow import early, follow


@triton.jit
def _norm_kernel(
    x, weight, bias, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LAYER: tl.constexpr, EARLY: tl.constexpr
):
    """One program per row, in float32: x / rms(x), rounded, times weight. A LAYER norm is (x - mean) / deviation *
    weight + bias, rounded once, as torch does.
    """
    follow(EARLY)
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < WIDTH
    values = tl.load(x + row * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    if LAYER:
        values = tl.where(inside, values - tl.sum(values, 0) / WIDTH, 0.0)
    normal = values * (1.0 / tl.sqrt(tl.sum(values * values, 0) / WIDTH + eps))
    w = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    if LAYER:
        y = normal * w + tl.load(bias + i, mask=inside, other=0.0).to(tl.float32)
    else:
        y = normal.to(out.dtype.element_ty).to(tl.float32) * w
    tl.store(out + row * WIDTH + i, y.to(out.dtype.element_ty), mask=inside)


def norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> Tensor:
    """RMS norm of x [rows, width] or, with a bias, layer norm, into out; returns out. weight, bias: [width]."""
    rows, width = x.shape
    sizes = {"WIDTH": width, "BLOCK": triton.next_power_of_2(width), "num_warps": 8 if width >= 2048 else 4}
    _norm_kernel[(rows,)](
        x, weight, weight if bias is None else bias, out, eps, LAYER=bias is not None, **sizes, **early(x)
    )
    return out


@triton.jit
def _head_norm_kernel(
    qkv, q, k, eps, H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    """One program per head of a query or key."""
    follow(EARLY)
    line, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    at = qkv + (line * (H + 2 * KV) + head) * D + i
    values = tl.load(at, mask=i < D, other=0.0).to(tl.float32)
    normal = values * (1.0 / tl.sqrt(tl.sum(values * values, 0) / D + eps))
    of_query = tl.load(q + i, mask=i < D, other=0.0).to(tl.float32)
    of_key = tl.load(k + i, mask=i < D, other=0.0).to(tl.float32)
    weight = tl.where(head < H, of_query, of_key)
    kind = qkv.dtype.element_ty
    tl.store(at, (normal.to(kind).to(tl.float32) * weight).to(kind), mask=i < D)


def norm_heads(qkv: Tensor, q: Tensor, k: Tensor, eps: float, heads: int, kv_heads: int) -> None:
    """RMS norm, in place, of the query and key heads in qkv [lines, (heads + 2 kv_heads) head_dim]; q, k: weights."""
    sizes = {"H": heads, "KV": kv_heads, "D": len(q), "BLOCK": triton.next_power_of_2(len(q))}
    _head_norm_kernel[(len(qkv), heads + kv_heads)](qkv, q, k, eps, **sizes, num_warps=1, **early(qkv))
