"""One step of the depth transformer, compiled by numba for few rows on a CPU: what `DepthTransformer.step` does."""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np

from fastcar_cli.kernels.formats import (
    F,
    empty_rows,
    exp,
    inline,
    jit,
    numbers_a_word,
    parallel,
    pointer,
    spread,
    tensor,
)
from fastcar_cli.kernels.team import THREADS, begin, end, help_products, multiply

# Table columns: addresses of the tensors of a block, weights [out, in] and float32 biases.
COLUMNS = (
    *("norm1", "norm1_bias", "q", "q_bias", "k", "k_bias", "v", "v_bias", "o", "o_bias"),
    *("norm2", "norm2_bias", "up", "up_bias", "down", "down_bias"),
)
(N1, N1B, Q, QB, K, KB, V, VB, OUT, OB, N2, N2B, UP, UB, DOWN, DB) = range(16)
# Columns of the table of what is not in a block: input map, norm and classifier.
ENDS = ("first", "first_bias", "norm", "norm_bias", "classes", "classes_bias")


@inline
def _layer_norm(x: Any, weight: Any, bias: Any, out: Any) -> Any:
    n = x.shape[0]
    mean = F(0)
    for k in range(n):
        mean += x[k]
    mean /= F(n)
    variance = F(0)
    for k in range(n):
        variance += (x[k] - mean) * (x[k] - mean)
    factor = F(1) / np.sqrt(variance / F(n) + F(1e-5))
    for k in range(n):
        out[k] = (x[k] - mean) * factor * weight[k] + bias[k]


@inline
def _gelu(x: Any) -> Any:
    """X * Phi(x) in place; the error function by Abramowitz and Stegun 7.1.26, to 1.5e-7."""
    for k in range(x.shape[0]):
        z = np.abs(x[k]) * F(0.70710678)
        t = F(1) / (F(1) + F(0.3275911) * z)
        p = F(1.061405429) * t - F(1.453152027)
        p = (p * t + F(1.421413741)) * t - F(0.284496736)
        e = F(1) - (p * t + F(0.254829592)) * t * exp(-z * z)
        x[k] = F(0.5) * (x[k] + np.abs(x[k]) * e)


@inline
def _linear(state: Any, like: Any, x: Any, rows: Any, w: Any, bias: Any, y: Any) -> Any:
    multiply(state, like, x, rows, w, bias[:0], y)
    for r in range(rows):
        for k in range(bias.shape[0]):
            y[r, k] += bias[k]


