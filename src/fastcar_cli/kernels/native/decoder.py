"""A decode pass on the CPU: all decoder blocks on one token of every row, for few rows.

A pass at one position is bound by reading weights. So each product streams its weight matrix once, in its stored layout
[out, in]; attention reads the KV cache in place; and the gate decides between attention and MLP, so that the weights of
an MLP that every row replays are not read. Activations are float32 between products. Results don't depend on the number
of threads, and those of a row not on other rows (except that a pair decides together whether it replays).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fastcar_cli.kernels.native.library import kernels, scratch
from fastcar_cli.kernels.native.structs import FORMATS, STRUCTS, Linear, expect, matrix, same_format

MOST_ROWS = 1024
_FLOATS = (torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class BlockWeights:
    """A decoder block: norms float32 [width], the seven maps of attention and MLP."""

    norm1: Tensor
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    norm2: Tensor
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True)
class Slots:
    """Where a token reads and writes the caches.

    slot: where its key and value are written. length: slots below it are attended to. aligned_from: slot of the aligned
    key that the token is scored against. aligned_to: where its own aligned key is written. older: of the older tokens,
    how many are attended to. moved_to: where among them the token goes that lay in `slot`; -1: nowhere.
    """

    slot: int
    length: int
    aligned_from: int
    aligned_to: int
    older: int = 0
    moved_to: int = -1


@dataclass(frozen=True)
class OlderTokens:
    """Keys and values int8 [layers, rows, kv_heads, older slots, head width] of tokens that lie further back.

    Scales are float32 [layers, rows, kv_heads, older slots]. A row is its numbers times its scale, plus the mean
    float32 [layers, rows, kv_heads, head width].
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor
    key_means: Tensor
    value_means: Tensor


def _block_struct(block: BlockWeights, layer: int, width: int) -> Any:
    name = f"layer {layer}: "
    inner, mlp = block.q.outputs, block.up.outputs
    sizes = {
        "q": (inner, width),
        "k": (None, width),
        "v": (block.k.outputs, width),
        "o": (width, inner),
        "gate": (mlp, width),
        "up": (mlp, width),
        "down": (width, mlp),
    }
    struct = STRUCTS.Block()
    for part, size in sizes.items():
        setattr(struct, part, matrix(name + part, getattr(block, part), *size))
    same_format(f"{name}q, k, v", block.q, block.k, block.v)
    same_format(f"{name}gate, up", block.gate, block.up)
    for part in ("norm1", "norm2"):
        setattr(struct, part, expect(name + part, getattr(block, part), (width,), torch.float32))
    return struct


def _decoder(blocks: Sequence[BlockWeights], eps: float, threads: int) -> Any:
    """A `Decoder` with the fields that follow from the weights; the others are 0."""
    if not blocks or threads < 1:
        raise ValueError(f"{len(blocks)} blocks and {threads} threads, expected at least one of each")
    width = blocks[0].norm1.numel()
    layers = (STRUCTS.Block * len(blocks))(*(_block_struct(block, i, width) for i, block in enumerate(blocks)))
    for part in ("q", "k", "up"):
        if any(getattr(layer, part).outputs != getattr(layers[0], part).outputs for layer in layers):
            raise ValueError(f"{part}.weight has other shapes in other layers")
    return STRUCTS.Decoder(layers=len(blocks), width=width, threads=threads, eps=eps, blocks=layers)


