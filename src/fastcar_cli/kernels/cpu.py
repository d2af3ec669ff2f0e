"""One decode pass of all decoder blocks, compiled by numba for few rows on a CPU.

A step at one position is bound by reading weights, so each product streams a weight matrix once in
its stored layout [out, in], four outputs at a time, whatever the number of rows; attention reads the
KV cache in place; the gate decides between attention and MLP, so weights of an MLP that every row
replays are not touched. Activations are float32 throughout.

Formats of a weight or cache tensor: float32; bfloat16, seen as uint32 with two neighbours a word;
int8 with a scale an output. Vectors that meet bfloat16 are kept "split": even places first, then odd
ones, so that both halves of a word meet contiguous numbers.

All of it is in one file because numba's cache of compiled code only watches the file itself.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numba import types
from numba.extending import intrinsic, overload

# Table columns: addresses of the tensors of a layer.
COLUMNS = (
    *("norm1", "q", "k", "v", "o", "q_scale", "k_scale", "v_scale", "o_scale"),
    *("norm2", "gate", "up", "down", "gate_scale", "up_scale", "down_scale"),
    *("keys", "values", "aligned", "outputs"),
)
(NORM1, Q, K, V, OUT, QS, KS, VS, OS, NORM2, GATE, UP, DOWN, GS, US, DS, KEYS, VALUES, ALIGNED, OUTPUTS) = range(20)

F = np.float32
U = np.uint32
LOW = F(-1e30)
OFF = F(3e38)
"""Threshold of a layer that never replays."""
_jit = nb.njit(cache=True, fastmath=True, error_model="numpy")
_inline = nb.njit(fastmath=True, inline="always", error_model="numpy")
_parallel = nb.njit(cache=True, fastmath=True, parallel=True, error_model="numpy")


def _make_pointer(typing: Any, address: Any, like: Any) -> Any:
    """The pointer of an integer address, to elements of the type of `like`."""
    pointer = types.CPointer(like)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(pointer))

    return pointer(address, like), generate


_pointer: Any = intrinsic(_make_pointer)
_tensor: Any = nb.__dict__["carray"]


@_inline
def _low(word: Any) -> Any:
    return U(word << U(16)).view(F)


@_inline
def _high(word: Any) -> Any:
    return U(word & U(0xFFFF0000)).view(F)


@_inline
def _word(low: Any, high: Any) -> Any:
    """Two float32 rounded to bfloat16 (to nearest, ties to even) in one word, the first one low."""
    a, b = F(low).view(U), F(high).view(U)
    a = U(a + U(0x7FFF) + U(U(a >> U(16)) & U(1)))
    b = U(b + U(0x7FFF) + U(U(b >> U(16)) & U(1)))
    return U(U(a >> U(16)) | U(b & U(0xFFFF0000)))


def _packed(array: Any) -> bool:
    return array.dtype == types.uint32


def dot4x2(x: Any, y: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Products of two vectors with four weight rows."""


