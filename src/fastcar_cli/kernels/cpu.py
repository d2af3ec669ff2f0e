"""One decode pass of all decoder blocks, compiled by numba for few rows on a CPU.

A step at one position is bound by reading weights, so each product streams a weight matrix once in
its stored layout [out, in], for two rows of the batch at a time; attention reads the
KV cache in place; the gate decides between attention and MLP, so weights of an MLP that every row
replays are not touched. Activations are float32 throughout. A team of threads shares each product and
the heads of attention.
"""

from __future__ import annotations

from typing import Any

import numba as nb
import numpy as np
from numpy.typing import NDArray

from fastcar_cli.kernels.attention import TILE, attend
from fastcar_cli.kernels.formats import (
    F,
    dot1,
    empty_rows,
    has_scales,
    inline,
    jit,
    load,
    numbers_a_word,
    parallel,
    pointer,
    spread,
    store,
    tensor,
)
from fastcar_cli.kernels.team import (
    KIND,
    PRODUCT,
    THREADS,
    WORK,
    begin,
    claim,
    done,
    end,
    help_products,
    idle,
    multiply,
    multiply_gated,
    product_chunk,
    publish,
    wait,
)

# Table columns: addresses of the tensors of a layer.
COLUMNS = (
    *("norm1", "q", "k", "v", "o", "q_scale", "k_scale", "v_scale", "o_scale"),
    *("norm2", "gate", "up", "down", "gate_scale", "up_scale", "down_scale"),
    *("keys", "values", "aligned", "outputs"),
)
(NORM1, Q, K, V, OUT, QS, KS, VS, OS, NORM2, GATE, UP, DOWN, GS, US, DS, KEYS, VALUES, ALIGNED, OUTPUTS) = range(20)

OFF = F(3e38)
"""Threshold of a layer that never replays."""


def new_buffers(rows: int, heads: int, d: int) -> tuple[NDArray[np.float32], ...]:
    """What a pass overwrites: q [rows, heads, d], work as `attend` needs it, attended like q."""
    q, work, attended = (np.empty((rows, heads, n), np.float32) for n in (d, 2 * d + TILE, d))
    return q, work, attended


ATTENTION = 1
"""Kind of a stage of a team: attention of layer state[LAYER], a head of a row a chunk."""
LAYER = WORK + 1


