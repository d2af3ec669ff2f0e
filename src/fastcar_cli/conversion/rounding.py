"""Rounding a matrix for the inputs that it meets: what rounding one column loses, the columns after it make up for.

GPTQ (Frantar et al. 2022, arXiv 2210.17323) in the form LDLQ (Chee et al. 2023, arXiv 2307.13304, section 3), which
gives the same numbers from one Cholesky factor. With inputs x, G = sum x x^T = L D L^T and errors E = W' - W of a row,
the error of its outputs is E G E^T = sum over columns k of D_k (E L)_k^2, and (E L)_k depends on the columns from k on
only: from the last to the first, each is rounded to where this sum is least.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fastcar_cli.models.quantised import (
    GROUP,
    QUANTISERS,
    fitted_scales,
    inverse_of,
    pack_int4,
    widen_int4,
)

_DAMPING = 0.01
"""Of the mean of G's diagonal, added to it: inputs that hardly occur are no reason for large numbers."""

_BLOCK, _ROWS = 4 * GROUP, 2048
"""Columns whose making up is worked out at once, and rows that are rounded at once."""


def widened(kind: str, numbers: Tensor, scale: Tensor) -> Tensor:
    """Numbers and scales of a format to the matrix float32 [out, in] that they stand for."""
    return widen_int4(numbers, scale, torch.float32) if kind == "int4" else numbers * scale[:, None]


def output_error(error: Tensor, gram: Tensor) -> Tensor:
    """Sums of squared errors of the outputs, float32 [out], of errors [out, in] of a matrix on inputs of `gram`."""
    return torch.cat([((part @ gram) * part).sum(1) for part in error.split(_ROWS)])


def calibrated(weight: Tensor, gram: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """A matrix float32 [out, in] in int8 or int4, as numbers and scales of `QUANTISERS`.

    gram: sum of x x^T over the inputs, float32 [in, in]; it comes back as it was. A row has the rounding of
    `QUANTISERS` where its outputs are nearer to the matrix's that way.
    """
    numbers, scale = QUANTISERS[kind](weight)
    factor = _factor(gram)
    for rows, found, scales in _made_up(weight, factor, kind, scale):
        made = pack_int4(found) if kind == "int4" else found
        part = weight[rows]
        plain, other = (
            output_error(widened(kind, n, s) - part, gram) for n, s in ((numbers[rows], scale[rows]), (made, scales))
        )
        better = (other < plain)[:, None]
        numbers[rows] = torch.where(better, made, numbers[rows])
        if kind == "int4":
            scale[rows] = torch.where(better, scales, scale[rows])
    return numbers, scale


def _factor(gram: Tensor) -> Tensor:
    """Lower triangular Cholesky factor of G with `_DAMPING` on its diagonal, more where it is too near singular."""
    diagonal = gram.diagonal()
    kept, mean = diagonal.clone(), float(diagonal.mean())
    damping = _DAMPING * mean if mean > 0 else 1.0
    while True:
        diagonal += damping
        factor, failed = torch.linalg.cholesky_ex(gram)
        diagonal.copy_(kept)
        if not failed:
            return factor
        damping *= 10


def _made_up(weight: Tensor, factor: Tensor, kind: str, plain_scale: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows, their integers int8 [rows, in], their scales; int8 has those of `plain_scale` [out]."""
    outputs, inputs = weight.shape
    pivots = factor.diagonal()
    for first in range(0, outputs, _ROWS):
        rows = slice(first, min(outputs, first + _ROWS))
        # Columns lie in one piece; errors are those of the columns rounded so far.
        columns = weight[rows].T.contiguous()
        errors = torch.zeros_like(columns)
        numbers = torch.empty(columns.shape, dtype=torch.int8)
        scales = plain_scale[rows].clone()
        for end in range(inputs, 0, -_BLOCK):
            begin = max(0, end - _BLOCK)
            shares = factor[begin:, begin:end] / pivots[begin:end]
            wanted = columns[begin:end] - shares[end - begin :].T @ errors[end:]
            for stop in range(end - begin, 0, -GROUP):
                start = max(0, stop - GROUP)
                group = wanted[start:stop] - shares[stop : end - begin, start:stop].T @ errors[begin + stop : end]
                if kind == "int4":
                    at = (begin + start) // GROUP
                    weights = pivots[begin + start : begin + stop].square()
                    scales[:, at] = fitted_scales(group.T.contiguous(), weights)[:, 0].clamp_(-65504, 65504)
                    step, low, high = scales[:, at].float(), -8, 7
                else:
                    step, low, high = scales, -127, 127
                inverse = inverse_of(step)
                for k in range(stop - 1, start - 1, -1):
                    at = begin + k
                    value = group[k - start]
                    if k + 1 < stop:
                        value = value - shares[k + 1 : stop, k] @ errors[at + 1 : begin + stop]
                    whole = (value * inverse).round_().clamp_(low, high)
                    numbers[at] = whole
                    torch.sub(whole * step, columns[at], out=errors[at])
        yield rows, numbers.T.contiguous(), scales