def dot4(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Products of a vector with four weight rows."""


def dot1(x: Any, a: Any) -> Any:
    """Product of a vector with a weight row."""


def add4(out: Any, p: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Out += p[0] a + p[1] b + p[2] c + p[3] d."""


def spread(x: Any, out: Any, like: Any) -> Any:
    """Copy a vector into the order that meets rows of the type of `like`."""


def load(row: Any, out: Any) -> Any:
    """A stored row as float32 in natural order."""


def store(x: Any, row: Any) -> Any:
    """A float32 vector in natural order into a stored row."""


def gather(x: Any, out: Any, like: Any) -> Any:
    """The reverse of `spread`."""


def numbers_a_word(like: Any) -> Any:
    """Numbers that an element holds."""


def has_scales(like: Any) -> Any:
    """1 for the format with a scale an output, else 0."""


@overload(numbers_a_word, inline="always")
def _numbers_a_word(like: Any) -> Any:
    def one(like: Any) -> Any:
        return 1

    def two(like: Any) -> Any:
        return 2

    return two if like == types.uint32 else one


@overload(has_scales, inline="always")
def _has_scales(like: Any) -> Any:
    def no(like: Any) -> Any:
        return 0

    def yes(like: Any) -> Any:
        return 1

    return yes if like == types.int8 else no


@overload(gather, inline="always")
def _gather(x: Any, out: Any, like: Any) -> Any:
    def plain(x: Any, out: Any, like: Any) -> Any:
        for k in range(x.shape[0]):
            out[k] = x[k]

    def packed(x: Any, out: Any, like: Any) -> Any:
        n = x.shape[0] // 2
        for k in range(n):
            out[2 * k] = x[k]
            out[2 * k + 1] = x[n + k]

    return packed if like == types.uint32 else plain


@overload(dot4x2, inline="always")
def _dot4x2(x: Any, y: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    def plain(x: Any, y: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        x0 = x1 = x2 = x3 = y0 = y1 = y2 = y3 = F(0)
        for k in range(a.shape[0]):
            u, v = x[k], y[k]
            p, q, r, s = F(a[k]), F(b[k]), F(c[k]), F(d[k])
            x0 += u * p
            x1 += u * q
            x2 += u * r
            x3 += u * s
            y0 += v * p
            y1 += v * q
            y2 += v * r
            y3 += v * s
        return x0, x1, x2, x3, y0, y1, y2, y3

    def packed(x: Any, y: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        n = a.shape[0]
        xe, xo, ye, yo = x[:n], x[n : 2 * n], y[:n], y[n : 2 * n]
        x0 = x1 = x2 = x3 = y0 = y1 = y2 = y3 = F(0)
        for k in range(n):
            u, v, w, z = xe[k], xo[k], ye[k], yo[k]
            p, q, r, s = a[k], b[k], c[k], d[k]
            x0 += u * _low(p) + v * _high(p)
            x1 += u * _low(q) + v * _high(q)
            x2 += u * _low(r) + v * _high(r)
            x3 += u * _low(s) + v * _high(s)
            y0 += w * _low(p) + z * _high(p)
            y1 += w * _low(q) + z * _high(q)
            y2 += w * _low(r) + z * _high(r)
            y3 += w * _low(s) + z * _high(s)
        return x0, x1, x2, x3, y0, y1, y2, y3

    return packed if _packed(a) else plain


@overload(dot4, inline="always")
def _dot4(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    def plain(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        x0 = x1 = x2 = x3 = F(0)
        for k in range(a.shape[0]):
            u = x[k]
            x0 += u * F(a[k])
            x1 += u * F(b[k])
            x2 += u * F(c[k])
            x3 += u * F(d[k])
        return x0, x1, x2, x3

    def packed(x: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        n = a.shape[0]
        xe, xo = x[:n], x[n : 2 * n]
        x0 = x1 = x2 = x3 = F(0)
        for k in range(n):
            u, v = xe[k], xo[k]
            x0 += u * _low(a[k]) + v * _high(a[k])
            x1 += u * _low(b[k]) + v * _high(b[k])
            x2 += u * _low(c[k]) + v * _high(c[k])
            x3 += u * _low(d[k]) + v * _high(d[k])
        return x0, x1, x2, x3

    return packed if _packed(a) else plain


@overload(dot1, inline="always")
def _dot1(x: Any, a: Any) -> Any:
    def plain(x: Any, a: Any) -> Any:
        total = F(0)
        for k in range(a.shape[0]):
            total += x[k] * F(a[k])
        return total

    def packed(x: Any, a: Any) -> Any:
        n = a.shape[0]
        total = F(0)
        for k in range(n):
            total += x[k] * _low(a[k]) + x[n + k] * _high(a[k])
        return total

    return packed if _packed(a) else plain


@overload(add4, inline="always")
def _add4(out: Any, p: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    def plain(out: Any, p: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        for k in range(a.shape[0]):
            out[k] += p[0] * F(a[k]) + p[1] * F(b[k]) + p[2] * F(c[k]) + p[3] * F(d[k])

    def packed(out: Any, p: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
        n = a.shape[0]
        even, odd = out[:n], out[n : 2 * n]
        for k in range(n):
            even[k] += p[0] * _low(a[k]) + p[1] * _low(b[k]) + p[2] * _low(c[k]) + p[3] * _low(d[k])
            odd[k] += p[0] * _high(a[k]) + p[1] * _high(b[k]) + p[2] * _high(c[k]) + p[3] * _high(d[k])

    return packed if _packed(a) else plain


@overload(spread, inline="always")
def _spread(x: Any, out: Any, like: Any) -> Any:
    def plain(x: Any, out: Any, like: Any) -> Any:
        for k in range(x.shape[0]):
            out[k] = x[k]

    def packed(x: Any, out: Any, like: Any) -> Any:
        n = x.shape[0] // 2
        for k in range(n):
            out[k] = x[2 * k]
            out[n + k] = x[2 * k + 1]

    return packed if like == types.uint32 else plain


@overload(load, inline="always")
def _load(row: Any, out: Any) -> Any:
    def plain(row: Any, out: Any) -> Any:
        for k in range(row.shape[0]):
            out[k] = row[k]

    def packed(row: Any, out: Any) -> Any:
        for k in range(row.shape[0]):
            out[2 * k] = _low(row[k])
            out[2 * k + 1] = _high(row[k])

    return packed if _packed(row) else plain


@overload(store, inline="always")
def _store(x: Any, row: Any) -> Any:
    def plain(x: Any, row: Any) -> Any:
        for k in range(row.shape[0]):
            row[k] = x[k]

    def packed(x: Any, row: Any) -> Any:
        for k in range(row.shape[0]):
            row[k] = _word(x[2 * k], x[2 * k + 1])

    return packed if _packed(row) else plain


@_inline
def _exp(x: Any) -> Any:
    """e^x in float32 by range reduction and a polynomial of degree 5 (Cephes), which vectorises; x <= 88."""
    x = max(x, F(-87.0))
    z = np.floor(x * F(1.44269504) + F(0.5))
    r = x - z * F(0.693359375) + z * F(2.12194440e-4)
    p = F(1.9875691500e-4)
    p = p * r + F(1.3981999507e-3)
    p = p * r + F(8.3334519073e-3)
    p = p * r + F(4.1665795894e-2)
    p = p * r + F(1.6666665459e-1)
    p = p * r + F(5.0000001201e-1)
    p = p * r * r + r + F(1)
    return p * np.int32((np.int32(z) + np.int32(127)) << np.int32(23)).view(F)


def _product(x: Any, rows: Any, w: Any, y: Any) -> Any:
    """Y[r] = w x[r] for the first rows; w [out >= 4, in], x in the order that meets w."""
    outputs = w.shape[0]
    for block in nb.prange((outputs + 3) // 4):
        # The last block may overlap the one before; it writes the same numbers.
        o = min(block * 4, outputs - 4)
        a, b, c, d = w[o], w[o + 1], w[o + 2], w[o + 3]
        for r in range(0, rows - 1, 2):
            x0, x1, x2, x3, y0, y1, y2, y3 = dot4x2(x[r], x[r + 1], a, b, c, d)
            y[r, o], y[r, o + 1], y[r, o + 2], y[r, o + 3] = x0, x1, x2, x3
            y[r + 1, o], y[r + 1, o + 1], y[r + 1, o + 2], y[r + 1, o + 3] = y0, y1, y2, y3
        if rows % 2:
            r = rows - 1
            x0, x1, x2, x3 = dot4(x[r], a, b, c, d)
            y[r, o], y[r, o + 1], y[r, o + 2], y[r, o + 3] = x0, x1, x2, x3


def _attention(
    q: Any, keys: Any, values: Any, mask: Any, start: Any, length: Any, like: Any, work: Any, out: Any
) -> Any:
    """Softmax attention of one query a row: q, out [rows, heads, d]; keys, values [rows, kv heads, slots, words].

    Row r attends to slots start[r] .. length - 1 that its mask [rows or 0, slots] allows. `work`
    [rows, heads, 2 d + 4 + slots] is overwritten.
    """
    rows, heads, d = q.shape
    groups = heads // keys.shape[1]
    scale = F(1) / np.sqrt(F(d))
    for item in nb.prange(rows * heads):
        r, h = item // heads, item % heads
        kk, vv = keys[r, h // groups], values[r, h // groups]
        first = start[r]
        n = length - first
        query, total, p = work[r, h, :d], work[r, h, d : 2 * d], work[r, h, 2 * d + 4 : 2 * d + 4 + n]
        one = work[r, h, 2 * d : 2 * d + 4]
        spread(q[r, h], query, like)
        whole = n // 4 * 4
        for s in range(0, whole, 4):
            i = first + s
            a, b, c, e = dot4(query, kk[i], kk[i + 1], kk[i + 2], kk[i + 3])
            p[s], p[s + 1], p[s + 2], p[s + 3] = a, b, c, e
        for s in range(whole, n):
            p[s] = dot1(query, kk[first + s])
        top = LOW
        for s in range(n):
            if mask.shape[0] and not mask[r, first + s]:
                p[s] = LOW
            top = max(top, p[s])
        mass = F(0)
        for s in range(n):
            e = _exp((p[s] - top) * scale)
            p[s] = e
            mass += e
        total[:] = F(0)
        for s in range(0, whole, 4):
            i = first + s
            add4(total, p[s : s + 4], vv[i], vv[i + 1], vv[i + 2], vv[i + 3])
        for s in range(whole, n):
            i = first + s
            one[0], one[1], one[2], one[3] = p[s], F(0), F(0), F(0)
            add4(total, one, vv[i], vv[i], vv[i], vv[i])
        gather(total, out[r, h], like)
        for j in range(d):
            out[r, h, j] /= mass


_product_serial, _product_parallel = _jit(_product), _parallel(_product)
_attention_serial, _attention_parallel = _jit(_attention), _parallel(_attention)


@_inline
def _multiply(threads: Any, x: Any, rows: Any, w: Any, scale: Any, y: Any) -> Any:
    if threads > 1:
        _product_parallel(x, rows, w, y)
    else:
        _product_serial(x, rows, w, y)
    if scale.shape[0]:
        for r in range(rows):
            for o in range(scale.shape[0]):
                y[r, o] *= scale[o]


@_inline
def _norm(x: Any, weight: Any, eps: Any, out: Any) -> Any:
    total = F(0)
    for k in range(x.shape[0]):
        total += x[k] * x[k]
    factor = F(1) / np.sqrt(total / F(x.shape[0]) + eps)
    for k in range(x.shape[0]):
        out[k] = x[k] * factor * weight[k]


@_inline
def _rotate(x: Any, cos: Any, sin: Any, out: Any) -> Any:
    half = x.shape[0] // 2
    for j in range(half):
        a, b = x[j], x[half + j]
        out[j] = a * cos[j] - b * sin[j]
        out[half + j] = b * cos[half + j] + a * sin[half + j]


@_inline
def _activate(gate: Any, up: Any) -> Any:
    """Up *= silu(gate)."""
    for k in range(gate.shape[0]):
        up[k] *= gate[k] / (F(1) + _exp(min(-gate[k], F(87))))


@_jit
def _gate(
    scores: Any, tau: Any, pairs: Any, max_age: Any, ages: Any, slot: Any, replayed: Any, forced: Any, t: Any
) -> Any:
    """Which rows replay: replayed[:, t], and how often in a row, ages[:, slot], as in `ReplayCache`.

    By tau [rows], or as forced [rows or 0, tokens] says.
    """
    rows = scores.shape[0]
    for r in range(rows):
        other = (r + rows // 2) % rows if pairs else r
        score = scores[r]
        if pairs:
            score = (scores[min(r, other)] + scores[max(r, other)]) / F(2)
        young = max_age < 0 or (ages[r, slot] < max_age and ages[other, slot] < max_age)
        replayed[r, t] = (forced[r, t] if forced.shape[0] else score > tau[r]) and young
    if max_age >= 0:
        for r in range(rows):
            ages[r, slot] = ages[r, slot] + 1 if replayed[r, t] else 0


@_jit
def _mlp(a: Any, b: Any, c: Any, rows: Any, at: Any, like: Any, shape: Any, threads: Any) -> Any:
    """The MLP of normalised inputs a [rows, width], in the order that meets weights, into b; a and c are lost."""
    width, mlp = shape
    pack, scaled = numbers_a_word(like), has_scales(like)
    w_gate = _tensor(_pointer(at[GATE], like), (mlp, width // pack))
    w_up = _tensor(_pointer(at[UP], like), (mlp, width // pack))
    w_down = _tensor(_pointer(at[DOWN], like), (width, mlp // pack))
    _multiply(threads, a, rows, w_gate, _tensor(_pointer(at[GS], F(0)), (mlp * scaled,)), b)
    _multiply(threads, a, rows, w_up, _tensor(_pointer(at[US], F(0)), (mlp * scaled,)), c)
    for n in range(rows):
        _activate(b[n, :mlp], c[n, :mlp])
        spread(c[n, :mlp], a[n], like)
    _multiply(threads, a, rows, w_down, _tensor(_pointer(at[DS], F(0)), (width * scaled,)), b)


@_jit
def mlp_branches(x: Any, table: Any, like: Any, mlp: Any, eps: Any, threads: Any) -> Any:
    """Only the norms and MLPs of all layers on x [rows, width], for timing their share; nothing is returned."""
    rows, width = x.shape
    largest = max(width, mlp)
    a, b, c = np.empty((rows, largest), F), np.empty((rows, largest), F), np.empty((rows, largest), F)
    line = np.empty(width, F)
    for i in range(table.shape[0]):
        at = table[i]
        norm2 = _tensor(_pointer(at[NORM2], F(0)), (width,))
        for r in range(rows):
            _norm(x[r], norm2, eps, line)
            spread(line, a[r], like)
        _mlp(a, b, c, rows, at, like, (width, mlp), threads)


@_jit
def decode_pass(
    x: Any,
    table: Any,
    like: Any,
    like_cache: Any,
    shape: Any,
    eps: Any,
    cos: Any,
    sin: Any,
    mask: Any,
    start: Any,
    place: Any,
    released: Any,
    gate: Any,
    taus: Any,
    replayed: Any,
    ages: Any,
    kept: Any,
    forced: Any,
    work: Any,
    threads: Any,
) -> Any:
    """All blocks on one token of every row, in place of x [rows, width] float32.

    table: addresses [layers, len(COLUMNS)]; like, like_cache: a number of the weights' and the caches' type.
    shape: heads, kv heads, head width, MLP width, and slots of the KV cache, of the aligned keys, of the replay
    cache. cos, sin [rows or 1, head width]. mask [rows or 0, slots] and start [rows] as `_attention` has them.
    place: slot of this token, slots to attend to, slots of the aligned key and of this token among the aligned
    keys, slot in the replay cache, index of the token. gate: replay on, rows in pairs, most replays in a row
    (-1: any). taus [layers, rows], OFF where a layer never replays; replayed, kept, forced [layers, rows, tokens]
    (kept and forced may be empty); ages [layers, rows, slots]. work [rows, heads, 2 d + 4 + slots] is overwritten.
    """
    rows, width = x.shape
    heads, kv_heads, d, mlp, slots, ring, frame = shape
    slot, length, aligned_at, aligned_to, replay_at, t = place
    on, pairs, max_age = gate
    pack, pack_cache, scaled = numbers_a_word(like), numbers_a_word(like_cache), has_scales(like)
    largest = max(width, heads * d, mlp)
    a, b, c = np.empty((rows, largest), F), np.empty((rows, largest), F), np.empty((rows, largest), F)
    q_raw, q, attended = np.empty((rows, heads, d), F), np.empty((rows, heads, d), F), np.empty((rows, heads, d), F)
    k_new, line = np.empty(d, F), np.empty(width, F)
    scores, computing = np.empty(rows, F), np.empty(rows, np.int64)
    no_flags = np.zeros((0, 0), np.bool_)
    for i in range(table.shape[0]):
        at = table[i]
        norm1 = _tensor(_pointer(at[NORM1], F(0)), (width,))
        norm2 = _tensor(_pointer(at[NORM2], F(0)), (width,))
        w_q = _tensor(_pointer(at[Q], like), (heads * d, width // pack))
        w_k = _tensor(_pointer(at[K], like), (kv_heads * d, width // pack))
        w_v = _tensor(_pointer(at[V], like), (kv_heads * d, width // pack))
        w_o = _tensor(_pointer(at[OUT], like), (width, heads * d // pack))
        keys = _tensor(_pointer(at[KEYS], like_cache), (rows, kv_heads, slots, d // pack_cache))
        values = _tensor(_pointer(at[VALUES], like_cache), (rows, kv_heads, slots, d // pack_cache))
        aligned = _tensor(_pointer(at[ALIGNED], like_cache), (rows, kv_heads, ring, d // pack_cache))
        for r in range(rows):
            _norm(x[r], norm1, eps, line)
            spread(line, a[r], like)
        _multiply(threads, a, rows, w_q, _tensor(_pointer(at[QS], F(0)), (heads * d * scaled,)), b)
        for r in range(rows):
            angle = min(r, cos.shape[0] - 1)
            for h in range(heads):
                for j in range(d):
                    q_raw[r, h, j] = b[r, h * d + j]
                _rotate(q_raw[r, h], cos[angle], sin[angle], q[r, h])
        _multiply(threads, a, rows, w_k, _tensor(_pointer(at[KS], F(0)), (kv_heads * d * scaled,)), b)
        _multiply(threads, a, rows, w_v, _tensor(_pointer(at[VS], F(0)), (kv_heads * d * scaled,)), c)
        for r in range(rows):
            angle = min(r, cos.shape[0] - 1)
            for h in range(kv_heads):
                _rotate(b[r, h * d : (h + 1) * d], cos[angle], sin[angle], k_new)
                store(k_new, keys[r, h, slot])
                store(k_new, aligned[r, h, aligned_to])
                store(c[r, h * d : (h + 1) * d], values[r, h, slot])
        if threads > 1:
            _attention_parallel(q, keys, values, mask, start, length, like_cache, work, attended)
        else:
            _attention_serial(q, keys, values, mask, start, length, like_cache, work, attended)
        for r in range(rows):
            spread(attended[r].reshape(heads * d), a[r], like)
        _multiply(threads, a, rows, w_o, _tensor(_pointer(at[OS], F(0)), (width * scaled,)), b)
        for r in range(rows):
            for k in range(width):
                x[r, k] += b[r, k]

        eligible = on and taus[i, 0] < OFF and t >= frame
        if eligible:
            for r in range(rows):
                score = F(0)
                for h in range(heads):
                    spread(q_raw[r, h] if released else q[r, h], k_new, like_cache)
                    score += dot1(k_new, aligned[r, h // (heads // kv_heads), aligned_at])
                scores[r] = score / (np.sqrt(F(d)) * F(heads))
            flags = forced[i] if forced.shape[0] else no_flags
            _gate(scores, taus[i], pairs, max_age, ages[i], replay_at, replayed[i], flags, t)
            if kept.shape[0]:
                for r in range(rows):
                    kept[i, r, t] = scores[r]

        count = 0
        for r in range(rows):
            if not (eligible and replayed[i, r, t]):
                _norm(x[r], norm2, eps, line)
                spread(line, a[count], like)
                computing[count] = r
                count += 1
        if count:
            _mlp(a, b, c, count, at, like, (width, mlp), threads)
        if on:
            outputs = _tensor(_pointer(at[OUTPUTS], like_cache), (rows, frame, width // pack_cache))
            for n in range(count):
                store(b[n, :width], outputs[computing[n], replay_at])
            for r in range(rows):
                load(outputs[r, replay_at], line)
                for k in range(width):
                    x[r, k] += line[k]
        else:
            for r in range(rows):
                for k in range(width):
                    x[r, k] += b[r, k]
