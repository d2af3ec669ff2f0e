"""The formats of weights, one row each: bits, scales, and how a matrix is quantised, packed and dequantised.

int8: weight int8 [out, in], scale float32 [out]; w[o, i] = q * scale[o], symmetric, scale = max |w[o]| / 127.
int4: groups of 32 along the input. weight uint8 [out, in / 2]: byte k (0 to 15) of group g holds element 32 g + k in
its low nibble and element 32 g + 16 + k in its high one, each as q + 8 with q in -8..7; scale float16 [out, in / 32];
w = q * scale of its group.

In files of small models (`fastcar lab store`) a tensor may also be stored as int8 in groups of 32, with its scales
under key NAME + `SCALE` and, optionally, four more bits per weight under NAME + `LOW`, packed as int4:
w = (q + low / 16) * scale of its group. It is read as floats.

A new format is a row of `FORMATS` and, for the native kernels, a struct in `kernels/native/source/formats.h`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 32  # weights that share a scale in int4

SCALE, LOW = ".scale", ".low"

_ROUNDED, _WIDENED = 2**18, 2**22
"""Weights quantised or dequantised at once: few enough for the caches, enough to keep threads busy."""

_CANDIDATES = (8.0, 7.1, 7.4, 7.7, 8.3, 8.6, 8.9)
"""A group's largest weight is scaled to minus one of these; three times as many would lower the error by 0.05 %."""


def quantise_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Quantise a float matrix [out, in] to (int8 [out, in], scale float32 [out]); a row of zeros has scale 1."""
    numbers = torch.empty(weight.shape, dtype=torch.int8, device=weight.device)
    scale = torch.empty(len(weight), device=weight.device)
    for rows in _slices(weight):
        part = weight[rows].float()
        largest = part.abs().amax(1) / 127
        scale[rows] = torch.where(largest == 0, torch.ones_like(largest), largest)
        numbers[rows] = (part / scale[rows, None]).round_()
    return numbers, scale


def _slices(weight: Tensor) -> Iterator[slice]:
    """Rows of a matrix to round at once; on a GPU a step launches up to a hundred kernels, so steps are larger."""
    step = max(1, (_ROUNDED << 6 if weight.is_cuda else _ROUNDED) // weight.shape[1])
    return (slice(i, i + step) for i in range(0, len(weight), step))


def widen_int8(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantise numbers and scales to a matrix [out, in] of a float dtype."""
    return weight.to(dtype) * scale.to(dtype)[:, None]


