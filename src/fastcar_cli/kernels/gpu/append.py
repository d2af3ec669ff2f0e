"""Rotation, append to the KV cache, temporal attention score and the decision on replay, in one kernel.

The token, and with it every place in the caches, is read from the device. A cache is full (slot s
of the padded sequence lies in place s) or a window (sinks first, then slot s in place
sinks + s % window, and one frame of keys for the score in a ring of frame + 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotate(a, b, c, s, kind: tl.constexpr):
    """Both halves of a head rotated, rounded as torch rounds: float32 in, float32 out."""
    first = (a * c).to(kind).to(tl.float32) + (-b * s).to(kind).to(tl.float32)
    second = (b * c).to(kind).to(tl.float32) + (a * s).to(kind).to(tl.float32)
    return first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)


@triton.jit
def _append_row(
    qkv,
    query,
    keys,
    values,
    ring,
    cos,
    sin,
    row,
    t,
    ROWS: tl.constexpr,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    PLACES: tl.constexpr,
    PADDED: tl.constexpr,
    FRAME: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    REPLAY: tl.constexpr,
    RELEASED: tl.constexpr,
    HP: tl.constexpr,
    KP: tl.constexpr,
    DP: tl.constexpr,
):
    """Rotate and append one row; returns its temporal attention score (0 in the first frame)."""
    kind = query.dtype.element_ty
    slot = PADDED + t
    place = slot
    if WINDOW > 0:
        place = SINKS + slot % WINDOW
    i = tl.arange(0, DP)[None, :]
    h = tl.arange(0, HP)[:, None]
    g = tl.arange(0, KP)[:, None]
    here = (h < H) & (i < D // 2)
    kept = (g < KV) & (i < D // 2)
    angle = (t * ROWS + row) * D + i
    c = tl.load(cos + angle, mask=i < D // 2, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=i < D // 2, other=0.0).to(tl.float32)
    base = qkv + row * (H + 2 * KV) * D

    at = base + h * D + i
    qa = tl.load(at, mask=here, other=0.0).to(tl.float32)
    qb = tl.load(at + D // 2, mask=here, other=0.0).to(tl.float32)
    ra, rb = _rotate(qa, qb, c, s, kind)
    to = query + (row * H + h) * D + i
    tl.store(to, ra.to(kind), mask=here)
    tl.store(to + D // 2, rb.to(kind), mask=here)

    at = base + (H + g) * D + i
    ka, kb = _rotate(
        tl.load(at, mask=kept, other=0.0).to(tl.float32),
        tl.load(at + D // 2, mask=kept, other=0.0).to(tl.float32),
        c,
        s,
        kind,
    )
    to = ((row * KV + g) * PLACES + place) * D + i
    tl.store(keys + to, ka.to(kind), mask=kept)
    tl.store(keys + to + D // 2, kb.to(kind), mask=kept)
    at = base + (H + KV + g) * D + i
    tl.store(values + to, tl.load(at, mask=kept, other=0.0), mask=kept)
    tl.store(values + to + D // 2, tl.load(at + D // 2, mask=kept, other=0.0), mask=kept)

    score = 0.0
    if REPLAY:
        # The query heads of a group score against the one key that serves them.
        group = row * KV + h // (H // KV)
        if WINDOW > 0:
            to = ring + ((row * KV + g) * (FRAME + 1) + slot % (FRAME + 1)) * D + i
            tl.store(to, ka.to(kind), mask=kept)
            tl.store(to + D // 2, kb.to(kind), mask=kept)
            before = ring + (group * (FRAME + 1) + (slot + 1) % (FRAME + 1)) * D + i
        else:
            before = keys + (group * PLACES + slot - FRAME) * D + i
        # No frame before the first: no head is read.
        there = (h < tl.where(t >= FRAME, H, 0)) & (i < D // 2)
        aa = tl.load(before, mask=there, other=0.0).to(tl.float32)
        ab = tl.load(before + D // 2, mask=there, other=0.0).to(tl.float32)
        if RELEASED:
            score = tl.sum(tl.sum(qa * aa + qb * ab, 1), 0)
        else:
            score = tl.sum(tl.sum(ra * aa + rb * ab, 1), 0)
        score = score / (H * tl.sqrt(D * 1.0))
    return score


@triton.jit
def _decide(
    score, age, row, t, tau, flags, forced, ages, tas,
    TOKENS: tl.constexpr, FRAME: tl.constexpr, MAX_AGE: tl.constexpr, FORCED: tl.constexpr, KEEP: tl.constexpr,
    own,
):  # fmt: skip
    """Write a row's flag, its age and its score `own`; `score` and `age` are what the gate judges."""
    hit = (score > tl.load(tau)) & (t >= FRAME)
    if FORCED:
        hit = (tl.load(forced + row * TOKENS + t) != 0) & (t >= FRAME) & (tl.load(tau) == tl.load(tau))
    if MAX_AGE > 0:
        hit = hit & (age < MAX_AGE)
        at = ages + row * FRAME + t % FRAME
        tl.store(at, tl.where(hit, tl.load(at) + 1, 0).to(ages.dtype.element_ty))
    tl.store(flags + row * TOKENS + t, hit.to(tl.uint8))
    if KEEP:
        wanted = (t >= FRAME) & (tl.load(tau) == tl.load(tau))
        tl.store(tas + row * TOKENS + t, tl.where(wanted, own, float("nan")))


