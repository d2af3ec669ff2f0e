"""A decode pass on the CPU: all decoder blocks on one or more tokens of every row, for few rows.

A product streams its weight matrix once; attention reads the KV cache in place; the gate decides between attention and
MLP, so that the weights of an MLP that every row replays are not read. Activations are float32 between products.
Results don't depend on the number of threads, and a row's results not on other rows (except in pairs).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from fastcar_cli.kernels.native.library import kernels, scratch
from fastcar_cli.kernels.native.structs import BY_DTYPE, MOST_ROWS, STRUCTS, Linear, expect, fill, same_format

_FLOATS = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class BlockWeights:
    """A decoder block: norms float32 [width], the seven maps of attention and MLP; norms of query and key heads
    float32 [head width], or None.

    For cross-attention: its norm, its query and output maps, the norm of its query heads, and what it reads:
    memory_keys, memory_values [rows, kv_heads, words, head width], normed, in the dtype of the KV cache.
    """

    norm1: Tensor
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    norm2: Tensor
    gate: Linear
    up: Linear
    down: Linear
    q_norm: Tensor | None = None
    k_norm: Tensor | None = None
    cross_norm: Tensor | None = None
    cross_q: Linear | None = None
    cross_o: Linear | None = None
    cross_q_norm: Tensor | None = None
    memory_keys: Tensor | None = None
    memory_values: Tensor | None = None


def _decoder(blocks: Sequence[BlockWeights], heads: int, kv_heads: int, rows: int, dtype: torch.dtype) -> Any:
    """A `Decoder` with the fields that follow from the weights; dtype: of the KV cache."""
    first = blocks[0]
    width, inner, cached, mlp = first.norm1.numel(), first.q.outputs, first.k.outputs, first.up.outputs
    if heads < 1 or kv_heads < 1 or heads % kv_heads or inner % heads or inner // heads * kv_heads != cached:
        raise ValueError(f"outputs of q and k ({inner}, {cached}) do not fit {heads} heads and {kv_heads} kv heads")
    d = inner // heads
    if d % 2:
        raise ValueError(f"heads are {d} wide, expected an even number")
    words = 0 if first.memory_keys is None else first.memory_keys.shape[2]
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("norm1", "norm2", "cross_norm"), (width,)),
        **dict.fromkeys(("q_norm", "k_norm", "cross_q_norm"), (d,)),
        **dict.fromkeys(("q", "cross_q"), (inner, width)),
        **dict.fromkeys(("k", "v"), (cached, width)),
        **dict.fromkeys(("o", "cross_o"), (width, inner)),
        **dict.fromkeys(("gate", "up"), (mlp, width)),
        "down": (width, mlp),
    }
    memory = dict.fromkeys(("memory_keys", "memory_values"), (rows, kv_heads, words, d))
    structs = (STRUCTS.Block * len(blocks))()
    for i, (block, struct) in enumerate(zip(blocks, structs, strict=True)):
        name = f"layer {i}: "
        fill(struct, name, block, shapes)
        fill(struct, name, block, memory, dtype)
        same_format(f"{name}q, k, v", block.q, block.k, block.v)
        same_format(f"{name}gate, up", block.gate, block.up)
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_width": d, "words": words, "rows": rows, "width": width}
    return STRUCTS.Decoder(layers=len(blocks), blocks=structs, **sizes)


def _caches(decoder: Any, caches: Mapping[str, Tensor | None]) -> None:
    """Fill in the caches of all layers, by the names of their fields in `Block`."""
    keys, aligned, outputs, older = (caches.get(name) for name in ("keys", "aligned", "outputs", "older_keys"))
    assert keys is not None and aligned is not None
    rows, d, of_heads = decoder.rows, decoder.head_width, (decoder.layers, decoder.rows, decoder.kv_heads)
    decoder.slots, decoder.aligned_slots = slots, aligned_slots = keys.shape[3], aligned.shape[3]
    decoder.older_slots = older_slots = 0 if older is None else older.shape[3]
    decoder.positions = 0 if outputs is None else outputs.shape[2]
    shapes: dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]] = {
        "keys": ((*of_heads, slots, d), _FLOATS),
        "values": ((*of_heads, slots, d), (keys.dtype,)),
        "aligned": ((*of_heads, aligned_slots, d), (keys.dtype,)),
        "outputs": ((decoder.layers, rows, decoder.positions, decoder.width), _FLOATS),
        **dict.fromkeys(("older_keys", "older_values"), ((*of_heads, older_slots, d), (torch.int8,))),
        **dict.fromkeys(("older_key_scales", "older_value_scales"), ((*of_heads, older_slots), (torch.float32,))),
        **dict.fromkeys(("key_means", "value_means"), ((*of_heads, d), (torch.float32,))),
    }
    for name, cache in caches.items():
        if cache is not None and cache.numel():
            shape, dtypes = shapes[name]
            expect(name, cache, shape, *dtypes)
            for i, part in enumerate(cache):
                setattr(decoder.blocks[i], name, part.data_ptr())
    decoder.cache_format = BY_DTYPE[keys.dtype].number
    decoder.output_format = 0 if outputs is None else BY_DTYPE[outputs.dtype].number


class DecoderPass:
    """All blocks and the last norm on one or more tokens of every row. Weights and caches are used in place.

    norm: weight of the last norm, float32 [width]; None: hidden states are not normed. eps: of all norms.
    caches, by name:
    - keys, values [layers, rows, kv_heads, slots, head width], float32 or bfloat16, and aligned, the keys that TAS
      reads: it may have another number of slots, or be the same tensor as keys;
    - outputs: the replay cache, [layers, rows, N, width] float32 or bfloat16. None: nothing is stored or replayed;
    - older tokens to attend to: older_keys, older_values int8 [layers, rows, kv_heads, older slots, head width],
      older_key_scales, older_value_scales float32 without the head width, and the means added to each, key_means,
      value_means float32 [layers, rows, kv_heads, head width].
    table: int64 [tokens, 6], for each token: the slot of its key and value; the end of the slots that it attends to;
    the slot of its aligned token's key; the slot of its own key in `aligned`; the number of older tokens that it
    attends to; the older slot for the token that was in its slot (-1: none).
    cos, sin: float32 [tokens, rows or 1, head width]. start: int64 [rows]; slots before it are padding.
    most: maximum tokens per row and pass. released: TAS takes the query before its rotation, as the released
    code does. pairs: rows r and r + rows / 2 decide together, by the mean of their scores.
    Raises ValueError with the name of a tensor that does not fit, RuntimeError if the kernels are unavailable.
    """

    def __init__(
        self,
        blocks: Sequence[BlockWeights],
        norm: Tensor | None,
        eps: float,
        *,
        heads: int,
        kv_heads: int,
        table: Tensor,
        cos: Tensor,
        sin: Tensor,
        start: Tensor,
        most: int = 1,
        released: bool = False,
        pairs: bool = False,
        threads: int = 1,
        **caches: Tensor | None,
    ) -> None:
        if not blocks or threads < 1:
            raise ValueError(f"{len(blocks)} blocks and {threads} threads: both must be at least 1")
        rows, tokens = len(start), len(table)
        decoder = _decoder(blocks, heads, kv_heads, rows, cast(Tensor, caches["keys"]).dtype)
        if most < 1 or not 1 <= rows * most <= MOST_ROWS or (pairs and rows % 2):
            raise ValueError(f"{rows} rows x {most} tokens, allowed: 1 to {MOST_ROWS}; for pairs an even row count")
        _caches(decoder, caches)
        slots, aligned_slots, older_slots = decoder.slots, decoder.aligned_slots, decoder.older_slots
        angles = (tokens, cos.shape[1], decoder.head_width)
        if angles[1] not in (1, rows):
            raise ValueError(f"cos has {angles[1]} rows, expected 1 or {rows}")
        decoder.most, decoder.threads, decoder.eps, decoder.angle_rows = most, threads, eps, angles[1]
        decoder.pairs, decoder.released = pairs, released
        decoder.norm = None if norm is None else expect("norm", norm, (decoder.width,), torch.float32)
        decoder.start = expect("start", start, (rows,), torch.int64)
        decoder.table = expect("table", table, (tokens, 6), torch.int64)
        decoder.cos, decoder.sin = (expect(name, x, angles, torch.float32) for name, x in (("cos", cos), ("sin", sin)))
        least = torch.tensor([0, int(start.max()) + 1, 0, 0, 0, -1])
        end = torch.tensor([slots - 1, slots, aligned_slots - 1, aligned_slots - 1, older_slots, older_slots - 1])
        outside = ((table < least) | (table > end)).any(1).nonzero()
        if int(start.min()) < 0 or len(outside):
            token = int(outside[0]) if len(outside) else 0
            raise ValueError(
                f"start {start.tolist()} or token {token} of the table, {table[token].tolist()}, lies outside of "
                f"{slots} slots, {aligned_slots} aligned and {older_slots} older ones"
            )
        self._tokens: Any = (ctypes.c_int64 * rows)()
        self._step = STRUCTS.Step(tokens=ctypes.addressof(self._tokens))
        memory = scratch(kernels().decoder_bytes(decoder))
        decoder.scratch = memory.data_ptr()
        # A small pass takes less than a millisecond, so the call itself must do little.
        self._run = partial(kernels().decode, ctypes.byref(decoder), ctypes.byref(self._step))
        self._rows, self._width, self._layers, self._most, self._end = rows, decoder.width, len(blocks), most, tokens
        self._slots, self._replays = slots + older_slots, caches.get("outputs") is not None
        # Tensors whose addresses are used must live as long as this object.
        self._held = (decoder, memory, blocks, norm, caches, start, table, cos, sin)

    def __call__(
        self,
        x: Tensor,
        tokens: list[int],
        *,
        places: Tensor | None = None,
        mask: Tensor | None = None,
        thresholds: Tensor | None = None,
        scored: Tensor | None = None,
        scores: Tensor | None = None,
        replayed: Tensor | None = None,
        keys_only: bool = False,
    ) -> float:
        """Run as many tokens of every row as x has; x [rows, count, width] float32 becomes their hidden states.

        tokens: the first token of each row. Inputs are the rows' tokens, one row after another.
        places: float32 [inputs, width], added to the input of every block; None: nothing. mask: bool [inputs,
        slots + older slots], the slots to attend to; None: all from `start` on. scored: bool [layers], the layers where
        TAS is computed and gates the MLP; None: all. scores float32 and replayed bool [layers, inputs] are
        outputs; give both or neither. thresholds: float32 [layers, inputs]; an input replays if its score (in pairs
        the mean) is greater. None: nothing replays. keys_only: compute keys and values of a single block and leave x
        as it is. Returns the seconds spent in MLP branches.
        """
        step, count, most, end = self._step, x.shape[1], self._most, self._end
        if not (min(tokens) >= 0 and max(tokens) + count <= end and 1 <= count <= most):
            raise ValueError(f"{count} tokens from {tokens} on: a pass takes 1 to {most} per row, from 0 to {end - 1}")
        if (scores is None) != (replayed is None):
            raise ValueError("scores and replayed: give both or neither")
        if thresholds is not None and (scores is None or not self._replays):
            raise ValueError("thresholds needs outputs, scores and replayed")
        if keys_only and self._layers > 1:
            raise ValueError(f"keys_only: the pass has {self._layers} blocks, expected one")
        inputs = self._rows * count
        per_layer = (self._layers, inputs)
        self._tokens[:] = tokens
        step.count, step.keys_only = count, keys_only
        step.x = expect("x", x, (self._rows, count, self._width), torch.float32)
        step.places = None if places is None else expect("places", places, (inputs, self._width), torch.float32)
        step.mask = None if mask is None else expect("mask", mask, (inputs, self._slots), torch.bool)
        step.thresholds = None if thresholds is None else expect("thresholds", thresholds, per_layer, torch.float32)
        step.scored = None if scored is None else expect("scored", scored, per_layer[:1], torch.bool)
        step.scores = None if scores is None else expect("scores", scores, per_layer, torch.float32)
        step.replayed = None if replayed is None else expect("replayed", replayed, per_layer, torch.bool)
        self._run()
        return float(step.mlp_ns) * 1e-9
