"""Keys and values of the decoder, allocated once, for all tokens or for a window of them.

A token has an index in the padded sequence (prompts are left-padded to one length, so in one pass
every row has the same) and lies in a slot of memory. Without a window the slot is the index. With
one, StreamingLLM's pattern is kept: the first `sinks` tokens of each row's own prompt lie in the
first slots, the last `window` tokens in a ring behind them, and one more ring keeps the keys of a
frame for TAS, so that memory does not grow with the video. Keys are stored after rotation.

Quantised keys and values are integers with one float scale per head and token (absmax / 127 or / 2047).
A 12-bit row is d bytes of high 8 bits, then d / 2 bytes of low nibbles: byte k holds element k in its low
nibble and d / 2 + k in its high one. The keys that TAS reads are not quantised: they are kept in that ring,
as a decision may hang on their last digits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_cli.kernels.native import Slots
from fastcar_cli.models.decoder import DecoderSpec


def prompt_mask(lengths: Tensor, padded: int, window: int | None, sinks: int) -> Tensor:
    """Who may attend to whom in the prefill, bool [rows, 1, padded, padded].

    Causal, not to padding; with a window only to the last `window` tokens (the query included) and
    the row's first `sinks`. Padding attends to itself so that no row of the softmax is empty.
    """
    i = torch.arange(padded, device=lengths.device)
    pad = (padded - lengths)[:, None, None]
    query, key = i[None, :, None], i[None, None, :]
    allowed = (key <= query) & (key >= pad)
    if window is not None:
        allowed &= (query - key < window) | (key - pad < sinks)
    return (allowed | (query == key))[:, None]


KV_BITS: dict[str, int | None] = {"auto": None, "int8": 8, "int12": 12}
"""Bits of a number of keys and values by the name that a run asks for; None: they are as the model."""


def packed(x: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Floats [..., d] in 8 (int8 [..., d]) or 12 bits (uint8 [..., 3 d / 2]) and their scales float32 [...].

    NaN and infinity are in the scale.
    """
    scale = x.float().abs().amax(-1) / (2 ** (bits - 1) - 1)
    numbers = (x / scale.clamp_min(1e-30)[..., None]).round()
    if bits == 8:
        return numbers.to(torch.int8), scale
    whole = numbers.to(torch.int16)
    first, second = (whole & 15).to(torch.uint8).chunk(2, -1)
    return torch.cat([(whole >> 4).to(torch.int8).view(torch.uint8), first | second << 4], -1), scale


def unpacked(stored: Tensor) -> Tensor:
    """The integers [..., d] of `packed`, int8 or int16."""
    if stored.dtype == torch.int8:
        return stored
    half = stored.shape[-1] // 3
    upper, lower = stored.split([2 * half, half], -1)
    return (upper.view(torch.int8).to(torch.int16) << 4) | torch.cat([lower & 15, lower >> 4], -1)