@triton.jit
def _append_kernel(
    qkv,
    query,
    keys,
    values,
    ring,
    cos,
    sin,
    token,
    tau,
    flags,
    forced,
    ages,
    tas,
    VIDEOS: tl.constexpr,
    OF: tl.constexpr,
    H: tl.constexpr,
    KV: tl.constexpr,
    D: tl.constexpr,
    PLACES: tl.constexpr,
    PADDED: tl.constexpr,
    FRAME: tl.constexpr,
    TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    REPLAY: tl.constexpr,
    RELEASED: tl.constexpr,
    PAIRS: tl.constexpr,
    MAX_AGE: tl.constexpr,
    FORCED: tl.constexpr,
    KEEP: tl.constexpr,
    HP: tl.constexpr,
    KP: tl.constexpr,
    DP: tl.constexpr,
):
    """One video a program, so that its rows can decide together."""
    t = tl.load(token)
    a = tl.program_id(0).to(tl.int64)
    rows: tl.constexpr = VIDEOS * OF
    sa = _append_row(
        qkv, query, keys, values, ring, cos, sin, a, t,
        rows, H, KV, D, PLACES, PADDED, FRAME, WINDOW, SINKS, REPLAY, RELEASED, HP, KP, DP,
    )  # fmt: skip
    ga = sa
    age_a = 0
    if OF == 2:
        b = a + VIDEOS
        sb = _append_row(
            qkv, query, keys, values, ring, cos, sin, b, t,
            rows, H, KV, D, PLACES, PADDED, FRAME, WINDOW, SINKS, REPLAY, RELEASED, HP, KP, DP,
        )  # fmt: skip
        gb = sb
        age_b = 0
    if REPLAY:
        if MAX_AGE > 0:
            age_a = tl.load(ages + a * FRAME + t % FRAME).to(tl.int32)
            if OF == 2:
                age_b = tl.load(ages + b * FRAME + t % FRAME).to(tl.int32)
        if PAIRS:
            ga = (sa + sb) / 2
            gb = ga
            age_a = tl.maximum(age_a, age_b)
            age_b = age_a
        _decide(ga, age_a, a, t, tau, flags, forced, ages, tas, TOKENS, FRAME, MAX_AGE, FORCED, KEEP, sa)
        if OF == 2:
            _decide(gb, age_b, b, t, tau, flags, forced, ages, tas, TOKENS, FRAME, MAX_AGE, FORCED, KEEP, sb)


@dataclass(frozen=True)
class Places:
    """Where tokens lie in the caches: tokens of the padded prompts, and window and sinks (window 0: full)."""

    padded: int
    frame: int
    window: int = 0
    sinks: int = 0


@dataclass(frozen=True)
class Score:
    """What the append kernel needs of a layer to decide on replay.

    tau: float32 [1], NaN for a layer that never replays; flags: uint8 [rows, tokens], written at the
    input token; forced: flags to take instead of deciding, or None; ages: int16 [rows, frame], how
    often in a row each output was replayed, bounded by `max_age` (0: no bound); tas: float32
    [rows, tokens] that keeps the scores, or None. `released` scores q before rotation, `pairs` lets
    the two rows of a video decide on their mean.
    """

    tau: Tensor
    flags: Tensor
    forced: Tensor | None
    ages: Tensor
    tas: Tensor | None
    max_age: int
    released: bool
    pairs: bool


def append(
    qkv: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    ring: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    token: Tensor,
    places: Places,
    videos: int,
    score: Score | None,
) -> None:
    """Rotate q and k, append k and v to a layer's cache and, with `score`, decide which rows replay.

    qkv [rows, (heads + 2 kv_heads) head_dim] unrotated; query [rows, heads, head_dim] takes the
    rotated q; keys, values [rows, kv_heads, places, head_dim]; ring [rows, kv_heads, frame + 1,
    head_dim] with a window, else None; cos, sin [tokens, rows, head_dim] by input token; token int64
    [1]. Rows are the conditional ones of all videos, then the unconditional ones where there are any.
    """
    rows, heads, d = query.shape
    kv, size = keys.shape[1], keys.shape[2]
    flags = qkv if score is None else score.flags
    _append_kernel[(videos,)](
        qkv,
        query,
        keys,
        values,
        keys if ring is None else ring,
        cos,
        sin,
        token,
        qkv if score is None else score.tau,
        flags,
        flags if score is None or score.forced is None else score.forced,
        flags if score is None else score.ages,
        flags if score is None or score.tas is None else score.tas,
        VIDEOS=videos,
        OF=rows // videos,
        H=heads,
        KV=kv,
        D=d,
        PLACES=size,
        PADDED=places.padded,
        FRAME=places.frame,
        TOKENS=flags.shape[1],
        WINDOW=places.window,
        SINKS=places.sinks,
        REPLAY=score is not None,
        RELEASED=score is not None and score.released,
        PAIRS=score is not None and score.pairs,
        MAX_AGE=0 if score is None else score.max_age,
        FORCED=score is not None and score.forced is not None,
        KEEP=score is not None and score.tas is not None,
        HP=triton.next_power_of_2(heads),
        KP=triton.next_power_of_2(kv),
        DP=triton.next_power_of_2(d // 2),
        num_warps=8,
    )
