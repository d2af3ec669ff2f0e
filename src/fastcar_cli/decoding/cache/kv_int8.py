"""Keys and values in int8 of all but the last tokens: `kv_dtype` int8.

The prompt's text (with a window the sinks) and the last R = `recent(N)` + 1 tokens, in a ring after it, stay floats:
they get most attention. A token that leaves the ring is rounded: its key and its value, less their mean over the row's
own prompt, are int8 with one scale a head (absmax / 127). The mean is a constant of each channel, which would take most
of the range.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fastcar_cli.decoding.cache.kv_cache import KVCache, Reach, Slots
from fastcar_cli.decoding.inputs import Restore, snapshot
from fastcar_cli.models.decoder import recent


class OlderTokens(NamedTuple):
    """Keys and values int8 [layers, rows, kv_heads, older slots, head_dim] of tokens before the ring: numbers times
    scales float32 [layers, rows, kv_heads, older slots], plus means float32 [layers, rows, kv_heads, head_dim].
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor
    key_means: Tensor
    value_means: Tensor

    def pairs(self) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """Numbers, scales and means of the keys, and of the values."""
        return (self.keys, self.key_scales, self.key_means), (self.values, self.value_scales, self.value_means)


def packed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Floats [..., d] as int8 [..., d] and scales float32 [...], in which NaN and infinity show."""
    scale = x.float().abs().amax(-1) / 127
    return (x / scale.clamp_min(1e-30)[..., None]).round().to(torch.int8), scale


class Int8KVCache(KVCache):
    """A KV cache whose `k` and `v` hold the K tokens of a text or sinks, then the ring.

    Index i lies in slot (i - K) % R of the ring. `older` holds what left it: without a window index i in slot i - K,
    with one in slot i % M, M = window - R, so none where the window is not larger. `aligned` is `k` where R = N + 1.
    """

    older: OlderTokens

    def _allocate(self, heads: tuple[int, ...], width: int, tokens: int, dtype: torch.dtype) -> None:
        device = self.pad.device
        self._ring = ring = recent(self.frame) + 1
        self._ring_at = self.text if self.window is None else self.first_ring_slot
        self._framed = self.padded - self._ring_at
        self.k, self.v = torch.zeros(2, *heads, self._ring_at + ring, width, dtype=dtype, device=device)
        self.aligned = self.k
        if ring <= self.frame:
            self.aligned = torch.zeros(*heads, self.frame + 1, width, dtype=dtype, device=device)
        count = max(0, (self._framed + tokens if self.window is None else self.window) - ring)
        most = count if self.window is not None and count else self.frame
        self.overwrites, self.most_inputs = True, min(ring - 1, most)
        numbers = torch.zeros(2, *heads, count, width, dtype=torch.int8, device=device)
        scales = torch.zeros(2, *heads, count, device=device)
        self.older = OlderTokens(*numbers, *scales, *torch.zeros(2, *heads, width, device=device))

    def _slots(self, t: Tensor) -> Slots:
        ring, i, none, t = self._ring, self.padded + t, torch.zeros_like(t), self._framed + t
        slot = aligned_to = self._ring_at + t % ring
        aligned = self._ring_at + (t + 1) % ring
        if self.aligned is not self.k:
            aligned, aligned_to = (i + 1) % (self.frame + 1), i % (self.frame + 1)
        # The token that leaves the ring, and where it goes.
        left = t - ring
        if self.window is None:
            length, older, to = self._ring_at + (t + 1).clamp(max=ring), (left + 1).clamp(min=0), left.clamp(min=-1)
            return Slots(slot, length, aligned, aligned_to, older, to)
        count, index = self.older.keys.shape[3], i - ring
        to = torch.where(index >= 0, index % count, -1) if count else none - 1
        return Slots(slot, none + self.k.shape[3], aligned, aligned_to, none + count, to)

    def prefill(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See `KVCache.prefill`."""
        self._keep_aligned(layer, k)
        own = torch.arange(self.padded, device=k.device) >= self.pad[:, None]
        ring = self._ring
        for x, (_, _, means) in zip((k, v), self.older.pairs(), strict=True):
            for rows, begin in self._own:
                numbers = x[rows, :, begin:].float() * own[rows, None, begin:, None]
                means[layer][rows] = numbers.sum(2) / own[rows].sum(1)[:, None, None]
        last = torch.arange(max(0, self.padded - ring), self.padded, device=k.device)
        at = self._ring_at + (last - self._ring_at) % ring
        self.k[layer][:, :, at], self.v[layer][:, :, at] = k[:, :, last], v[:, :, last]
        count, end = self.older.keys.shape[3], max(0, self.padded - ring)
        if self.window is None:
            first, kept = min(self.text, end), slice(self.text)
            self.k[layer, :, :, kept], self.v[layer, :, :, kept] = k[:, :, kept], v[:, :, kept]
        else:
            first = max(0, end - count)
            self._keep_sinks(layer, k, v)
        left = torch.arange(first, end, device=k.device)
        to = (left - self.text if self.window is None else left) % max(1, count)
        for x, (numbers, scales, means) in zip((k, v), self.older.pairs(), strict=True):
            numbers[layer][:, :, to], scales[layer][:, :, to] = packed(x[:, :, left] - means[layer][:, :, None])

    def append(self, layer: int, k: Tensor, v: Tensor, step: Reach) -> tuple[Tensor, Tensor]:
        """See `KVCache.append`; what is older comes last."""
        moved = (step.at.moved_to >= 0).nonzero()[:, 0]
        if len(moved):
            own, to = step.at.slot[moved], step.at.moved_to[moved]
            for cache, (numbers, scales, means) in zip((self.k, self.v), self.older.pairs(), strict=True):
                rounded = packed(cache[layer][moved, :, own] - means[layer][moved])
                numbers[layer][moved, :, to], scales[layer][moved, :, to] = rounded
        keys, values = super().append(layer, k, v, step)
        seen = (layer, slice(None), slice(None), slice(step.older))
        older_keys, older_values = (
            (numbers[seen] * scales[seen][..., None] + means[layer][:, :, None]).to(keys.dtype)
            for numbers, scales, means in self.older.pairs()
        )
        return torch.cat([keys, older_keys], 2), torch.cat([values, older_values], 2)

    def _held(self, i: Tensor) -> Tensor:
        ring, begin, older = self._ring, self._ring_at, self.older.keys.shape[3]
        place, slot = torch.arange(ring, device=i.device), torch.arange(older, device=i.device)
        in_ring = i - (i - begin - place) % ring
        if self.window is None:
            text = torch.arange(begin, device=i.device).expand(*i.shape[:-1], -1)
            left = torch.where(begin + slot <= i - ring, begin + slot, -1)
            in_ring = torch.where(in_ring < begin, -1, in_ring)
        else:
            text = (torch.zeros_like(i) - 1).expand(*i.shape[:-1], begin)
            left = i - ring - (i - ring - slot) % max(1, older)
        return torch.cat([text, in_ring, left], -1)

    def snapshot(self, t: Tensor) -> list[Restore]:
        """See `KVCache.snapshot`; without a window a token that a draft moves has a place of its own, not read yet."""
        ring, old = super().snapshot(t), self.older
        if self.window is None or not old.keys.shape[3]:
            return ring
        # A row from which nothing moves has any slot here, which it does not change.
        moved_to = Slots(*self.table[t].unbind(-1)).moved_to.clamp(min=0)
        older = (old.keys, old.values, old.key_scales[..., None], old.value_scales[..., None])
        return [*ring, *(snapshot(x, moved_to) for x in older)]

    def fill(self, generator: torch.Generator) -> None:
        """See `KVCache.fill`."""
        super().fill(generator)
        for numbers, scales, _ in self.older.pairs():
            for layer in numbers:
                layer.random_(-127, 128, generator=generator)
            # These numbers have a standard deviation of 73.
            scales.fill_(1 / 73)

    def release(self) -> None:
        """See `KVCache.release`."""
        super().release()
        self.older = OlderTokens(*[self.k] * 6)