@jit
def _take(member: Any, state: Any, table: Any, formats: Any, shape: Any, seen: Any, place: Any, buffers: Any) -> Any:
    """Chunks of the open stage, of either kind, until none is left."""
    kv_heads, d, slots, length = shape[1], shape[2], shape[4], place[1]
    like, like_cache = formats
    mask, start = seen
    q, work, attended = buffers
    cached = (len(start), kv_heads, slots, d // numbers_a_word(like_cache))
    item = claim(state, member)
    while item >= 0:
        if state[KIND] == PRODUCT:
            product_chunk(state, item, like)
        else:
            at = table[state[LAYER]]
            keys, values = (
                tensor(pointer(at[KEYS], like_cache), cached),
                tensor(pointer(at[VALUES], like_cache), cached),
            )
            attend(item, q, keys, values, mask, start, length, work, attended)
        done(state)
        item = claim(state, member)


@inline
def _norm(x: Any, weight: Any, eps: Any, out: Any) -> Any:
    total = F(0)
    for k in range(x.shape[0]):
        total += x[k] * x[k]
    factor = F(1) / np.sqrt(total / F(x.shape[0]) + eps)
    for k in range(x.shape[0]):
        out[k] = x[k] * factor * weight[k]


@inline
def _rotate(x: Any, cos: Any, sin: Any, out: Any) -> Any:
    half = x.shape[0] // 2
    for j in range(half):
        a, b = x[j], x[half + j]
        out[j] = a * cos[j] - b * sin[j]
        out[half + j] = b * cos[half + j] + a * sin[half + j]


@jit
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


@jit
def _mlp(state: Any, a: Any, b: Any, c: Any, rows: Any, at: Any, like: Any, shape: Any) -> Any:
    """The MLP of normalised inputs a [rows, width], in the order that meets weights, into b; a and c are
    lost.
    """
    width, mlp = shape
    pack, scaled = numbers_a_word(like), has_scales(like)
    w_gate = tensor(pointer(at[GATE], like), (mlp, width // pack))
    w_up = tensor(pointer(at[UP], like), (mlp, width // pack))
    w_down = tensor(pointer(at[DOWN], like), (width, mlp // pack))
    up_scale, gate_scale = (
        tensor(pointer(at[US], F(0)), (mlp * scaled,)),
        tensor(pointer(at[GS], F(0)), (mlp * scaled,)),
    )
    multiply_gated(state, like, a, rows, w_up, up_scale, w_gate, gate_scale, b, c)
    for n in range(rows):
        spread(b[n, :mlp], a[n], like)
    multiply(state, like, a, rows, w_down, tensor(pointer(at[DS], F(0)), (width * scaled,)), b)


@jit
def embed(latent: Any, weight: Any, offset: Any, x: Any) -> Any:
    """X[r] = weight latent[v] + offset for the rows r = v, v + videos, ... of x [rows, width]; weight [width, in]."""
    for r in range(x.shape[0]):
        v = r % latent.shape[0]
        for o in range(x.shape[1]):
            x[r, o] = dot1(latent[v], weight[o]) + offset[o]


@jit
def _lead_mlps(state: Any, x: Any, table: Any, like: Any, mlp: Any, eps: Any, passes: Any) -> Any:
    rows, width = x.shape
    largest = max(width, mlp)
    a, b, c = empty_rows(rows, largest), empty_rows(rows, largest), empty_rows(rows, largest)
    line = np.empty(width, F)
    for n in range(passes * table.shape[0]):
        at = table[n % table.shape[0]]
        norm2 = tensor(pointer(at[NORM2], F(0)), (width,))
        for r in range(rows):
            _norm(x[r], norm2, eps, line)
            spread(line, a[r], like)
        _mlp(state, a, b, c, rows, at, like, (width, mlp))
    end(state)


@parallel
def _share_mlps(state: Any, x: Any, table: Any, like: Any, mlp: Any, eps: Any, passes: Any) -> Any:
    for member in nb.prange(state[THREADS]):
        if member:
            help_products(state, like, member)
        else:
            _lead_mlps(state, x, table, like, mlp, eps, passes)


@jit
def mlp_branches(state: Any, x: Any, table: Any, like: Any, mlp: Any, eps: Any, passes: Any) -> Any:
    """Only the norms and MLPs of all layers on x [rows, width], for timing their share; nothing is returned.

    Passes follow one another within the call, which is no part of an MLP's time.
    """
    begin(state)
    if state[THREADS] > 1:
        _share_mlps(state, x, table, like, mlp, eps, passes)
    else:
        _lead_mlps(state, x, table, like, mlp, eps, passes)


@jit
def _lead(
    state: Any,
    x: Any,
    table: Any,
    formats: Any,
    shape: Any,
    norm: Any,
    angles: Any,
    seen: Any,
    place: Any,
    rules: Any,
    decisions: Any,
    buffers: Any,
) -> Any:
    """`decode_pass` as its leader runs it."""
    rows, width = x.shape
    heads, kv_heads, d, mlp, slots, ring, frame = shape
    slot, _, aligned_at, aligned_to, replay_at, t = place
    like, like_cache = formats
    last_norm, eps = norm
    cos, sin = angles
    on, pairs, max_age, released = rules
    taus, replayed, ages, kept, forced = decisions
    q, _, attended = buffers
    pack, pack_cache, scaled = numbers_a_word(like), numbers_a_word(like_cache), has_scales(like)
    largest = max(width, heads * d, mlp)
    a, b, c = empty_rows(rows, largest), empty_rows(rows, largest), empty_rows(rows, largest)
    q_raw, k_new, line = np.empty((rows, heads, d), F), np.empty(d, F), np.empty(width, F)
    scores, computing = np.empty(rows, F), np.empty(rows, np.int64)
    no_flags = np.zeros((0, 0), np.bool_)
    for i in range(table.shape[0]):
        at = table[i]
        norm1 = tensor(pointer(at[NORM1], F(0)), (width,))
        norm2 = tensor(pointer(at[NORM2], F(0)), (width,))
        w_q = tensor(pointer(at[Q], like), (heads * d, width // pack))
        w_k = tensor(pointer(at[K], like), (kv_heads * d, width // pack))
        w_v = tensor(pointer(at[V], like), (kv_heads * d, width // pack))
        w_o = tensor(pointer(at[OUT], like), (width, heads * d // pack))
        keys = tensor(pointer(at[KEYS], like_cache), (rows, kv_heads, slots, d // pack_cache))
        values = tensor(pointer(at[VALUES], like_cache), (rows, kv_heads, slots, d // pack_cache))
        aligned = tensor(pointer(at[ALIGNED], like_cache), (rows, kv_heads, ring, d // pack_cache))
        for r in range(rows):
            _norm(x[r], norm1, eps, line)
            spread(line, a[r], like)
        multiply(state, like, a, rows, w_q, tensor(pointer(at[QS], F(0)), (heads * d * scaled,)), b)
        for r in range(rows):
            angle = min(r, cos.shape[0] - 1)
            for h in range(heads):
                for j in range(d):
                    q_raw[r, h, j] = b[r, h * d + j]
                _rotate(q_raw[r, h], cos[angle], sin[angle], q[r, h])
        multiply(state, like, a, rows, w_k, tensor(pointer(at[KS], F(0)), (kv_heads * d * scaled,)), b)
        multiply(state, like, a, rows, w_v, tensor(pointer(at[VS], F(0)), (kv_heads * d * scaled,)), c)
        for r in range(rows):
            angle = min(r, cos.shape[0] - 1)
            for h in range(kv_heads):
                _rotate(b[r, h * d : (h + 1) * d], cos[angle], sin[angle], k_new)
                store(k_new, keys[r, h, slot])
                store(k_new, aligned[r, h, aligned_to])
                store(c[r, h * d : (h + 1) * d], values[r, h, slot])
        state[KIND], state[LAYER] = ATTENTION, i
        publish(state, rows * heads)
        _take(0, state, table, formats, shape, seen, place, buffers)
        wait(state)
        for r in range(rows):
            spread(attended[r].reshape(heads * d), a[r], like)
        multiply(state, like, a, rows, w_o, tensor(pointer(at[OS], F(0)), (width * scaled,)), b)
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
            _mlp(state, a, b, c, count, at, like, (width, mlp))
        if on:
            outputs = tensor(pointer(at[OUTPUTS], like_cache), (rows, frame, width // pack_cache))
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
    for r in range(rows):
        _norm(x[r], last_norm, eps, line)
        for k in range(width):
            x[r, k] = line[k]
    end(state)


# numba takes no tuples of tuples into a parallel region, hence the long lists of arguments.
@parallel
def _share(
    state: Any,
    x: Any,
    table: Any,
    formats: Any,
    shape: Any,
    norm: Any,
    angles: Any,
    seen: Any,
    place: Any,
    rules: Any,
    decisions: Any,
    buffers: Any,
) -> Any:
    for member in nb.prange(state[THREADS]):
        if member:
            while idle(state):
                _take(member, state, table, formats, shape, seen, place, buffers)
        else:
            _lead(state, x, table, formats, shape, norm, angles, seen, place, rules, decisions, buffers)


@jit
def decode_pass(
    state: Any,
    x: Any,
    table: Any,
    formats: Any,
    shape: Any,
    norm: Any,
    angles: Any,
    seen: Any,
    place: Any,
    rules: Any,
    decisions: Any,
    buffers: Any,
) -> Any:
    """All blocks and the last norm on one token of every row, in place of x [rows, width] float32.

    state: `team.new_state`. table: addresses [layers, len(COLUMNS)]. formats: a number of the weights' and of the
    caches' type. shape: heads, kv heads, head width, MLP width, and slots of the KV cache, of the aligned keys, of the
    replay cache. norm: weight [width] of the last norm, eps of all. angles: cos, sin [rows or 1, head width].
    seen: mask [rows or 0, slots] and start [rows] as `attend` has them. place: slot of this token, slots to attend
    to, slots of the aligned key and of this token among the aligned keys, slot in the replay cache, index of the
    token. rules: replay on, rows in pairs, most replays in a row (-1: any), TAS as released. decisions: taus
    [layers, rows], OFF where a layer never replays; replayed [layers, rows, tokens], ages [layers, rows, slots], kept
    and forced [layers, rows, tokens] or empty. buffers: `new_buffers`.
    """
    begin(state)
    if state[THREADS] > 1:
        _share(state, x, table, formats, shape, norm, angles, seen, place, rules, decisions, buffers)
    else:
        _lead(state, x, table, formats, shape, norm, angles, seen, place, rules, decisions, buffers)
