"""Rounds a matrix for its inputs: the next columns compensate for the error of each rounded column.

GPTQ (Frantar et al. 2022, arXiv 2210.17323) in the form LDLQ (Chee et al. 2023, arXiv 2307.13304, section 3), which
gives the same numbers from one Cholesky factor. With inputs x, G = sum x x^T = L D L^T and errors E = W' - W of a row,
the error of its outputs is E G E^T = sum over columns k of D_k (E L)_k^2, and (E L)_k depends on the columns from k on
only: from the last to the first, each is rounded to where this sum is least.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from fastcar_cli.weights.formats import GROUP, Format, inverse_of

_DAMPING = 0.01  # of the mean of G's diagonal, added to it: inputs that hardly occur are no reason for large numbers
_BLOCK, _ROWS = 4 * GROUP, 2048  # columns per block of compensation, and rows rounded at once


def output_error(error: Tensor, gram: Tensor) -> Tensor:
    """Sums of squared errors of the outputs, float32 [out], of errors [out, in] of a matrix on inputs of `gram`."""
    return torch.cat([((part @ gram) * part).sum(1) for part in error.split(_ROWS)])


def calibrated(weight: Tensor, gram: Tensor, form: Format) -> tuple[Tensor, Tensor]:
    """A matrix float32 [out, in] as numbers and scales of a format.

    gram: sum of x x^T over the inputs, float32 [in, in]; it comes back as it was. A row is rounded as
    `Format.quantise` does where its outputs are nearer to the matrix's that way.
    """
    numbers, scale = form.quantise(weight)
    factor = _factor(gram)
    for rows, integers, scales in _made_up(weight, factor, form, scale):
        packed, part = form.pack(integers), weight[rows]
        plain, other = (
            output_error(form.widen(n, s, torch.float32) - part, gram)
            for n, s in ((numbers[rows], scale[rows]), (packed, scales))
        )
        better = (other < plain)[:, None]
        numbers[rows] = torch.where(better, packed, numbers[rows])
        if form.fit is not None:
            scale[rows] = torch.where(better, scales, scale[rows])
    return numbers, scale


def _factor(gram: Tensor) -> Tensor:
    """Lower triangular Cholesky factor of G with `_DAMPING` on its diagonal, or more if G is nearly singular."""
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


def _made_up(
    weight: Tensor, factor: Tensor, form: Format, plain_scale: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Rows, their integers int8 [rows, in] and scales; `plain_scale`'s if the format fits none."""
    outputs, inputs = weight.shape
    width = form.group or GROUP
    pivots = factor.diagonal()
    for first in range(0, outputs, _ROWS):
        rows = slice(first, min(outputs, first + _ROWS))
        # Columns are contiguous; errors are those of the columns rounded so far.
        columns = weight[rows].T.contiguous()
        errors = torch.zeros_like(columns)
        numbers = torch.empty(columns.shape, dtype=torch.int8)
        scales = plain_scale[rows].clone()
        for end in range(inputs, 0, -_BLOCK):
            begin = max(0, end - _BLOCK)
            shares = factor[begin:, begin:end] / pivots[begin:end]
            wanted = columns[begin:end] - shares[end - begin :].T @ errors[end:]
            for stop in range(end - begin, 0, -width):
                start = max(0, stop - width)
                group = wanted[start:stop] - shares[stop : end - begin, start:stop].T @ errors[begin + stop : end]
                step = scales
                if form.fit is not None:
                    at = (begin + start) // width
                    weights = pivots[begin + start : begin + stop].square()
                    scales[:, at] = form.fit(group.T.contiguous(), weights)[:, 0].clamp_(-65504, 65504)
                    step = scales[:, at].float()
                inverse = inverse_of(step)
                for k in range(stop - 1, start - 1, -1):
                    at = begin + k
                    value = group[k - start]
                    if k + 1 < stop:
                        value = value - shares[k + 1 : stop, k] @ errors[at + 1 : begin + stop]
                    whole = (value * inverse).round_().clamp_(form.low, form.high)
                    numbers[at] = whole
                    torch.sub(whole * step, columns[at], out=errors[at])
        yield rows, numbers.T.contiguous(), scales
