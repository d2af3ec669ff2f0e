"""Keys and values of the decoder, allocated once.

`FullCache` keeps every token. `WindowCache` keeps StreamingLLM's pattern, the first `sinks` tokens
of each row's prompt and the last `window` tokens, and one frame of keys for TAS, so its memory
does not grow with the video. Keys are stored after rotation. A slot is a position in the padded
sequence: prompts are left-padded to one length, so every row writes the same slot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from fastcar_cli.models.decoder import DecoderSpec


@dataclass(frozen=True)
class Layout:
    """The tensors of a cache and where tokens lie in them, for steps that index on the device.

    k, v [layers, rows, kv_heads, places, head_dim]; ring [layers, rows, kv_heads, frame + 1, head_dim]
    holds the last keys where there is a window (slot s in place s % (frame + 1)), else None; pad
    [rows] counts the padding before each prompt. Slot s lies in place s of a full cache (window 0), in
    place sinks + s % window of the other.
    """

    k: Tensor
    v: Tensor
    ring: Tensor | None
    pad: Tensor
    padded: int
    frame: int
    window: int = 0
    sinks: int = 0


@dataclass(frozen=True)
class CacheView:
    """What a compiled pass needs of a layer: all keys and values, and where aligned keys are kept.

    keys, values, aligned [rows, kv_heads, slots, head_dim]; start [rows]: slots before it are padding.
    """

    keys: Tensor
    values: Tensor
    aligned: Tensor
    start: Tensor


@dataclass(frozen=True)
class Place:
    """Where the token that is about to be decoded goes: its slot among the keys, the slots to attend to (from
    the row's start), the slots of its aligned key and of its own among the aligned keys, and which slots each
    row may attend to, bool [rows, slots] (None: all).
    """

    slot: int
    length: int
    aligned_from: int
    aligned_to: int
    allowed: Tensor | None


class KVCache(Protocol):
    """What the step loop asks of a cache. All tensors are [rows, kv_heads, slots, head_dim]."""

    def prefill(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Take the prompt's keys and values."""
        ...

    def step(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append one token to a layer; returns all keys and values it may attend to."""
        ...

    def aligned(self, layer: int) -> Tensor:
        """Key of the aligned token of the token just appended, [rows, kv_heads, head_dim]."""
        ...

    def mask(self) -> Tensor | None:
        """Which keys of `step` each row may attend to, bool [rows, 1, 1, slots]; None for all."""
        ...

    def view(self, layer: int) -> CacheView:
        """The memory of a layer, for a pass that appends by itself at `place`."""
        ...

    def place(self) -> Place:
        """Where the next token goes, instead of `step`."""
        ...

    def advance(self) -> None:
        """Go on to the next token, after every layer has stepped."""
        ...

    def fill(self, tokens: int, generator: torch.Generator) -> None:
        """Go on by this many tokens with random keys and values, for measuring."""
        ...

    def layout(self) -> Layout:
        """The tensors themselves, not copies."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        ...


def prompt_mask(lengths: Tensor, padded: int, window: int | None, sinks: int) -> Tensor:
    """Who may attend to whom in the prefill, bool [rows, 1, padded, padded].

    Causal, not to padding; with a window only to the last `window` tokens (the query included) and
    the row's first `sinks`. Padding attends to itself so that no row of the softmax is empty.
    """
    device = lengths.device
    i = torch.arange(padded, device=device)
    pad = (padded - lengths)[:, None, None]
    query, key = i[None, :, None], i[None, None, :]
    allowed = (key <= query) & (key >= pad)
    if window is not None:
        allowed &= (query - key < window) | (key - pad < sinks)
    return (allowed | (query == key))[:, None]


class FullCache:
    """Every token's keys and values: [layers, rows, kv_heads, capacity, head_dim]."""

    def __init__(
        self, spec: DecoderSpec, lengths: Tensor, padded: int, tokens: int, frame: int, dtype: torch.dtype
    ) -> None:
        rows = len(lengths)
        shape = (spec.layers, rows, spec.kv_heads, padded + tokens, spec.head_dim)
        self._k = torch.zeros(shape, dtype=dtype, device=lengths.device)
        self._v = torch.zeros(shape, dtype=dtype, device=lengths.device)
        self._slot, self._frame = padded, frame
        self._padded, self._start = padded, padded - lengths
        slots = torch.arange(padded + tokens, device=lengths.device)
        padding = slots[None] < (padded - lengths)[:, None]
        self._mask = ~padding[:, None, None] if bool(padding.any()) else None

    def prefill(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See `KVCache.prefill`."""
        self._k[layer, :, :, : k.shape[2]] = k
        self._v[layer, :, :, : v.shape[2]] = v

    def step(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See `KVCache.step`."""
        s = self._slot
        keys, values = self._k[layer], self._v[layer]
        keys[:, :, s : s + 1] = k
        values[:, :, s : s + 1] = v
        return keys[:, :, : s + 1], values[:, :, : s + 1]

    def aligned(self, layer: int) -> Tensor:
        """See `KVCache.aligned`."""
        return self._k[layer, :, :, self._slot - self._frame]

    def mask(self) -> Tensor | None:
        """See `KVCache.mask`."""
        return None if self._mask is None else self._mask[..., : self._slot + 1]

    def view(self, layer: int) -> CacheView:
        """See `KVCache.view`."""
        return CacheView(self._k[layer], self._v[layer], self._k[layer], self._start)

    def place(self) -> Place:
        """See `KVCache.place`."""
        s = self._slot
        return Place(s, s + 1, max(s - self._frame, 0), s, None)

    def advance(self) -> None:
        """See `KVCache.advance`."""
        self._slot += 1

    def fill(self, tokens: int, generator: torch.Generator) -> None:
        """See `KVCache.fill`."""
        end = self._slot + tokens
        for cache in (self._k, self._v):
            for layer in cache:
                layer[:, :, self._slot : end].normal_(generator=generator)
        self._slot = end

    def rewind(self, tokens: int) -> None:
        """Forget the last tokens, for measuring the same steps again."""
        self._slot -= tokens

    def layout(self) -> Layout:
        """See `KVCache.layout`."""
        return Layout(self._k, self._v, None, self._start, self._padded, self._frame)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._k.nbytes + self._v.nbytes


class WindowCache:
    """Sinks in the first slots, then a ring of `window` tokens, and a ring of one frame of keys."""

    def __init__(
        self,
        spec: DecoderSpec,
        lengths: Tensor,
        padded: int,
        window: int,
        sinks: int,
        frame: int,
        dtype: torch.dtype,
    ) -> None:
        rows, device = len(lengths), lengths.device
        self._window, self._sinks, self._frame = window, min(sinks, int(lengths.min())), frame
        self._padded = padded
        self._pad = padded - lengths
        shape = (spec.layers, rows, spec.kv_heads, self._sinks + window, spec.head_dim)
        self._k = torch.zeros(shape, dtype=dtype, device=device)
        self._v = torch.zeros(shape, dtype=dtype, device=device)
        ring = (spec.layers, rows, spec.kv_heads, frame + 1, spec.head_dim)
        self._aligned = torch.zeros(ring, dtype=dtype, device=device)
        # Slot of the padded sequence that lies in each place of the ring; -1 where none does yet.
        self._held = torch.full((window,), -1, device=device)
        self._slot = padded
        kept = torch.arange(max(0, padded - window), padded, device=device)
        self._held[kept % window] = kept
        self._kept = kept

    def prefill(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See `KVCache.prefill`."""
        if self._sinks:
            first = self._pad[:, None] + torch.arange(self._sinks, device=k.device)
            index = first[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
            self._k[layer, :, :, : self._sinks] = k.gather(2, index)
            self._v[layer, :, :, : self._sinks] = v.gather(2, index)
        places = self._sinks + self._kept % self._window
        self._k[layer][:, :, places] = k[:, :, self._kept]
        self._v[layer][:, :, places] = v[:, :, self._kept]

    def step(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """See `KVCache.step`."""
        if layer == 0:
            self._held[self._slot % self._window] = self._slot
        place = self._sinks + self._slot % self._window
        keys, values = self._k[layer], self._v[layer]
        keys[:, :, place : place + 1] = k
        values[:, :, place : place + 1] = v
        self._aligned[layer, :, :, self._slot % (self._frame + 1)] = k[:, :, 0]
        return keys, values

    def aligned(self, layer: int) -> Tensor:
        """See `KVCache.aligned`."""
        return self._aligned[layer, :, :, (self._slot + 1) % (self._frame + 1)]

    def mask(self) -> Tensor | None:
        """See `KVCache.mask`. A prompt token that is a row's sink is not counted again in the ring."""
        held = self._held[None]
        start = (self._pad + self._sinks)[:, None]
        ring = held >= start
        sinks = torch.ones(len(self._pad), self._sinks, dtype=torch.bool, device=held.device)
        return torch.cat([sinks, ring], 1)[:, None, None]

    def view(self, layer: int) -> CacheView:
        """See `KVCache.view`."""
        return CacheView(self._k[layer], self._v[layer], self._aligned[layer], torch.zeros_like(self._pad))

    def place(self) -> Place:
        """See `KVCache.place`."""
        self._held[self._slot % self._window] = self._slot
        slot, ring = self._sinks + self._slot % self._window, self._frame + 1
        mask = self.mask()
        assert mask is not None
        return Place(slot, self._sinks + self._window, (self._slot + 1) % ring, self._slot % ring, mask[:, 0, 0])

    def advance(self) -> None:
        """See `KVCache.advance`."""
        self._slot += 1

    def fill(self, tokens: int, generator: torch.Generator) -> None:
        """See `KVCache.fill`."""
        for cache in (self._k[..., self._sinks :, :], self._v[..., self._sinks :, :], self._aligned):
            cache.normal_(generator=generator)
        self._slot += tokens
        recent = torch.arange(max(self._slot - self._window, 0), self._slot, device=self._held.device)
        self._held[recent % self._window] = recent

    def layout(self) -> Layout:
        """See `KVCache.layout`."""
        return Layout(self._k, self._v, self._aligned, self._pad, self._padded, self._frame, self._window, self._sinks)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._k.nbytes + self._v.nbytes + self._aligned.nbytes