class KVCache:
    """Keys and values of a batch.

    Attributes:
        k, v: [layers, rows, kv_heads, slots, head_dim], in few bits as `packed` lays out the last.
        k_scale, v_scale: of keys and values in few bits, float32 [layers, rows, kv_heads, slots]; else None.
        aligned: where keys of aligned tokens are read: k, or with a window or in few bits the ring [layers, rows,
            kv_heads, N + 1, head_dim], in which index i lies in slot i % (N + 1).
        pad: padding before each prompt, int64 [rows].
        sinks: sinks of each row, int64 [rows]: as asked for, at most the tokens of its own prompt.
        first_ring_slot: slots set apart for sinks.

    """

    def __init__(
        self,
        spec: DecoderSpec,
        lengths: Tensor,
        padded: int,
        tokens: int,
        frame: int,
        dtype: torch.dtype,
        window: int | None = None,
        sinks: int = 0,
        bits: int | None = None,
    ) -> None:
        rows, device = len(lengths), lengths.device
        self.window, self.frame, self.padded, self._bits = window, frame, padded, bits
        self.pad = padded - lengths
        self.sinks = lengths.clamp(max=sinks if window else 0)
        self.first_ring_slot = int(self.sinks.max())
        slots = padded + tokens if window is None else self.first_ring_slot + window
        shape = (2, spec.layers, rows, spec.kv_heads, slots)
        kept, width = dtype, spec.head_dim
        self.k_scale: Tensor | None = None
        self.v_scale: Tensor | None = None
        if bits is not None:
            kept, width = torch.int8 if bits == 8 else torch.uint8, spec.head_dim * bits // 8
            self.k_scale, self.v_scale = torch.zeros(shape, device=device)
        self.k, self.v = torch.zeros(*shape, width, dtype=kept, device=device)
        self.aligned = self.k
        if window is not None or bits is not None:
            ring = (spec.layers, rows, spec.kv_heads, frame + 1, spec.head_dim)
            self.aligned = torch.zeros(ring, dtype=dtype, device=device)
        self.index = padded
        """Index of the token that is decoded next."""
        self._padding = bool(self.pad.any())
        tensors = (self.k, self.v, self.k_scale, self.v_scale, None if self.aligned is self.k else self.aligned)
        self.nbytes = sum(tensor.nbytes for tensor in tensors if tensor is not None)
        """Bytes allocated."""

    def _put(self, layer: int, slots: int | slice | Tensor, k: Tensor, v: Tensor) -> None:
        """Store keys and values, [rows, kv_heads, slots if there are several, head_dim]."""
        for cache, scales, new in ((self.k, self.k_scale, k), (self.v, self.v_scale, v)):
            if scales is None or self._bits is None:
                cache[layer][:, :, slots] = new
            else:
                cache[layer][:, :, slots], scales[layer][:, :, slots] = packed(new, self._bits)

    def _get(self, cache: Tensor, scales: Tensor | None, layer: int, end: int) -> Tensor:
        """What is stored before `end`, [rows, kv_heads, end, head_dim], as floats."""
        found = cache[layer, :, :, :end]
        return found if scales is None else (unpacked(found) * scales[layer, :, :, :end, None]).to(self.aligned.dtype)

    def prefill(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Take the prompt's keys and values, [rows, kv_heads, padded, head_dim]."""
        if self.aligned is not self.k:
            last = torch.arange(max(0, self.padded - self.frame), self.padded, device=k.device)
            self.aligned[layer][:, :, last % (self.frame + 1)] = k[:, :, last]
        if self.window is None:
            self._put(layer, slice(k.shape[2]), k, v)
            return
        first = self.pad[:, None] + torch.arange(self.first_ring_slot, device=k.device)
        index = first.clamp(max=self.padded - 1)[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
        recent = torch.arange(max(0, self.padded - self.window), self.padded, device=k.device)
        self._put(layer, slice(self.first_ring_slot), k.gather(2, index), v.gather(2, index))
        self._put(layer, self.first_ring_slot + recent % self.window, k[:, :, recent], v[:, :, recent])

    def slots(self) -> Slots:
        """Of the current token."""
        i, ring = self.index, self.frame + 1
        aligned, own = (max(i - self.frame, 0), i) if self.aligned is self.k else ((i + 1) % ring, i % ring)
        if self.window is None:
            return Slots(i, i + 1, aligned, own)
        return Slots(self.first_ring_slot + i % self.window, self.k.shape[3], aligned, own)

    def append(self, layer: int, k: Tensor, v: Tensor, at: Slots) -> tuple[Tensor, Tensor]:
        """Store the current token, [rows, kv_heads, 1, head_dim]; returns all keys and values before `length`."""
        self._put(layer, at.slot, k[:, :, 0], v[:, :, 0])
        if self.aligned is not self.k:
            self.aligned[layer, :, :, at.aligned_to] = k[:, :, 0]
        return self._get(self.k, self.k_scale, layer, at.length), self._get(self.v, self.v_scale, layer, at.length)

    def mask(self) -> Tensor | None:
        """Which slots before `length` each row may attend to at the current token, bool [rows, slots]; None for all."""
        if self.window is None and not self._padding:
            return None
        i = self.index
        slot = torch.arange(self.slots().length, device=self.pad.device)
        if self.window is None:
            return slot >= self.pad[:, None]
        # The last index so far that lies in each slot of the ring; a prompt token that is a sink counts once.
        held = i - (i - (slot - self.first_ring_slot)) % self.window
        ring = (slot >= self.first_ring_slot) & (held >= (self.pad + self.sinks)[:, None])
        return ring | (slot < self.sinks[:, None])

    def advance(self) -> None:
        """Go on to the next token, after every layer has appended."""
        self.index += 1

    def fill(self, tokens: int, generator: torch.Generator) -> None:
        """Go on by this many tokens with random keys and values, for measuring."""
        for cache in {id(c): c for c in (self.k, self.v, self.aligned)}.values():
            for layer in cache:
                if cache.dtype == torch.int8:
                    layer.random_(-127, 128, generator=generator)
                elif cache.dtype == torch.uint8:
                    layer.random_(256, generator=generator)
                else:
                    layer.normal_(generator=generator)
        for scales in (self.k_scale, self.v_scale):
            if scales is not None:
                # The numbers above have a standard deviation of 73, those of 12 bits 1182.
                scales.fill_(1 / 73 if self._bits == 8 else 1 / 1182)
        self.index += tokens

    def rewind(self, tokens: int) -> None:
        """Forget the last tokens, for measuring the same passes again (without a window)."""
        self.index -= tokens

    def release(self) -> None:
        """Let go of the memory."""
        self.k = self.v = self.aligned = self.k.new_empty(0)
        self.k_scale = self.v_scale = None
