"""One step of the depth transformer, compiled by numba for few rows on a CPU: what `DepthTransformer.step` does."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastcar_cli.kernels.formats import (
    F,
    exp,
    inline,
    jit,
    multiply,
    numbers_a_word,
    pointer,
    spread,
    tensor,
)

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
def _linear(threads: Any, x: Any, rows: Any, w: Any, bias: Any, y: Any) -> Any:
    multiply(threads, x, rows, w, bias[:0], y)
    for r in range(rows):
        for k in range(bias.shape[0]):
            y[r, k] += bias[k]


@jit
def depth_step(
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
    threads: Any,
) -> Any:
    """Logits of depth d into out [rows, codes].

    x [rows, in] is the hidden state at d = 0, the running sum of code vectors after it; place [width] the vector
    of this depth. table: addresses [blocks, len(COLUMNS)], ends: those of ENDS; like: a number of the weights'
    type. keys, values [blocks, rows, depth, width] hold the earlier depths and take this one.
    """  # fmt: skip
    rows, inputs = x.shape
    width, codes = place.shape[0], out.shape[1]
    pack, n = numbers_a_word(like), width // heads
    largest = max(inputs, 4 * width, codes)
    a, b, h = np.empty((rows, largest), F), np.empty((rows, largest), F), np.empty((rows, width), F)
    q, line, p = np.empty((rows, width), F), np.empty(largest, F), np.empty(d + 1, F)
    for r in range(rows):
        spread(x[r], a[r], like)
    w = tensor(pointer(ends[0], like), (width, inputs // pack))
    _linear(threads, a, rows, w, tensor(pointer(ends[1], F(0)), (width,)), b)
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
        _linear(threads, a, rows, tensor(pointer(at[Q], like), square), tensor(pointer(at[QB], F(0)), (width,)), q)
        _linear(threads, a, rows, tensor(pointer(at[K], like), square), tensor(pointer(at[KB], F(0)), (width,)), b)
        for r in range(rows):
            keys[i, r, d] = b[r, :width]
        _linear(threads, a, rows, tensor(pointer(at[V], like), square), tensor(pointer(at[VB], F(0)), (width,)), b)
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
        _linear(threads, a, rows, tensor(pointer(at[OUT], like), square), tensor(pointer(at[OB], F(0)), (width,)), b)
        for r in range(rows):
            for k in range(width):
                h[r, k] += b[r, k]
            _layer_norm(
                h[r], tensor(pointer(at[N2], F(0)), (width,)), tensor(pointer(at[N2B], F(0)), (width,)), line[:width]
            )
            spread(line[:width], a[r], like)
        wide = 4 * width
        w = tensor(pointer(at[UP], like), (wide, width // pack))
        _linear(threads, a, rows, w, tensor(pointer(at[UB], F(0)), (wide,)), b)
        for r in range(rows):
            _gelu(b[r, :wide])
            spread(b[r, :wide], a[r], like)
        w = tensor(pointer(at[DOWN], like), (width, wide // pack))
        _linear(threads, a, rows, w, tensor(pointer(at[DB], F(0)), (width,)), b)
        for r in range(rows):
            for k in range(width):
                h[r, k] += b[r, k]
    for r in range(rows):
        _layer_norm(
            h[r], tensor(pointer(ends[2], F(0)), (width,)), tensor(pointer(ends[3], F(0)), (width,)), line[:width]
        )
        spread(line[:width], a[r], like)
    w = tensor(pointer(ends[4], like), (codes, width // pack))
    _linear(threads, a, rows, w, tensor(pointer(ends[5], F(0)), (codes,)), out)
