"""Keys and values of the decoder, allocated once, for all tokens or for a window of them.

A token has an index in the padded sequence (prompts are left-padded to one length, so in one pass
every row has the same) and lies in a slot of memory. Without a window the slot is the index. With
one, StreamingLLM's pattern is kept: the first `sinks` tokens of each row's own prompt lie in the
first slots, the last `window` tokens in a ring behind them, and one more ring keeps the keys of a
frame for TAS, so that memory does not grow with the video. Keys are stored after rotation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_cli.kernels.native import OlderTokens, Slots
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


class KVCache:
    """Keys and values of a batch.

    Attributes:
        k, v: [layers, rows, kv_heads, slots, head_dim].
        aligned: where keys of aligned tokens are read: k, or with a window the ring [layers, rows, kv_heads, N + 1,
            head_dim], in which index i lies in slot i % (N + 1).
        older: tokens that are kept beside these; None (see `kv_int8`).
        nbytes: bytes allocated.
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
    ) -> None:
        self.window, self.frame, self.padded = window, frame, padded
        self.pad = padded - lengths
        self.sinks = lengths.clamp(max=sinks if window else 0)
        self.first_ring_slot = int(self.sinks.max())
        self.older: OlderTokens | None = None
        self.index = padded
        """Index of the token that is decoded next."""
        self._padding = bool(self.pad.any())
        self._allocate((spec.layers, len(lengths), spec.kv_heads), spec.head_dim, tokens, dtype)
        self.nbytes = sum(tensor.nbytes for tensor in self._tensors())

    def _allocate(self, heads: tuple[int, ...], width: int, tokens: int, dtype: torch.dtype) -> None:
        """Make the tensors for this many visual tokens; `heads` are layers, rows and KV heads."""
        device = self.pad.device
        slots = self.padded + tokens if self.window is None else self.first_ring_slot + self.window
        self.k, self.v = torch.zeros(2, *heads, slots, width, dtype=dtype, device=device)
        self.aligned = self.k
        if self.window is not None:
            self.aligned = torch.zeros(*heads, self.frame + 1, width, dtype=dtype, device=device)

    def _tensors(self) -> list[Tensor]:
        """All that is allocated."""
        return list({id(tensor): tensor for tensor in (self.k, self.v, self.aligned)}.values())

    def bytes_read(self, index: int) -> int:
        """Bytes of keys and values that attention reads at the token of this index, that token's included."""
        return 2 * self.k[:, :, :, : index + 1].nbytes

    def prefill(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Take the prompt's keys and values, [rows, kv_heads, padded, head_dim]."""
        if self.aligned is not self.k:
            last = torch.arange(max(0, self.padded - self.frame), self.padded, device=k.device)
            self.aligned[layer][:, :, last % (self.frame + 1)] = k[:, :, last]
        if self.window is None:
            self.k[layer, :, :, : self.padded], self.v[layer, :, :, : self.padded] = k, v
            return
        self._keep_sinks(layer, k, v)
        recent = torch.arange(max(0, self.padded - self.window), self.padded, device=k.device)
        ring = self.first_ring_slot + recent % self.window
        self.k[layer][:, :, ring], self.v[layer][:, :, ring] = k[:, :, recent], v[:, :, recent]

    def _keep_sinks(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Put the first tokens of each row's prompt into the first slots."""
        first = self.pad[:, None] + torch.arange(self.first_ring_slot, device=k.device)
        index = first.clamp(max=self.padded - 1)[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
        end = self.first_ring_slot
        self.k[layer, :, :, :end], self.v[layer, :, :, :end] = k.gather(2, index), v.gather(2, index)

    def slots(self) -> Slots:
        """Of the current token."""
        i, ring = self.index, self.frame + 1
        aligned, own = (max(i - self.frame, 0), i) if self.aligned is self.k else ((i + 1) % ring, i % ring)
        if self.window is None:
            return Slots(i, i + 1, aligned, own)
        return Slots(self.first_ring_slot + i % self.window, self.k.shape[3], aligned, own)

    def append(self, layer: int, k: Tensor, v: Tensor, at: Slots) -> tuple[Tensor, Tensor]:
        """Store the current token, [rows, kv_heads, 1, head_dim]; returns all keys and values to attend to."""
        self.k[layer, :, :, at.slot], self.v[layer, :, :, at.slot] = k[:, :, 0], v[:, :, 0]
        if self.aligned is not self.k:
            self.aligned[layer, :, :, at.aligned_to] = k[:, :, 0]
        return self.k[layer, :, :, : at.length], self.v[layer, :, :, : at.length]

    def mask(self) -> Tensor | None:
        """What each row may attend to of what `append` returns, bool [rows, slots]; None for all."""
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
        for cache in self._tensors():
            for layer in cache:
                layer.normal_(generator=generator)
        self.index += tokens

    def rewind(self, tokens: int) -> None:
        """Forget the last tokens, for measuring the same passes again (without a window)."""
        self.index -= tokens

    def release(self) -> None:
        """Let go of the memory."""
        self.k = self.v = self.aligned = self.k.new_empty(0)
