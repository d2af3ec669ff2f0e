"""RMS norm and layer norm, one row a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_kernel(x, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
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
def _layer_kernel(x, weight, bias, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """One row a program: (x - mean) / deviation * weight + bias in float32, rounded once as torch does."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    inside = i < WIDTH
    values = tl.load(x + row * WIDTH + i, mask=inside, other=0.0).to(tl.float32)
    away = tl.where(inside, values - tl.sum(values, 0) / WIDTH, 0.0)
    normal = away * (1.0 / tl.sqrt(tl.sum(away * away, 0) / WIDTH + eps))
    w = tl.load(weight + i, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + i, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + i, (normal * w + b).to(out.dtype.element_ty), mask=inside)


def _warps(width: int) -> int:
    return 8 if width >= 2048 else 4


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> Tensor:
    """RMS norm of x [rows, width] times weight [width], into out [rows, width]; returns out."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _rms_kernel[(rows,)](x, weight, out, eps, WIDTH=width, BLOCK=block, num_warps=_warps(width))
    return out


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> Tensor:
    """Layer norm of x [rows, width] with weight and bias [width], into out [rows, width]; returns out."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    _layer_kernel[(rows,)](x, weight, bias, out, eps, WIDTH=width, BLOCK=block, num_warps=_warps(width))
    return out