def pack_int4(q: Tensor) -> Tensor:
    """Pack integers -8..7 [out, in] into bytes uint8 [out, in / 2], as described at the top of this file."""
    low, high = (q + 8).to(torch.uint8).view(len(q), -1, 2, GROUP // 2).unbind(2)
    return (low | high << 4).flatten(1)


def unpack_int4(weight: Tensor) -> Tensor:
    """The inverse of `pack_int4`: int8 [out, in]."""
    pairs = weight.view(len(weight), -1, 1, GROUP // 2)
    return (torch.cat([pairs & 15, pairs >> 4], 2).view(torch.int8) - 8).flatten(1)


def stored_parts(kinds: Mapping[str, tuple[Any, ...]]) -> dict[str, list[str]]:
    """For each tensor of a file, the keys of its scales and low bits, if it has any (see `widen_stored`).
    `kinds` are the safetensors dtype and shape of every tensor. Raises ValueError for parts that don't fit.
    """
    parts = {name: [name + part for part in (SCALE, LOW) if name + part in kinds] for name in kinds}
    for name, beside in parts.items():
        rows, n = kinds[name][1:2], math.prod(kinds[name][2:])
        needed = [("I8", *kinds[name][1:]), ("F16", *rows, n / GROUP), ("U8", *rows, n / 2)]
        if beside and [kinds[part] for part in (name, *beside)] != needed[: 1 + len(beside)]:
            raise ValueError(f"{', '.join(beside)}: dtype or shape does not fit key {name!r}")
    return parts


def widen_stored(weight: Tensor, scale: Tensor, low: Tensor | None = None) -> Tensor:
    """Dequantise a stored tensor: int8 [out, ...], scales [out, in / 32], optional uint8 [out, in / 2] to float32."""
    wide = weight.float().view(*scale.shape, GROUP)
    if low is not None:
        wide += unpack_int4(low).view(wide.shape) / 16
    return (wide * scale[:, :, None].float()).view(weight.shape)


def widen_int4(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Dequantise bytes and scales to a matrix [out, in] of a float dtype."""
    out, inputs = len(weight), weight.shape[1] * 2
    wide = torch.empty(out, inputs, dtype=dtype, device=weight.device)
    step = max(1, _WIDENED // inputs)
    for i in range(0, out, step):
        q = unpack_int4(weight[i : i + step]).view(-1, inputs // GROUP, GROUP)
        torch.mul(q, scale[i : i + step, :, None].to(dtype), out=wide[i : i + step].view(q.shape))
    return wide


def _rounded(groups: Tensor, inverse: Tensor) -> Tensor:
    """Round groups [n, 32] times `inverse` [n, 1] to integers -8..7."""
    return (groups * inverse).round_().clamp_(-8, 7)


def inverse_of(scale: Tensor) -> Tensor:
    """1 / scale, or 0 for a scale of 0."""
    return torch.where(scale == 0, scale, 1 / scale)


def fitted_scales(groups: Tensor, weights: Tensor | None = None) -> Tensor:
    """Scales [n, 1] of groups [n, 32] by least squares; `weights` [32] weight the squared errors.

    For a group w and a candidate's rounded numbers q the best scale is sum(w q) / sum(q q), with error
    sum(w w) - sum(w q)^2 / sum(q q); the candidate with the least error wins.
    """
    least, most = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    # From the weight of largest magnitude in each group, with its sign.
    inverse = -1 / torch.where(most > -least, most, least)
    weighted = groups if weights is None else groups * weights
    best, scale = torch.zeros_like(inverse), torch.zeros_like(inverse)
    for lies in _CANDIDATES:
        q = _rounded(groups, lies * inverse)
        fit, squares = (q * weighted).sum(1, keepdim=True), q.square_()
        size = (squares if weights is None else squares.mul_(weights)).sum(1, keepdim=True)
        gain = fit * fit / size
        better = gain > best
        best, scale = torch.where(better, gain, best), torch.where(better, fit / size, scale)
    return scale


def quantise_int4(weight: Tensor, scales: Callable[[Tensor], Tensor] = fitted_scales) -> tuple[Tensor, Tensor]:
    """Quantise a float matrix [out, in] to (uint8 [out, in / 2], scale float16 [out, in / 32]). `scales` gives scales
    float32 [n, 1] of groups float32 [n, 32]; one too small for float16 becomes zero, one too large its maximum.
    """
    out, inputs = weight.shape
    packed = torch.empty(out, inputs // 2, dtype=torch.uint8, device=weight.device)
    kept = torch.empty(out, inputs // GROUP, dtype=torch.float16, device=weight.device)
    for rows in _slices(weight):
        groups = weight[rows].float().reshape(-1, GROUP)
        scale = scales(groups).clamp_(-65504, 65504).half().float()
        inverse = inverse_of(scale)
        packed[rows] = pack_int4(_rounded(groups, inverse).view(-1, inputs))
        kept[rows] = scale.view(-1, inputs // GROUP)
    return packed, kept


@dataclass(frozen=True)
class Format:
    """How a matrix [out, in] is stored, and the functions that convert it.

    `quantise` makes numbers and scales from a float matrix, `widen` is its inverse, `pack` makes numbers from integers
    int8 [out, in]. `fit` gives scales [n, 1] of groups float32 [n, group] by squared errors with weights [group]; None:
    the scales of `quantise`.
    """

    name: str
    dtype: torch.dtype  # of the stored numbers
    bits: int  # per weight, perhaps fewer than in a number
    scale: torch.dtype | None = None  # dtype of scales; None: floats
    group: int | None = None  # weights of a row that share a scale; None: all
    low: int = 0  # smallest integer of a weight
    high: int = 0  # largest integer of a weight
    quantise: Callable[[Tensor], tuple[Tensor, Tensor]] = lambda weight: (weight, weight)
    widen: Callable[[Tensor, Tensor, torch.dtype], Tensor] = lambda weight, scale, dtype: weight.to(dtype)
    pack: Callable[[Tensor], Tensor] = lambda integers: integers
    fit: Callable[[Tensor, Tensor], Tensor] | None = None

    @property
    def number(self) -> int:
        """Its number in the native kernels: its index in the table."""
        return list(FORMATS).index(self.name)

    def shape(self, outputs: int, inputs: int) -> tuple[int, int]:
        """Shape of the stored numbers. Raises ValueError if groups don't divide the inputs."""
        if inputs % (self.group or 1):
            raise ValueError(f"a matrix has {inputs} inputs, but {self.name} needs a multiple of {self.group}")
        return outputs, inputs * self.bits // (8 * self.dtype.itemsize)

    def scale_shape(self, outputs: int, inputs: int) -> tuple[int, ...]:
        """Shape of the scales."""
        return (outputs, inputs // self.group) if self.group else (outputs,)

    def bytes_of(self, outputs: int, inputs: int) -> int:
        """Bytes of a matrix and its scales."""
        scales = outputs * (inputs // self.group if self.group else 1)
        return outputs * inputs * self.bits // 8 + (scales * self.scale.itemsize if self.scale else 0)


FORMATS = {
    row.name: row
    for row in (
        Format("float32", torch.float32, 32),
        Format("bfloat16", torch.bfloat16, 16),
        Format("int8", torch.int8, 8, torch.float32, None, -127, 127, quantise_int8, widen_int8),
        Format(
            "int4", torch.uint8, 4, torch.float16, GROUP, -8, 7, quantise_int4, widen_int4, pack_int4, fitted_scales
        ),
    )
}
"""All formats. A format's index is its number in the native kernels."""

PACKED = {name: row for name, row in FORMATS.items() if row.scale is not None}
"""The formats with fewer bits than floats."""


_MULTIPLY: ContextVar[Callable[[QuantisedLinear, Tensor], Tensor] | None] = ContextVar("multiply", default=None)


@contextmanager
def multiplied_by(product: Callable[[QuantisedLinear, Tensor], Tensor]) -> Iterator[None]:
    """In this context quantised layers call `product(layer, x)`, which returns [..., out] in the dtype of x [..., in].
    Modules know no kernels, so the caller chooses the product.
    """
    token = _MULTIPLY.set(product)
    try:
        yield
    finally:
        _MULTIPLY.reset(token)


class QuantisedLinear(nn.Module):
    """A linear layer whose weight is stored as numbers and scales of a format; `bias` stays in floats.

    `forward` dequantises the weight in each call, unless `multiplied_by` sets another product. On a CPU bfloat16 is
    multiplied in float32 (faster without bfloat16 instructions). Raises ValueError if groups don't divide the inputs.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, form: Format, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.form, self.in_features, self.out_features = form, inputs, outputs
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.register_buffer("weight", torch.empty(form.shape(outputs, inputs), dtype=form.dtype))
        self.register_buffer("scale", torch.empty(form.scale_shape(outputs, inputs), dtype=form.scale))

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in] in a float dtype."""
        return self.form.widen(self.weight, self.scale, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out] in the dtype of x."""
        if (product := _MULTIPLY.get()) is not None:
            return product(self, x)
        wide = torch.float32 if x.dtype is torch.bfloat16 and x.device.type == "cpu" else x.dtype
        bias = None if self.bias is None else self.bias.to(wide)
        return F.linear(x.to(wide), self.widened(wide), bias).to(x.dtype)

    @property
    def stored_bytes(self) -> int:
        """Bytes of weight and scale."""
        return self.weight.nbytes + self.scale.nbytes
