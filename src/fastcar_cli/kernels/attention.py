"""Attention of one query a row over the KV cache in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastcar_cli.kernels.formats import F, exp, gather, jit, spread
from fastcar_cli.kernels.stream import add_rows, one_by_one, rows_at_once, several_by_one

_LOW = F(-1e30)
TILE = 16
"""Slots whose values are asked for while their keys are worked on, and the other way round."""


@jit
def attend(item: Any, q: Any, keys: Any, values: Any, mask: Any, start: Any, length: Any, work: Any, out: Any) -> Any:
    """Softmax attention of one head of a row: q, out [rows, heads, d]; keys, values [rows, kv heads, slots, words].

    Row r attends to slots start[r] .. length - 1 that its mask [rows or 0, slots] allows. `work`
    [rows, heads, 2 d + TILE] is overwritten. Slots are taken TILE at a time, and what was summed up is scaled
    whenever a higher score is met (Milakov and Gimelshein, 2018, arXiv:1805.02867).
    """
    heads, d = q.shape[1:]
    groups = heads // keys.shape[1]
    scale = F(1) / np.sqrt(F(d))
    r, h = item // heads, item % heads
    kk, vv = keys[r, h // groups], values[r, h // groups]
    like = kk[0, 0]
    first = start[r]
    n = length - first
    query, total, p = work[r, h, :d], work[r, h, d : 2 * d], work[r, h, 2 * d :]
    spread(q[r, h], query, like)
    for j in range(d):
        query[j] *= scale
    x, y, weights = query.ctypes.data, total.ctypes.data, p.ctypes.data
    row, words = kk.strides[0], kk.shape[1]
    k_at, v_at = kk.ctypes.data + first * row, vv.ctypes.data + first * row
    next_r, next_h = min(item + 1, q.shape[0] * heads - 1) // heads, (item + 1) % heads
    next_at = keys[next_r, next_h // groups].ctypes.data + start[next_r] * row
    to_values, to_keys = v_at - k_at, k_at - v_at + TILE * row
    total[:] = F(0)
    at_once = rows_at_once(like)
    top, mass = _LOW, F(0)
    for s in range(0, n, TILE):
        count = min(TILE, n - s)
        whole = count // at_once * at_once
        at = k_at + s * row
        for i in range(0, whole, at_once):
            several_by_one(like, at + i * row, words, to_values, 0, x, weights + 4 * i)
        for i in range(whole, count):
            one_by_one(like, at + i * row, words, to_values, 0, x, weights + 4 * i)
        if mask.shape[0]:
            for i in range(count):
                if not mask[r, first + s + i]:
                    p[i] = _LOW
        peak = _LOW
        for i in range(count):
            peak = max(peak, p[i])
        if peak > top:
            shrink = exp(top - peak)
            mass *= shrink
            for j in range(d):
                total[j] *= shrink
            top = peak
        for i in range(count):
            p[i] = exp(p[i] - top)
            mass += p[i]
        at = v_at + s * row
        add_rows(like, at, words, row, to_keys if s + TILE < n else next_at - at, weights, count, y)
    gather(total, out[r, h], like)
    for j in range(d):
        out[r, h, j] /= mass
