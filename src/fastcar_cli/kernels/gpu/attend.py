"""Attention over a cache whose length is counted on the device, and among the few depths of one position.

The cache is read in chunks, each by its own program, once for all input tokens and query heads that attend to it.
Softmax sums of chunks are combined in a fixed order; chunks past the last token read nothing.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from fastcar_cli.kernels.gpu import upcast
from fastcar_cli.kernels.gpu.append import Extent
from fastcar_cli.kernels.gpu.follow import early, follow

CHUNK = 128  # slots of the cache that one program reads


@triton.jit(do_not_specialize=["slots", "padded", "window", "ring", "chunks", "lines"])
def _attend_kernel(
    query, keys, values, pad, sinks, token, sums, peaks, weights,
    slots, padded, window, ring, chunks, lines,
    ROWS: tl.constexpr, H: tl.constexpr, KV: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, DP: tl.constexpr, QP: tl.constexpr, UPCAST: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """One chunk of slots of one KV head of one row, for a tile of its queries: those of every input token and every
    query head of the group. Writes softmax sums, their peaks and their weights, float32.

    A chunk past the last token has weight 0 and reads no keys. `ring` is the first slot after the sinks.
    """
    follow(EARLY)
    group = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    row = group // KV
    served: tl.constexpr = H // KV
    j = tl.program_id(2) * QP + tl.arange(0, QP)
    line = j // served * ROWS + row
    there = line < lines
    head = line * H + group % KV * served + j % served
    index = padded + tl.load(token + line, mask=there, other=-1).to(tl.int32)
    first = tl.load(pad + row).to(tl.int32)
    sunk = tl.load(sinks + row).to(tl.int32)
    end = slots if WINDOW else tl.max(index, 0) + 1
    end = tl.minimum(end, (chunk + 1) * CHUNK)
    i = tl.arange(0, DP)
    kind = tl.float32 if UPCAST else query.dtype.element_ty
    there_i = there[:, None] & (i[None, :] < D)
    q = tl.load(query + head[:, None] * D + i[None, :], mask=there_i, other=0.0).to(kind)
    peak = tl.full((QP,), float("-inf"), tl.float32)
    weight = tl.zeros((QP,), tl.float32)
    total = tl.zeros((QP, DP), tl.float32)
    for start in tl.range(chunk * CHUNK, end, BLOCK):
        slot = start + tl.arange(0, BLOCK)
        inside = slot < end
        if WINDOW:
            # The last index so far that lies in this slot of the ring; sinks are not counted again.
            held = index[:, None] - (index[:, None] - (slot[None, :] - ring) + window) % window
            in_ring = (slot[None, :] >= ring) & (held >= first + sunk)
            seen = inside[None, :] & (in_ring | (slot[None, :] < sunk))
            inside = tl.max(seen.to(tl.int32), 0) > 0
        else:
            inside = inside & (slot >= first)
            seen = inside[None, :] & (slot[None, :] <= index[:, None])
        at = (group * slots + slot) * D
        k = tl.load(keys + at[None, :] + i[:, None], mask=inside[None, :] & (i[:, None] < D), other=0.0).to(kind)
        v = tl.load(values + at[:, None] + i[None, :], mask=inside[:, None] & (i[None, :] < D), other=0.0).to(kind)
        score = tl.dot(q, k, input_precision="ieee") / tl.sqrt(D * 1.0)
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1))
        # Nothing seen yet: any finite number will do, all weights are zero.
        level = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp(score - level[:, None])
        fade = tl.exp(peak - level)
        weight = weight * fade + tl.sum(p, 1)
        total = tl.dot(p.to(kind), v, total * fade[:, None], input_precision="ieee")
        peak = higher
    at = head * chunks + chunk
    tl.store(sums + at[:, None] * D + i[None, :], total, mask=there_i)
    tl.store(peaks + at, peak, mask=there)
    tl.store(weights + at, weight, mask=there)


@triton.jit(do_not_specialize=["chunks"])
def _combine_kernel(
    sums, peaks, weights, out, chunks, D: tl.constexpr, CP: tl.constexpr, DP: tl.constexpr, EARLY: tl.constexpr
):
    """Combine all chunks of one head of one line, in their order."""
    follow(EARLY)
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
    """Number of chunks that `attend` divides a cache into."""
    return int(triton.cdiv(slots, chunk))


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    pad: Tensor,
    sinks: Tensor,
    token: Tensor,
    extent: Extent,
    scratch: tuple[Tensor, Tensor, Tensor],
    out: Tensor,
    *,
    chunk: int = CHUNK,
    block: int | None = None,
) -> Tensor:
    """Attention of query [lines, heads, head_dim] over the cache up to the token of each line, into out [lines, heads
    head_dim].

    token int64 [lines]; pad, sinks int64 [rows] count the padding before each prompt and its sinks. Only slots that
    hold a token so far are read. scratch: float32 [lines, heads, chunks, head_dim] and twice [lines, heads, chunks].
    """
    lines, heads, d = query.shape
    rows, kv, slots = keys.shape[:3]
    chunks, wide = chunks_of(slots, chunk), triton.next_power_of_2(d)
    # Sides of tile products have at least the size that the hardware requires.
    queries = lines // rows * (heads // kv)
    padded = min(64, max(16, triton.next_power_of_2(queries)))
    sizes = {"ROWS": rows, "H": heads, "KV": kv, "D": d, "DP": max(16, wide), "QP": padded}
    _attend_kernel[(rows * kv, chunks, triton.cdiv(queries, padded))](
        *(query, keys, values, pad, sinks, token, *scratch),
        *(slots, extent.padded, extent.window, extent.first, chunks, lines),
        **sizes,
        WINDOW=extent.window > 0,
        CHUNK=chunk,
        # In float32 no matrix unit helps, and larger tiles do not fit the registers.
        BLOCK=block or (16 if query.dtype.itemsize == 4 else 64),
        UPCAST=upcast(query),
        num_warps=4,
        **early(query),
    )
    _combine_kernel[(lines * heads,)](
        *scratch, out, chunks, D=d, CP=triton.next_power_of_2(chunks), DP=wide, num_warps=4, **early(query)
    )
    return out


@triton.jit
def _depth_kernel(
    qkv, out, ROWS: tl.constexpr, H: tl.constexpr, D: tl.constexpr, SEEN: tl.constexpr, SP: tl.constexpr,
    DP: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """One head of one row: the query of the last depth over all depths so far."""
    follow(EARLY)
    row = tl.program_id(0) // H
    head = tl.program_id(0) % H
    i = tl.arange(0, DP)
    j = tl.arange(0, SP)
    one = 3 * H * D
    q = tl.load(qkv + ((SEEN - 1) * ROWS + row) * one + head * D + i, mask=i < D, other=0.0).to(tl.float32)
    at = qkv + (j[:, None] * ROWS + row) * one + (H + head) * D + i[None, :]
    inside = (j[:, None] < SEEN) & (i[None, :] < D)
    k = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    v = tl.load(at + H * D, mask=inside, other=0.0).to(tl.float32)
    score = tl.where(j < SEEN, tl.sum(k * q[None, :], 1) / tl.sqrt(D * 1.0), float("-inf"))
    p = tl.exp(score - tl.max(score, 0))
    total = tl.sum(p[:, None] * v, 0) / tl.sum(p, 0)
    tl.store(out + (row * H + head) * D + i, total.to(out.dtype.element_ty), mask=i < D)


def attend_depths(qkv: Tensor, heads: int, seen: int, out: Tensor) -> Tensor:
    """Causal attention of depth `seen` - 1 over depths 0 .. seen - 1, into out [rows, width]; returns out. qkv [depth,
    rows, 3 width] holds q, k and v side by side, heads contiguous.
    """
    rows, width = out.shape
    d = width // heads
    sizes = {"ROWS": rows, "H": heads, "D": d, "SEEN": seen}
    powers = {"SP": triton.next_power_of_2(seen), "DP": triton.next_power_of_2(d)}
    _depth_kernel[(rows * heads,)](qkv, out, **sizes, **powers, num_warps=1, **early(qkv))
    return out
