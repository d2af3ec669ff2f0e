"""Keys and values of the decoder, allocated once, for all tokens or for a window of them.

A token has an index in the padded sequence (visual token t: padded + t) and lies in a slot of memory. Without a window
the slot is the index. With one, as in StreamingLLM, the first `sinks` tokens of each row's own prompt lie in the first
slots, the last `window` tokens in a ring after them; a second ring has a frame's keys for TAS. All keys are rotated.

Rows may be at different tokens: every call names the token of each row. A token that does not become final is
undone by what `snapshot` returned before it was appended.

`kv_dtype` int8: the prompt's text (with a window the sinks) and the last R = `recent(N)` + 1 tokens, in a ring after
it, stay floats: they get most attention. A token that leaves the ring is rounded: its key and its value, minus their
mean over the row's own prompt, are int8 with one scale per head (absmax / 127). The mean is large and constant in each
channel, so with it the rest would have few of the 255 steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fastcar_cli.decoding.inputs import Inputs, Restore, snapshot
from fastcar_cli.decoding.prompt_rows import PromptRows
from fastcar_cli.models.decoder import recent
from fastcar_cli.models.network import Network


def prompt_mask(
    lengths: Tensor, padded: int, window: int | None, sinks: int, first: int = 0, last: int | None = None
) -> Tensor:
    """Attention mask of the prefill, bool [rows, 1, last - first, last], for queries from `first` on.

    Causal, without padding; with a window only the last `window` tokens (the query included) and the row's first
    `sinks`. Padding attends to itself so that no row of the softmax is empty.
    """
    i = torch.arange(padded, device=lengths.device)[:last]
    pad = (padded - lengths)[:, None, None]
    query, key = i[None, first:, None], i[None, None, :]
    allowed = (key <= query) & (key >= pad)
    if window is not None:
        allowed &= (query - key < window) | (key - pad < sinks)
    return (allowed | (query == key))[:, None]


class Slots(NamedTuple):
    """Where tokens read and write the caches, each int64 [n]; the columns of `KVCache.table`."""

    slot: Tensor  # takes the token's key and value
    length: Tensor  # the token attends to slots below it
    aligned_from: Tensor  # slot of the aligned token's key, for the score
    aligned_to: Tensor  # takes its own key, for the token aligned with it
    older: Tensor  # number of older tokens that it attends to (see `Int8KVCache`)
    moved_to: Tensor  # slot among them for the token that was in `slot`; -1: none


@dataclass(frozen=True)
class Reach:
    """One token per row: its slots, the largest `length` and `older` of all rows, mask bool [rows, length + older]."""

    at: Slots
    length: int
    older: int
    mask: Tensor | None


class KVCache:
    """Keys and values of a batch of videos: `k`, `v` [layers, rows, kv_heads, slots, head_dim]; `aligned`, keys of
    aligned tokens: `k`, or a ring of N + 1 slots with index i in slot i % (N + 1).
    """

    older: tuple[Tensor, ...] = ()

    def __init__(
        self, model: Network, prompts: PromptRows, tokens: int, room: int, window: int | None, sinks: int
    ) -> None:
        """Allocate slots for `room` visual tokens; `move` reuses them for later ones."""
        spec, self.frame = model.spec.decoder, model.spec.tokens_per_frame
        self.window, self.padded, self.pad = window, prompts.padded, prompts.pad
        self.sinks = prompts.lengths.clamp(max=sinks if window else 0)  # of each row, int64 [rows]
        self.first_ring_slot = int(self.sinks.max())
        self._padding = bool(self.pad.any())
        # Number of prompt tokens before those of frames; all of them if a row is padded.
        self.text = self.padded - (0 if self._padding else prompts.aligned)
        self._rows = torch.arange(prompts.rows, device=self.pad.device)
        # The rows of each video, and the column in which the longer of their prompts begins.
        self._own = [(rows, int(self.pad[rows].min())) for rows in map(prompts.rows_of, range(prompts.videos))]
        # The last token is never an input.
        self._tokens, self.begin = room - 1, 0
        self._allocate((spec.layers, prompts.rows, spec.kv_heads), spec.head_dim, self._tokens, model.dtype)
        self.nbytes = sum(tensor.nbytes for tensor in (*self._tensors(), *self.older))
        self._every = torch.arange(tokens - 1, device=self.pad.device)
        self.move(0)

    def move(self, begin: int) -> None:
        """Make visual token `begin` the first after the prompts, whose keys and values must be filled in again."""
        self.begin = begin
        # `Slots` of every input token, int64 [tokens - 1, 6].
        self.table = torch.stack(self._slots((self._every - begin).clamp(0, self._tokens - 1)), 1)
        self._host = self.table.cpu()

    def _allocate(self, heads: tuple[int, ...], width: int, tokens: int, dtype: torch.dtype) -> None:
        """Make the tensors for this many visual tokens; `heads` are layers, rows and KV heads. Sets `overwrites`,
        whether a token can take the slot of another, and `most_inputs`, the maximum number of tokens per row and pass.
        """
        device = self.pad.device
        self.overwrites, self.most_inputs = self.window is not None, min(self.frame, self.window or self.frame)
        slots = self.padded + tokens if self.window is None else self.first_ring_slot + self.window
        self.k, self.v = torch.zeros(2, *heads, slots, width, dtype=dtype, device=device)
        self.aligned = self.k
        if self.window is not None:
            self.aligned = torch.zeros(*heads, self.frame + 1, width, dtype=dtype, device=device)

    def _tensors(self) -> list[Tensor]:
        """The float tensors of keys and values, each once."""
        return list({id(tensor): tensor for tensor in (self.k, self.v, self.aligned)}.values())

    def _slots(self, t: Tensor) -> Slots:
        """Slots of visual tokens t, int64 [n]."""
        i, ring, none = self.padded + t, self.frame + 1, torch.zeros_like(t)
        if self.window is None:
            return Slots(i, i + 1, (i - self.frame).clamp(min=0), i, none, none - 1)
        slot = self.first_ring_slot + i % self.window
        return Slots(slot, none + self.k.shape[3], (i + 1) % ring, i % ring, none, none - 1)

    def prefill(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the prompt's keys and values, [rows, kv_heads, padded, head_dim]."""
        self._keep_aligned(layer, k)
        if self.window is None:
            self.k[layer, :, :, : self.padded], self.v[layer, :, :, : self.padded] = k, v
            return
        self._keep_sinks(layer, k, v)
        recent = torch.arange(max(0, self.padded - self.window), self.padded, device=k.device)
        ring = self.first_ring_slot + recent % self.window
        self.k[layer][:, :, ring], self.v[layer][:, :, ring] = k[:, :, recent], v[:, :, recent]

    def _keep_aligned(self, layer: int, k: Tensor) -> None:
        """Put the prompt's last keys into the ring of aligned keys."""
        if self.aligned is not self.k:
            last = torch.arange(max(0, self.padded - self.frame), self.padded, device=k.device)
            self.aligned[layer][:, :, last % (self.frame + 1)] = k[:, :, last]

    def _keep_sinks(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Put the first tokens of each row's prompt into the first slots."""
        first = self.pad[:, None] + torch.arange(self.first_ring_slot, device=k.device)
        index = first.clamp(max=self.padded - 1)[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[3])
        end = self.first_ring_slot
        self.k[layer, :, :, :end], self.v[layer, :, :, :end] = k.gather(2, index), v.gather(2, index)

    def step(self, inputs: Inputs) -> Reach:
        """Slots and mask of one token per row."""
        t = inputs.tokens(len(self.pad), self.pad.device)[0]
        at, end = Slots(*self.table[t].unbind(-1)), Slots(*self._host[max(inputs.first)])
        length, older, mask = int(end.length), int(end.older), None
        if self.window is not None or inputs.common is None or self._padding:
            slots = self.k.shape[3]
            mask = self.mask(t)
            mask = torch.cat([mask[:, :length], mask[:, slots : slots + older]], 1)
        return Reach(at, length, older, mask)

    def append(self, layer: int, k: Tensor, v: Tensor, step: Reach) -> tuple[Tensor, Tensor]:
        """Store a token, [rows, kv_heads, 1, head_dim]; returns all keys and values to attend to."""
        at, rows = step.at, self._rows
        self.k[layer][rows, :, at.slot], self.v[layer][rows, :, at.slot] = k[:, :, 0], v[:, :, 0]
        if self.aligned is not self.k:
            self.aligned[layer][rows, :, at.aligned_to] = k[:, :, 0]
        return self.k[layer, :, :, : step.length], self.v[layer, :, :, : step.length]

    def aligned_key(self, layer: int, step: Reach) -> Tensor:
        """The aligned tokens' keys, [rows, kv_heads, head_dim]."""
        return self.aligned[layer][self._rows, :, step.at.aligned_from]

    def mask(self, t: Tensor) -> Tensor:
        """Slots, older ones last, that input tokens t int64 [..., rows] attend to: bool [..., rows, slots]."""
        i = (self.padded + t - self.begin)[..., None]
        held = self._held(i)
        seen = (held >= (self.pad + self.sinks)[:, None]) & (held <= i)
        if self.window is not None:
            seen &= held > i - self.window
            sinks = self.first_ring_slot
            seen[..., :sinks] |= torch.arange(sinks, device=t.device) < self.sinks[:, None]
        return seen

    def _held(self, i: Tensor) -> Tensor:
        """The last index up to i, [..., 1], that each slot holds, [..., slots]; -1 for slots of sinks."""
        slot = torch.arange(self.k.shape[3], device=i.device)
        if self.window is None:
            return slot
        place = slot - self.first_ring_slot
        return torch.where(place < 0, -1, i - (i - place) % self.window)

    def snapshot(self, t: Tensor) -> list[Restore]:
        """Copy what appending input tokens t, int64 [drafts, rows], overwrites; without a ring nothing that is read."""
        if not self.overwrites:
            return []
        at = Slots(*self.table[t].unbind(-1))
        return [snapshot(self.k, at.slot), snapshot(self.v, at.slot), snapshot(self.aligned, at.aligned_to)]

    def fill(self, generator: torch.Generator) -> None:
        """Fill all slots with random keys and values, to time passes."""
        for cache in self._tensors():
            cache.normal_(generator=generator)

    def release(self) -> None:
        """Free the memory."""
        self.k = self.v = self.aligned = self.k.new_empty(0)


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
    """Round floats [..., d] to int8 [..., d] and scales float32 [...]; NaN or infinity makes its scale not finite."""
    scale = x.float().abs().amax(-1) / 127
    return (x / scale.clamp_min(1e-30)[..., None]).round().to(torch.int8), scale


class Int8KVCache(KVCache):
    """A KV cache whose `k` and `v` hold K tokens (the text, or sinks), then the ring.

    Index i lies in slot (i - K) % R of the ring. `older` holds tokens that left it: without a window index i in slot
    i - K, with one in slot i % M, M = window - R (none if M <= 0). `aligned` is `k` if R = N + 1.
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
        # The token that leaves the ring, and its slot in `older`.
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
        """See `KVCache.append`; older tokens come last."""
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
        """See `KVCache.snapshot`; without a window a token that a draft moves gets a slot that nothing reads yet."""
        ring, old = super().snapshot(t), self.older
        if self.window is None or not old.keys.shape[3]:
            return ring
        # A row from which nothing moves has slot 0 here, which it does not change.
        moved_to = Slots(*self.table[t].unbind(-1)).moved_to.clamp(min=0)
        older = (old.keys, old.values, old.key_scales[..., None], old.value_scales[..., None])
        return [*ring, *(snapshot(x, moved_to) for x in older)]

    def fill(self, generator: torch.Generator) -> None:
        """See `KVCache.fill`."""
        super().fill(generator)
        for numbers, scales, _ in self.older.pairs():
            numbers.random_(-127, 128, generator=generator)
            # These numbers have a standard deviation of 73.
            scales.fill_(1 / 73)

    def release(self) -> None:
        """See `KVCache.release`."""
        super().release()
        self.older = OlderTokens(*[self.k] * 6)
