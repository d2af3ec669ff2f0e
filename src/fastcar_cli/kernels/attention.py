"""Attention of one query a row over the KV cache in place."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastcar_cli.kernels.formats import F, add4, exp, gather, jit, spread
from fastcar_cli.kernels.stream import ask, four_rows_once, one_row_once

_LOW = F(-1e30)


@jit
def attend(item: Any, q: Any, keys: Any, values: Any, mask: Any, start: Any, length: Any, work: Any, out: Any) -> Any:
    """Softmax attention of one head of a row: q, out [rows, heads, d]; keys, values [rows, kv heads, slots, words].

    Row r attends to slots start[r] .. length - 1 that its mask [rows or 0, slots] allows. `work`
    [rows, heads, 2 d + 4 + slots] is overwritten.
    """
    heads, d = q.shape[1:]
    groups = heads // keys.shape[1]
    scale = F(1) / np.sqrt(F(d))
    r, h = item // heads, item % heads
    kk, vv = keys[r, h // groups], values[r, h // groups]
    like = kk[0, 0]
    first = start[r]
    n = length - first
    query, total, p = work[r, h, :d], work[r, h, d : 2 * d], work[r, h, 2 * d + 4 : 2 * d + 4 + n]
    one = work[r, h, 2 * d : 2 * d + 4]
    spread(q[r, h], query, like)
    whole = n // 4 * 4
    row, words = kk.strides[0], kk.shape[1]
    at = kk.ctypes.data + first * row
    for s in range(0, whole, 4):
        p[s], p[s + 1], p[s + 2], p[s + 3] = four_rows_once(like, at + s * row, words, query.ctypes.data)
    for s in range(whole, n):
        p[s] = one_row_once(like, at + s * row, words, query.ctypes.data)[0]
    top = _LOW
    for s in range(n):
        if mask.shape[0] and not mask[r, first + s]:
            p[s] = _LOW
        top = max(top, p[s])
    mass = F(0)
    for s in range(n):
        e = exp((p[s] - top) * scale)
        p[s] = e
        mass += e
    total[:] = F(0)
    at = vv.ctypes.data + first * row
    for s in range(0, whole, 4):
        i = first + s
        for byte in range(0, 4 * row, 64):
            ask(at + s * row + byte)
        add4(total, p[s : s + 4], vv[i], vv[i + 1], vv[i + 2], vv[i + 3])
    for s in range(whole, n):
        i = first + s
        one[0], one[1], one[2], one[3] = p[s], F(0), F(0), F(0)
        add4(total, one, vv[i], vv[i], vv[i], vv[i])
    gather(total, out[r, h], like)
    for j in range(d):
        out[r, h, j] /= mass
