"""Attention of one query a head and input token over a cache whose length is counted on the device.

The cache is read in chunks, each by its own program, whose softmax sums are put together in a fixed
order; chunks past the last token read nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastcar_cli.kernels.gpu.append import Layout

CHUNK = 128
"""Slots of the cache that one program reads."""


@triton.jit(do_not_specialize=["slots", "padded", "window", "ring", "chunks"])
def _attend_kernel(
    query, keys, values, pad, sinks, token, sums, peaks, weights,
    slots, padded, window, ring, chunks,
    ROWS: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """One chunk of slots for one head of one line: softmax sum, its peak and its weight, float32.

    A chunk past the last token has weight 0 and reads no keys. `ring` is the first slot behind the sinks.
    """
    head = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    line = head // H
    row = line % ROWS
    group = row * KV + (head % H) // (H // KV)
    index = padded + tl.load(token + line).to(tl.int32)
    first = tl.load(pad + row).to(tl.int32)
    kept = tl.load(sinks + row).to(tl.int32)
    end = index + 1
    if WINDOW:
        end = slots
    end = tl.minimum(end, (chunk + 1) * CHUNK)
    i = tl.arange(0, DP)
    q = tl.load(query + head * D + i, mask=i < D, other=0.0).to(tl.float32) / tl.sqrt(D * 1.0)
    peak = float("-inf")
    weight = 0.0
    total = tl.zeros((DP,), tl.float32)
    for start in tl.range(0, CHUNK, BLOCK):
        slot = chunk * CHUNK + start + tl.arange(0, BLOCK)
        if WINDOW:
            # The last index so far that lies in this slot of the ring; sinks are not counted again.
            held = index - (index - (slot - ring) + window) % window
            seen = (slot < end) & ((slot < kept) | ((slot >= ring) & (held >= first + kept)))
        else:
            seen = (slot < end) & (slot >= first)
        at = (group * slots + slot)[:, None] * D + i[None, :]
        inside = seen[:, None] & (i[None, :] < D)
        k = tl.load(keys + at, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(values + at, mask=inside, other=0.0).to(tl.float32)
        score = tl.where(seen, tl.sum(k * q[None, :], 1), float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 0))
        # Nothing seen yet: any finite number will do, all weights are zero.
        level = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp(score - level)
        fade = tl.exp(peak - level)
        weight = weight * fade + tl.sum(p, 0)
        total = total * fade + tl.sum(p[:, None] * v, 0)
        peak = higher
    at = head * chunks + chunk
    tl.store(sums + at * D + i, total, mask=i < D)
    tl.store(peaks + at, peak)
    tl.store(weights + at, weight)


@triton.jit(do_not_specialize=["chunks"])
def _combine_kernel(sums, peaks, weights, out, chunks, D: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr):
    """All chunks of one head of one line, in their order."""
    head = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CP)
    i = tl.arange(0, DP)
    at = head * chunks + c
    peak = tl.load(peaks + at, mask=c < chunks, other=float("-inf"))
    share = tl.exp(peak - tl.max(peak, 0))
    weight = tl.sum(share * tl.load(weights + at, mask=c < chunks, other=0.0), 0)
    inside = (c[:, None] < chunks) & (i[None, :] < D)
    part = tl.load(sums + at[:, None] * D + i[None, :], mask=inside, other=0.0)
    total = tl.sum(share[:, None] * part, 0) / weight
    tl.store(out + head * D + i, total.to(out.dtype.element_ty), mask=i < D)


def chunks_of(slots: int, chunk: int = CHUNK) -> int:
    """Chunks that `attend` divides a cache into."""
    return int(triton.cdiv(slots, chunk))


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    pad: Tensor,
    sinks: Tensor,
    token: Tensor,
    layout: Layout,
    scratch: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    *,
    chunk: int = CHUNK,
    block: int = 64,
) -> Tensor:
    """Attention of query [lines, heads, head_dim] over the cache up to the token of each line, into out [lines, heads
    head_dim].

    token int64 [lines]; pad, sinks int64 [rows] count the padding before each prompt and its sinks. Only slots that
    hold a token so far are read. scratch: float32 [lines, heads, chunks, head_dim] and twice [lines, heads, chunks].
    """
    lines, heads, d = query.shape
    rows, kv, slots = keys.shape[:3]
    chunks = chunks_of(slots, chunk)
    wide = triton.next_power_of_2(d)
    sizes = {"ROWS": rows, "H": heads, "KV": kv, "D": d, "DP": wide, "CHUNK": chunk, "BLOCK": block}
    _attend_kernel[(lines * heads, chunks)](
        *(query, keys, values, pad, sinks, token, *scratch),
        *(slots, layout.padded, layout.window, layout.first, chunks),
        **sizes,
        WINDOW=layout.window > 0,
        num_warps=4,
    )
    _combine_kernel[(lines * heads,)](
        *scratch, out, chunks, D=d, CP=triton.next_power_of_2(chunks), DP=wide, num_warps=4
    )
    return out
