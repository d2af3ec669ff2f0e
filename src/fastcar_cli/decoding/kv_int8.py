"""Keys and values in int8 behind the last frame: `kv_dtype` int8.

What attention looks at most stays in floats: the prompt (with a window the sinks) and the last N + 1 tokens, in a ring
behind it, whose keys TAS reads as well. A token that leaves the ring is rounded: its key and its value, less their mean
over the row's own prompt, are int8 with one scale a head (absmax / 127). The mean is a constant of each channel, which
would take most of the range of numbers that have it in common.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastcar_cli.decoding.kv_cache import KVCache
from fastcar_cli.kernels.native import OlderTokens, Slots

KV_DTYPES = ("auto", "int8")
"""What keys and values can be kept in; auto: as the model."""


def packed(x: Tensor) -> tuple[Tensor, Tensor]:
    """Floats [..., d] as int8 [..., d] and scales float32 [...], in which NaN and infinity show."""
    scale = x.float().abs().amax(-1) / 127
    return (x / scale.clamp_min(1e-30)[..., None]).round().to(torch.int8), scale


class Int8KVCache(KVCache):
    """A KV cache whose `k` and `v` hold the prompt or the sinks, then the ring; `aligned` is `k`.

    Index i lies in slot (i - padded) % (N + 1) of the ring. `older` holds what left it: without a window visual token t
    in slot t, with one the index i in slot i % M, M = window - (N + 1), so none where the window is no larger.
    """

    older: OlderTokens

    def _allocate(self, heads: tuple[int, ...], width: int, tokens: int, dtype: torch.dtype) -> None:
        device, ring = self.pad.device, self.frame + 1
        self._ring_at = self.padded if self.window is None else self.first_ring_slot
        self.k, self.v = torch.zeros(2, *heads, self._ring_at + ring, width, dtype=dtype, device=device)
        self.aligned = self.k
        count = max(0, (tokens if self.window is None else self.window) - ring)
        numbers = torch.zeros(2, *heads, count, width, dtype=torch.int8, device=device)
        scales = torch.zeros(2, *heads, count, device=device)
        self.older = OlderTokens(*numbers, *scales, *torch.zeros(2, *heads, width, device=device))

    def _tensors(self) -> list[Tensor]:
        return [self.k, self.v, *vars(self.older).values()]

    def bytes_read(self, index: int) -> int:
        """See `KVCache.bytes_read`."""
        ring = self.frame + 1
        seen, older = self._ring_at + min(index - self.padded + 1, ring), max(0, index - self.padded + 1 - ring)
        in_int8 = self.older.keys[:, :, :, :older].nbytes + self.older.key_scales[:, :, :, :older].nbytes
        return 2 * (self.k[:, :, :, :seen].nbytes + in_int8)

    def _older_slot(self, index: int) -> int:
        """Where among the older tokens the one of an index goes; -1: nowhere."""
        if self.window is None:
            return max(-1, index - self.padded)
        count = self.older.keys.shape[3]
        return index % count if count and index >= 0 else -1

    def prefill(self, layer: int, k: Tensor, v: Tensor) -> None:
        """See `KVCache.prefill`."""
        own = torch.arange(self.padded, device=k.device) >= self.pad[:, None]
        ring = self.frame + 1
        for x, (_, _, means) in zip((k, v), self._both(), strict=True):
            means[layer] = (x.float() * own[:, None, :, None]).sum(2) / own.sum(1)[:, None, None]
        last = torch.arange(max(0, self.padded - ring), self.padded, device=k.device)
        at = self._ring_at + (last - self.padded) % ring
        self.k[layer][:, :, at], self.v[layer][:, :, at] = k[:, :, last], v[:, :, last]
        if self.window is None:
            self.k[layer, :, :, : self.padded], self.v[layer, :, :, : self.padded] = k, v
            return
        self._keep_sinks(layer, k, v)
        count, end = self.older.keys.shape[3], max(0, self.padded - ring)
        left = torch.arange(max(0, end - count), end, device=k.device)
        self._move(layer, left % max(1, count), k[:, :, left], v[:, :, left])

    def _both(self) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]:
        """Numbers, scales and means of the older keys, and of the older values."""
        old = self.older
        return (old.keys, old.key_scales, old.key_means), (old.values, old.value_scales, old.value_means)

    def _move(self, layer: int, to: slice | Tensor, k: Tensor, v: Tensor) -> None:
        """Round keys and values, [rows, kv_heads, tokens, head_dim], of tokens that leave the ring."""
        for x, (numbers, scales, means) in zip((k, v), self._both(), strict=True):
            numbers[layer][:, :, to], scales[layer][:, :, to] = packed(x - means[layer][:, :, None])

    def slots(self) -> Slots:
        """See `KVCache.slots`."""
        ring, t = self.frame + 1, self.index - self.padded
        slot, aligned = self._ring_at + t % ring, self._ring_at + (t + 1) % ring
        to = self._older_slot(self.index - ring)
        if self.window is None:
            return Slots(slot, self.padded + min(t + 1, ring), aligned, slot, max(0, t + 1 - ring), to)
        return Slots(slot, self.k.shape[3], aligned, slot, self.older.keys.shape[3], to)

    def append(self, layer: int, k: Tensor, v: Tensor, at: Slots) -> tuple[Tensor, Tensor]:
        """See `KVCache.append`; what is older comes last."""
        if at.moved_to >= 0:
            own = slice(at.slot, at.slot + 1)
            to = slice(at.moved_to, at.moved_to + 1)
            self._move(layer, to, self.k[layer, :, :, own], self.v[layer, :, :, own])
        keys, values = super().append(layer, k, v, at)
        seen = (layer, slice(None), slice(None), slice(at.older))
        older_keys, older_values = (
            (numbers[seen] * scales[seen][..., None] + means[layer][:, :, None]).to(keys.dtype)
            for numbers, scales, means in self._both()
        )
        return torch.cat([keys, older_keys], 2), torch.cat([values, older_values], 2)

    def mask(self) -> Tensor | None:
        """See `KVCache.mask`."""
        at, ring, device = self.slots(), self.frame + 1, self.pad.device
        if self.window is None:
            if not self._padding:
                return None
            return torch.arange(at.length + at.older, device=device) >= self.pad[:, None]
        # The last index so far that lies in each slot of the ring, and of those that left it; sinks count once.
        i, count = self.index, at.older
        held = i - (i - self.padded - torch.arange(ring, device=device)) % ring
        left = i - ring - (i - ring - torch.arange(count, device=device)) % max(1, count)
        index = torch.cat([held, left])
        seen = (index >= (self.pad + self.sinks)[:, None]) & (index > i - self.window)
        sinks = torch.arange(self.first_ring_slot, device=device) < self.sinks[:, None]
        return torch.cat([sinks, seen], 1)

    def fill(self, tokens: int, generator: torch.Generator) -> None:
        """See `KVCache.fill`."""
        for tensor in (self.k, self.v):
            for layer in tensor:
                layer.normal_(generator=generator)
        for numbers, scales, _ in self._both():
            for layer in numbers:
                layer.random_(-127, 128, generator=generator)
            # These numbers have a standard deviation of 73.
            scales.fill_(1 / 73)
        self.index += tokens

    def release(self) -> None:
        """See `KVCache.release`."""
        nothing = self.k.new_empty(0)
        self.k = self.v = self.aligned = nothing
        self.older = OlderTokens(*[nothing] * 6)
