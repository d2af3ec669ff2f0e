"""Prompts by torch: a layer at a time, and each by itself, so that what shares the batch changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fastcar_cli.decoding.batch import Batch
from fastcar_cli.decoding.cache.kv_cache import prompt_mask
from fastcar_cli.decoding.prompt_rows import PromptRows
from fastcar_cli.models.decoder import Block, Branch, attention, rotate

PREFILL_TOKENS = 512
"""Tokens of a prompt that attend, and whose MLPs run, at once: scores and what lies between products take far more
memory than hidden states."""


@dataclass
class PromptPart:
    """The prompt of one or more videos that have the same one, see `PromptRows.apart`.

    videos: the rows of each. x: the residual stream [rows, padded, width]. positions: [rows, padded]. cos, sin: [rows,
    1, padded, head_dim].
    """

    videos: list[list[int]]
    prompts: PromptRows
    x: Tensor
    positions: Tensor
    cos: Tensor
    sin: Tensor

    @property
    def rows(self) -> list[int]:
        """Rows of the first video."""
        return self.videos[0]

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor]:
        """See `PromptRows.distinct`."""
        return self.prompts.distinct()


Left = tuple[Tensor, Tensor, Tensor]
"""Keys and values of a prompt, [rows, kv_heads, padded, head_dim], and MLP outputs, [rows, padded, width]."""


def run_prompts(batch: Batch, x: Tensor, run: Callable[[Batch, int, Block, PromptPart], Left]) -> Tensor:
    """Run the prompts from the first block's inputs x [rows, padded, width] on; fills the caches.

    Returns the last hidden states after the final norm, [rows, width]. Videos with the same prompt share its run.
    """
    llm, padded, parts = batch.model.llm, batch.prompts.padded, list[PromptPart]()
    for videos, own in batch.prompts.apart():
        rows, positions = [batch.prompts.rows_of(video) for video in videos], own.positions()
        cos, sin = (a[:, None] for a in llm.rotary(positions, x.dtype))
        parts.append(PromptPart(rows, own, x[rows[0], -own.padded :], positions, cos, sin))
    for layer, block in enumerate(llm.blocks):
        left = [run(batch, layer, block, part) for part in parts]
        keys, values, outputs = (_joined(kind, parts, padded) for kind in zip(*left, strict=True))
        batch.fill(layer, keys, values, outputs)
        if batch.observers.watch is not None:
            batch.observers.watch.layer(layer, -1, outputs[:, -1], _last_states(parts))
        batch.observers.prefilled(layer + 1, len(llm.blocks))
    return llm.norm(_last_states(parts))


def in_pieces(branch: Branch, x: Tensor) -> Tensor:
    """What an MLP adds to the tokens x [rows, S, width], PREFILL_TOKENS of a row at once."""
    return torch.cat([branch(piece) for piece in x.split(PREFILL_TOKENS, 1)], 1)


def run_block(
    batch: Batch, layer: int, block: Block, part: PromptPart, mlp: Callable[[Branch, Tensor], Tensor] = in_pieces
) -> Left:
    """Run a block on a prompt; returns its keys, values and MLP outputs. `mlp` runs its branch."""
    settings, own, padded = batch.settings, part.prompts, part.prompts.padded
    kept: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = rotate(q, part.cos, part.sin), rotate(k, part.cos, part.sin)
        kept.extend((k, v))
        attended = []
        for first in range(0, padded, PREFILL_TOKENS):
            last = min(first + PREFILL_TOKENS, padded)
            mask = prompt_mask(own.lengths, padded, settings.window, settings.sinks, first, last)
            attended.append(attention(q[:, :, first:last], k[:, :, :last], v[:, :, :last], mask))
        return torch.cat(attended, 2)

    def branch(x: Tensor) -> Tensor:
        kept.append(mlp(block.mlp_branch, x))
        return kept[-1]

    cross_kv = [(k[part.rows], v[part.rows]) for k, v in batch.places.cross_kv[layer : layer + 1]]
    part.x = block(batch.places.before_block(part.x, part.positions), attend, branch, *cross_kv)
    keys, values, outputs = kept
    return keys, values, outputs


def _joined(kinds: Sequence[Tensor], parts: Sequence[PromptPart], padded: int = 1) -> Tensor:
    """What the parts have, each [rows, ..., its padded, n], of all rows of the batch: [rows, ..., padded, n].

    In memory a token's numbers lie together, as the blocks leave them: sums over tokens depend on it.
    """
    if len(parts) == 1 and len(parts[0].videos) == 1:
        return kinds[0]
    rows, first = sum(len(part.rows) * len(part.videos) for part in parts), kinds[0]
    whole = first.new_zeros(rows, padded, *first.shape[1:-2], first.shape[-1]).movedim(1, -2)
    for part, kind in zip(parts, kinds, strict=True):
        for video in part.videos:
            whole[video, ..., padded - kind.shape[-2] :, :] = kind
    return whole


def _last_states(parts: Sequence[PromptPart]) -> Tensor:
    """The residual stream of each row's last token, [rows, width]."""
    return _joined([part.x[:, -1:] for part in parts], parts)[:, 0]
