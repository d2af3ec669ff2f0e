"""RMS norm and layer norm, one row a program."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _norm_kernel(x, weight, bias, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LAYER: tl.constexpr):
    """One row a program, in float32: x / rms(x), rounded, times weight. A LAYER norm is (x - mean) / deviation * weight
    + bias, rounded once, as torch does.
    """
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


def _norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float, out: Tensor) -> Tensor:
    rows, width = x.shape
    warps, layer = 8 if width >= 2048 else 4, bias is not None
    block = triton.next_power_of_2(width)
    _norm_kernel[(rows,)](
        x, weight, bias if layer else weight, out, eps, WIDTH=width, BLOCK=block, LAYER=layer, num_warps=warps
    )
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> Tensor:
    """RMS norm of x [rows, width] times weight [width], into out [rows, width]; returns out."""
    return _norm(x, weight, None, eps, out)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float, out: Tensor) -> Tensor:
    """Layer norm of x [rows, width] with weight and bias [width], into out [rows, width]; returns out."""
    return _norm(x, weight, bias, eps, out)
