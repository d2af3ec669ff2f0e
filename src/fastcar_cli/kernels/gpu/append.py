"""Rotation, append to the KV cache, temporal attention score and the gate of replay, in one kernel.

A pass has a line for every input token of every row: input 0 of all rows, then input 1 of all rows, and so on. A
line's token is read on the device. A cache is full (index i of the padded sequence lies in slot i) or a window (sinks
first, then index i in slot first + i % window, and one frame of keys for the score in a ring of frame + 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

from fastcar_cli.kernels.gpu.follow import early, follow


@triton.jit
def _rotate(a, b, c, s, kind: tl.constexpr):
    """Both halves of a head rotated, rounded as torch rounds: float32 in, float32 out."""
    first = (a * c).to(kind).to(tl.float32) + (-b * s).to(kind).to(tl.float32)
    second = (b * c).to(kind).to(tl.float32) + (a * s).to(kind).to(tl.float32)
    return first.to(kind).to(tl.float32), second.to(kind).to(tl.float32)


@triton.jit(do_not_specialize=["slots", "padded", "frame", "window", "first", "aligned"])
def _append_kernel(
    qkv, query, keys, values, ring, cos, sin, token, thresholds, scores, flags,
    slots, padded, frame, window, first, aligned,
    VIDEOS: tl.constexpr, OF: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr,
    SCORE: tl.constexpr, RELEASED: tl.constexpr, PAIRS: tl.constexpr, HP: tl.constexpr, KP: tl.constexpr,
    DP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One program per input of a video, so that its OF rows decide together: tiles are [OF, heads, half of a head]."""
    follow(EARLY)
    kind = query.dtype.element_ty
    video = tl.program_id(0).to(tl.int64) % VIDEOS
    # The first line of the input token.
    begin = (tl.program_id(0).to(tl.int64) // VIDEOS) * VIDEOS * OF
    t = tl.load(token + begin + video)
    row = video + VIDEOS * tl.arange(0, OF)[:, None, None]
    line = begin + row
    index = padded + t
    slot = index
    if WINDOW:
        slot = first + index % window
    i = tl.arange(0, DP)[None, None, :]
    h = tl.arange(0, HP)[None, :, None]
    g = tl.arange(0, KP)[None, :, None]
    here = (row >= 0) & (h < H) & (i < D // 2)
    of_key = (row >= 0) & (g < KV) & (i < D // 2)
    angle = (t * VIDEOS * OF + row) * D + i
    c = tl.load(cos + angle, mask=i < D // 2, other=0.0).to(tl.float32)
    s = tl.load(sin + angle, mask=i < D // 2, other=0.0).to(tl.float32)
    base = qkv + line * (H + 2 * KV) * D

    at = base + h * D + i
    qa = tl.load(at, mask=here, other=0.0).to(tl.float32)
    qb = tl.load(at + D // 2, mask=here, other=0.0).to(tl.float32)
    ra, rb = _rotate(qa, qb, c, s, kind)
    to = query + (line * H + h) * D + i
    tl.store(to, ra.to(kind), mask=here)
    tl.store(to + D // 2, rb.to(kind), mask=here)

    at = base + (H + g) * D + i
    ka = tl.load(at, mask=of_key, other=0.0).to(tl.float32)
    kb = tl.load(at + D // 2, mask=of_key, other=0.0).to(tl.float32)
    ka, kb = _rotate(ka, kb, c, s, kind)
    to = ((row * KV + g) * slots + slot) * D + i
    tl.store(keys + to, ka.to(kind), mask=of_key)
    tl.store(keys + to + D // 2, kb.to(kind), mask=of_key)
    at = base + (H + KV + g) * D + i
    tl.store(values + to, tl.load(at, mask=of_key, other=0.0), mask=of_key)
    tl.store(values + to + D // 2, tl.load(at + D // 2, mask=of_key, other=0.0), mask=of_key)

    if SCORE:
        # The query heads of a group score against the one key that serves them.
        group = row * KV + h // (H // KV)
        if WINDOW:
            to = ring + ((row * KV + g) * (frame + 1) + index % (frame + 1)) * D + i
            tl.store(to, ka.to(kind), mask=of_key)
            tl.store(to + D // 2, kb.to(kind), mask=of_key)
            before = ring + (group * (frame + 1) + (index + 1) % (frame + 1)) * D + i
        else:
            before = keys + (group * slots + index - frame) * D + i
        # The first frame has one before it only if the prompt ends in one; without it no head is read.
        there = here & (h < tl.where(t + aligned >= frame, H, 0))
        aa = tl.load(before, mask=there, other=0.0).to(tl.float32)
        ab = tl.load(before + D // 2, mask=there, other=0.0).to(tl.float32)
        product = ra * aa + rb * ab
        if RELEASED:
            product = qa * aa + qb * ab
        score = tl.sum(tl.sum(product, 2), 1) / (H * tl.sqrt(D * 1.0))
        gate = score
        if PAIRS:
            gate = tl.zeros_like(score) + tl.sum(score, 0) / OF
        of = begin + video + VIDEOS * tl.arange(0, OF)
        tl.store(scores + of, score)
        tl.store(flags + of, (gate > tl.load(thresholds + of)).to(tl.uint8))


@dataclass(frozen=True)
class Extent:
    """Layout of the caches: tokens of the padded prompts, and of a frame; length (0: none) and first slot of a window;
    number of frame tokens at the end of the prompts.
    """

    padded: int
    frame: int
    window: int = 0
    first: int = 0
    aligned: int = 0


@dataclass(frozen=True)
class Gate:
    """A layer's data for the append kernel, to decide on replay."""

    thresholds: Tensor  # float32 [lines]
    scores: Tensor  # float32 [lines], written
    flags: Tensor  # uint8 [lines], written: 1 if the line replays
    released: bool  # score q before rotation
    pairs: bool  # compare the mean score of a video's two rows


def append(
    qkv: Tensor,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    ring: Tensor,
    cos: Tensor,
    sin: Tensor,
    token: Tensor,
    extent: Extent,
    videos: int,
    gate: Gate | None,
) -> None:
    """Rotate q and k, append k and v to a layer's cache and, with a gate, decide which lines replay.

    qkv [lines, (heads + 2 kv_heads) head_dim] unrotated; query [lines, heads, head_dim] gets the rotated q; keys,
    values [rows, kv_heads, slots, head_dim]; ring [rows, kv_heads, N + 1, head_dim] with a window, else the keys; cos,
    sin [tokens, rows, head_dim]; token int64 [lines]. Unconditional rows follow the conditional ones. With a window a
    call takes one input per row, since another input may read its slot.
    """
    lines, heads, d = query.shape
    rows, kv = keys.shape[:2]
    decided = (qkv, qkv, qkv) if gate is None else (gate.thresholds, gate.scores, gate.flags)
    lengths = (keys.shape[2], extent.padded, extent.frame, extent.window, extent.first, extent.aligned)
    sizes = {"VIDEOS": videos, "OF": rows // videos, "H": heads, "KV": kv, "D": d, "WINDOW": extent.window > 0}
    powers = {"HP": heads, "KP": kv, "DP": d // 2}
    _append_kernel[(lines // rows * videos,)](
        *(qkv, query, keys, values, ring, cos, sin, token, *decided, *lengths),
        **sizes,
        **{name: triton.next_power_of_2(size) for name, size in powers.items()},
        SCORE=gate is not None,
        RELEASED=gate is not None and gate.released,
        PAIRS=gate is not None and gate.pairs,
        num_warps=8,
        **early(qkv),
    )