class DecoderPass:
    """All blocks and the last norm on one token of every row. Weights and caches are used in place, not copied.

    norm: weight of the last norm, float32 [width]. eps: of all norms.
    keys, values: [layers, rows, kv_heads, slots, head width], float32 or bfloat16.
    aligned: the keys that TAS reads. Its slots may differ, or it may be the same tensor as keys.
    older: tokens that are attended to beside those of keys and values, or None.
    outputs: the replay cache, [layers, rows, N, width] float32 or bfloat16. None: nothing is stored or replayed.
    start: int64 [rows]; slots before it are padding. It must not change.
    released: TAS takes the query before its rotation, as the released code does.
    pairs: rows r and r + rows / 2 decide together, by the mean of their scores.
    Raises ValueError with the name of a tensor that does not fit, RuntimeError where `unavailable` says why.
    """

    def __init__(
        self,
        blocks: Sequence[BlockWeights],
        norm: Tensor,
        eps: float,
        *,
        heads: int,
        kv_heads: int,
        keys: Tensor,
        values: Tensor,
        aligned: Tensor,
        outputs: Tensor | None,
        start: Tensor,
        older: OlderTokens | None = None,
        released: bool = False,
        pairs: bool = False,
        threads: int = 1,
    ) -> None:
        decoder = _decoder(blocks, eps, threads)
        inner, cached = decoder.blocks[0].q.outputs, decoder.blocks[0].k.outputs
        if heads < 1 or kv_heads < 1 or heads % kv_heads or inner % heads or inner // heads * kv_heads != cached:
            raise ValueError(f"{heads} heads and {kv_heads} kv heads don't divide q and k of {inner} and {cached}")
        d, rows = inner // heads, len(start)
        if d % 2:
            raise ValueError(f"heads are {d} wide, expected an even number")
        if not 1 <= rows <= MOST_ROWS or (pairs and rows % 2):
            raise ValueError(f"{rows} rows: expected 1 to {MOST_ROWS}, an even number in pairs")
        slots, aligned_slots, older_slots = keys.shape[3], aligned.shape[3], 0 if older is None else older.keys.shape[3]
        positions, layers = 0 if outputs is None else outputs.shape[2], len(blocks)
        heads_of = (layers, rows, kv_heads)
        caches: dict[str, tuple[Tensor | None, tuple[int, ...], tuple[torch.dtype, ...]]] = {
            "keys": (keys, (*heads_of, slots, d), _FLOATS),
            "values": (values, (*heads_of, slots, d), (keys.dtype,)),
            "aligned": (aligned, (*heads_of, aligned_slots, d), (keys.dtype,)),
            "outputs": (outputs, (layers, rows, positions, decoder.width), _FLOATS),
        }
        if older is not None and older_slots:
            for part in ("key", "value"):
                numbers, scales, means = (getattr(older, f"{part}{kind}") for kind in ("s", "_scales", "_means"))
                caches |= {
                    f"older_{part}s": (numbers, (*heads_of, older_slots, d), (torch.int8,)),
                    f"older_{part}_scales": (scales, (*heads_of, older_slots), (torch.float32,)),
                    f"{part}_means": (means, (*heads_of, d), (torch.float32,)),
                }
        for name, (tensor, shape, dtypes) in caches.items():
            if tensor is not None:
                expect(name, tensor, shape, *dtypes)
                for i in range(layers):
                    setattr(decoder.blocks[i], name, tensor[i].data_ptr())
        for field, value in {
            **{"rows": rows, "heads": heads, "kv_heads": kv_heads, "head_width": d, "slots": slots},
            **{"aligned_slots": aligned_slots, "older_slots": older_slots, "positions": positions},
            **{"pairs": pairs, "released": released, "cache_format": FORMATS[keys.dtype]},
            "output_format": 0 if outputs is None else FORMATS[outputs.dtype],
            "norm": expect("norm", norm, (decoder.width,), torch.float32),
            "start": expect("start", start, (rows,), torch.int64),
        }.items():
            setattr(decoder, field, value)
        self._step = STRUCTS.Step()
        # The tensors that the last pass was given; the same ones need not be looked at again.
        self._scored: Tensor | None = None
        self._scores: Tensor | None = None
        memory = scratch(kernels().decoder_bytes(decoder))
        decoder.scratch = memory.data_ptr()
        # A small pass takes less than a millisecond, so the call itself must do little.
        self._run = partial(kernels().decode, ctypes.byref(decoder), ctypes.byref(self._step))
        self._rows, self._width, self._d, self._positions = rows, decoder.width, d, positions
        self._layers, self._slots, self._aligned_slots, self._older_slots = layers, slots, aligned_slots, older_slots
        # What an address points to must live as long as this object.
        self._held = (decoder, memory, blocks, norm, caches, start)
        self._last_start = int(start.max())
        if int(start.min()) < 0:
            raise ValueError(f"start: {start.tolist()}, expected slots")

    def __call__(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        at: Slots,
        *,
        mask: Tensor | None = None,
        position: int = 0,
        thresholds: Tensor | None = None,
        scored: Tensor | None = None,
        scores: Tensor | None = None,
        replayed: Tensor | None = None,
    ) -> float:
        """Run one token of every row; x [rows, width] float32 becomes its hidden state after the last norm.

        cos, sin: float32 [rows or 1, head width]. mask: bool [rows, slots + older slots], the slots to attend to;
        None: all from `start` on. position: slot in the replay cache. scored: bool [layers], the layers where TAS is
        computed and gates the MLP; None: all. Other layers are dense. scores float32 and replayed bool [layers, rows]
        are written in the scored layers; both or neither are given. thresholds: float32 [layers, rows]; a row replays
        where its score (in pairs the mean) is greater: never with +inf, with -inf unless the score is NaN. None:
        nothing replays. A replayed MLP output is added from the replay cache, a computed one is stored there. Returns
        the seconds spent in MLP branches.
        """
        step, rows, slots, aligned_slots = self._step, self._rows, self._slots, self._aligned_slots
        older_slots = self._older_slots
        if not (
            0 <= at.slot < slots
            and self._last_start < at.length <= slots
            and 0 <= at.aligned_from < aligned_slots
            and 0 <= at.aligned_to < aligned_slots
            and 0 <= at.older <= older_slots
            and -1 <= at.moved_to < older_slots
        ):
            raise ValueError(
                f"{at} lies outside of {slots} slots from {self._last_start} on, {aligned_slots} aligned or "
                f"{older_slots} older ones"
            )
        if self._positions and not 0 <= position < self._positions:
            raise ValueError(f"position is {position}, expected 0 to {self._positions - 1}")
        if (scores is None) != (replayed is None):
            raise ValueError("scores and replayed: both or neither")
        if thresholds is not None and (scores is None or not self._positions):
            raise ValueError("thresholds: replay needs outputs, scores and replayed")
        angles, per_layer = (len(cos), self._d), (self._layers, rows)
        if angles[0] not in (1, rows):
            raise ValueError(f"cos has {len(cos)} rows, expected 1 or {rows}")
        step.x = expect("x", x, (rows, self._width), torch.float32)
        step.cos, step.sin = expect("cos", cos, angles, torch.float32), expect("sin", sin, angles, torch.float32)
        step.angle_rows, step.position = angles[0], position
        step.slot, step.length, step.aligned_from, step.aligned_to = at.slot, at.length, at.aligned_from, at.aligned_to
        step.older, step.moved_to = at.older, at.moved_to
        step.mask = None if mask is None else expect("mask", mask, (rows, slots + older_slots), torch.bool)
        step.thresholds = None if thresholds is None else expect("thresholds", thresholds, per_layer, torch.float32)
        if scored is not self._scored or scores is not self._scores:
            flags = None if scored is None else expect("scored", scored, per_layer[:1], torch.bool)
            step.scores = None if scores is None else expect("scores", scores, per_layer, torch.float32)
            step.scored = flags
            self._scored, self._scores = scored, scores
        step.replayed = None if replayed is None else expect("replayed", replayed, per_layer, torch.bool)
        self._run()
        return float(step.mlp_ns) * 1e-9


class MLPs:
    """Only the norms and MLPs of all layers, to time their share of a pass."""

    def __init__(self, blocks: Sequence[BlockWeights], eps: float, threads: int = 1) -> None:
        self._kernels, self._decoder = kernels(), _decoder(blocks, eps, threads)
        # The smallest attention: it is not run, so it needs no scratch memory.
        self._decoder.heads = self._decoder.kv_heads = self._decoder.head_width = 1
        self._blocks = blocks
        self._scratch: Tensor | None = None

    def __call__(self, x: Tensor, passes: int = 1) -> Tensor:
        """Run each layer on the same x, float32 [rows, width]; returns what the last layer adds."""
        d, y = self._decoder, torch.empty_like(x)
        at = expect("x", x, (len(x), d.width), torch.float32)
        if self._scratch is None or d.rows != len(x):
            d.rows = len(x)
            self._scratch = scratch(self._kernels.decoder_bytes(d))
            d.scratch = self._scratch.data_ptr()
        self._kernels.mlps(ctypes.byref(d), at, y.data_ptr(), passes)
        return y