@jit
def _lead(
    state: Any,
    x: Any,
    d: Any,
    place: Any,
    table: Any,
    ends: Any,
    like: Any,
    heads: Any,
    keys: Any,
    values: Any,
    out: Any,
) -> Any:
    """`depth_step` as its leader runs it."""
    rows, inputs = x.shape
    width, codes = place.shape[0], out.shape[1]
    pack, n = numbers_a_word(like), width // heads
    largest = max(inputs, 4 * width, codes)
    a, b, h = empty_rows(rows, largest), empty_rows(rows, largest), np.empty((rows, width), F)
    q, line, p = np.empty((rows, width), F), np.empty(largest, F), np.empty(d + 1, F)
    for r in range(rows):
        spread(x[r], a[r], like)
    w = tensor(pointer(ends[0], like), (width, inputs // pack))
    _linear(state, like, a, rows, w, tensor(pointer(ends[1], F(0)), (width,)), b)
    for r in range(rows):
        for k in range(width):
            h[r, k] = b[r, k] + place[k]
    scale = F(1) / np.sqrt(F(n))
    for i in range(table.shape[0]):
        at = table[i]
        for r in range(rows):
            _layer_norm(
                h[r], tensor(pointer(at[N1], F(0)), (width,)), tensor(pointer(at[N1B], F(0)), (width,)), line[:width]
            )
            spread(line[:width], a[r], like)
        square = (width, width // pack)
        _linear(state, like, a, rows, tensor(pointer(at[Q], like), square), tensor(pointer(at[QB], F(0)), (width,)), q)
        _linear(state, like, a, rows, tensor(pointer(at[K], like), square), tensor(pointer(at[KB], F(0)), (width,)), b)
        for r in range(rows):
            keys[i, r, d] = b[r, :width]
        _linear(state, like, a, rows, tensor(pointer(at[V], like), square), tensor(pointer(at[VB], F(0)), (width,)), b)
        for r in range(rows):
            values[i, r, d] = b[r, :width]
        for r in range(rows):
            for head in range(heads):
                first = head * n
                top = F(-1e30)
                for s in range(d + 1):
                    total = F(0)
                    for k in range(first, first + n):
                        total += q[r, k] * keys[i, r, s, k]
                    p[s] = total * scale
                    top = max(top, p[s])
                mass = F(0)
                for s in range(d + 1):
                    p[s] = exp(p[s] - top)
                    mass += p[s]
                for k in range(first, first + n):
                    total = F(0)
                    for s in range(d + 1):
                        total += p[s] * values[i, r, s, k]
                    line[k] = total / mass
            spread(line[:width], a[r], like)
        _linear(
            state, like, a, rows, tensor(pointer(at[OUT], like), square), tensor(pointer(at[OB], F(0)), (width,)), b
        )
        for r in range(rows):
            for k in range(width):
                h[r, k] += b[r, k]
            _layer_norm(
                h[r], tensor(pointer(at[N2], F(0)), (width,)), tensor(pointer(at[N2B], F(0)), (width,)), line[:width]
            )
            spread(line[:width], a[r], like)
        wide = 4 * width
        w = tensor(pointer(at[UP], like), (wide, width // pack))
        _linear(state, like, a, rows, w, tensor(pointer(at[UB], F(0)), (wide,)), b)
        for r in range(rows):
            _gelu(b[r, :wide])
            spread(b[r, :wide], a[r], like)
        w = tensor(pointer(at[DOWN], like), (width, wide // pack))
        _linear(state, like, a, rows, w, tensor(pointer(at[DB], F(0)), (width,)), b)
        for r in range(rows):
            for k in range(width):
                h[r, k] += b[r, k]
    for r in range(rows):
        _layer_norm(
            h[r], tensor(pointer(ends[2], F(0)), (width,)), tensor(pointer(ends[3], F(0)), (width,)), line[:width]
        )
        spread(line[:width], a[r], like)
    w = tensor(pointer(ends[4], like), (codes, width // pack))
    _linear(state, like, a, rows, w, tensor(pointer(ends[5], F(0)), (codes,)), out)
    end(state)


@parallel
def _share(
    state: Any,
    x: Any,
    d: Any,
    place: Any,
    table: Any,
    ends: Any,
    like: Any,
    heads: Any,
    keys: Any,
    values: Any,
    out: Any,
) -> Any:
    for member in nb.prange(state[THREADS]):
        if member:
            help_products(state, like, member)
        else:
            _lead(state, x, d, place, table, ends, like, heads, keys, values, out)


@jit
def depth_step(
    state: Any,
    x: Any,
    d: Any,
    place: Any,
    table: Any,
    ends: Any,
    like: Any,
    heads: Any,
    keys: Any,
    values: Any,
    out: Any,
) -> Any:
    """Logits of depth d into out [rows, codes].

    state: `team.new_state`. x [rows, in] is the hidden state at d = 0, the running sum of code vectors after it; place
    [width] the vector of this depth. table: addresses [blocks, len(COLUMNS)], ends: those of ENDS; like: a number of
    the weights' type. keys, values [blocks, rows, depth, width] hold the earlier depths and take this one.
    """
    begin(state)
    if state[THREADS] > 1:
        _share(state, x, d, place, table, ends, like, heads, keys, values, out)
    else:
        _lead(state, x, d, place, table, ends, like, heads, keys, values, out)
