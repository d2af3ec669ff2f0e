"""Prompts by torch: a layer at a time, and each by itself, so that what shares the batch changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fastcar_cli.decoding.batch import Batch
from fastcar_cli.decoding.cache.kv_cache import prompt_mask
from fastcar_cli.decoding.prompt_rows import PromptRows
from fastcar_cli.models.decoder import Block, attention, rotate

PREFILL_TOKENS = 512
"""Tokens of a prompt that attend, and whose MLPs run, at once: this bounds the memory of scores and activations."""


@dataclass
class PromptPart:
    """A prompt, and the rows of each video that has it.

    x: the residual stream [rows, padded, width]. positions: [rows, padded]. cos, sin: [rows, 1, padded, head_dim].
    """

    videos: list[list[int]]
    prompts: PromptRows
    x: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor


def run_prompts(batch: Batch, x: Tensor) -> Tensor:
    """Run the prompts from the first block's inputs x [rows, padded, width] on; fills the caches.

    Returns the last hidden states after the final norm, [rows, width].
    """
    llm, padded, parts = batch.model.llm, batch.prompts.padded, list[PromptPart]()
    for videos, own in batch.prompts.apart():
        positions = own.positions()
        cos, sin = (a[:, None] for a in llm.rotary(positions, x.dtype))
        parts.append(PromptPart(videos, own, x[videos[0], -own.padded :], positions, cos, sin))
    for layer, block in enumerate(llm.blocks):
        results = zip(*[_run_block(batch, layer, block, part) for part in parts], strict=True)
        keys, values, outputs = (_joined(kind, parts, padded) for kind in results)
        batch.fill(layer, keys, values, outputs)
        if batch.observers.watch is not None:
            batch.observers.watch.layer(layer, -1, outputs[:, -1], _last_states(parts))
        batch.observers.prefilled(layer + 1, len(llm.blocks))
    return llm.norm(_last_states(parts))


def _run_block(batch: Batch, layer: int, block: Block, part: PromptPart) -> list[Tensor]:
    """Keys and values of a prompt, [rows, kv_heads, padded, head_dim], and MLP outputs, [rows, padded, width]."""
    settings, own, padded = batch.settings, part.prompts, part.prompts.padded
    results: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = rotate(q, part.cos, part.sin), rotate(k, part.cos, part.sin)
        results.extend((k, v))
        attended = []
        for first in range(0, padded, PREFILL_TOKENS):
            last = min(first + PREFILL_TOKENS, padded)
            mask = prompt_mask(own.lengths, padded, settings.window, settings.sinks, first, last)
            attended.append(attention(q[:, :, first:last], k[:, :, :last], v[:, :, :last], mask))
        return torch.cat(attended, 2)

    def mlp(x: Tensor) -> Tensor:
        results.append(torch.cat([block.mlp_branch(piece) for piece in x.split(PREFILL_TOKENS, 1)], 1))
        return results[-1]

    cross_kv = [(k[part.videos[0]], v[part.videos[0]]) for k, v in batch.places.cross_kv[layer : layer + 1]]
    part.x = block(batch.places.before_block(part.x, part.positions), attend, mlp, *cross_kv)
    return results


def _joined(kinds: Sequence[Tensor], parts: Sequence[PromptPart], padded: int = 1) -> Tensor:
    """Tensors of the parts, each [rows, ..., its padded, n], as one of the batch: [rows, ..., padded, n].

    A token's numbers lie together in memory, as blocks leave them: the rounding of sums over tokens depends on it.
    """
    if len(parts) == 1 and len(parts[0].videos) == 1:
        return kinds[0]
    rows, first = sum(len(video) for part in parts for video in part.videos), kinds[0]
    whole = first.new_zeros(rows, padded, *first.shape[1:-2], first.shape[-1]).movedim(1, -2)
    for part, kind in zip(parts, kinds, strict=True):
        for video in part.videos:
            whole[video, ..., padded - kind.shape[-2] :, :] = kind
    return whole


def _last_states(parts: Sequence[PromptPart]) -> Tensor:
    """The residual stream of each row's last token, [rows, width]."""
    return _joined([part.x[:, -1:] for part in parts], parts)[:, 0]
