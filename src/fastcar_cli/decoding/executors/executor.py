"""How a decode pass is executed: `Executor`, which `plain`, `native` and `graph` implement."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastcar_cli.decoding.batch import Batch, Step
from fastcar_cli.decoding.inputs import Inputs, Restore
from fastcar_cli.decoding.kv_cache import prompt_mask
from fastcar_cli.decoding.prompt_rows import PromptRows
from fastcar_cli.models.decoder import Block, attention, rotate

PREFILL_TOKENS = 512  # of a prompt that attend, and run their MLPs, at once: limits the memory of scores


class Passed(NamedTuple):
    """Results of a pass for `Executor.advance`: which MLPs replayed, bool, and scores float32, [layers, rows, count],
    or None; functions that restore the drafts' slots; how many tokens per video it ran, at least the inputs.
    """

    flags: Tensor | None = None
    scores: Tensor | None = None
    restores: Sequence[Restore] = ()
    ran: int = 1


class Executor(ABC):
    """Decodes a batch in inference mode: `prefill`, `draw` of position 0, then `advance` and `step` in turn."""

    name: str
    most_inputs = 1  # maximum input tokens per video and pass
    seconds: Mapping[int, float] | None = None  # of a pass by its number of inputs, if the host does not wait for each
    sequential = False  # whether the inputs of a pass are run one after another, so that drafts save no time

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._past: Any = None
        self._rows = torch.arange(batch.rows, device=batch.model.device)
        self._passed = Passed()

    def _prompt_inputs(self) -> Tensor:
        """Inputs of the first block for the tokens of the prompts, [rows, padded, width]."""
        batch, prompts = self._batch, self._batch.prompts
        x, added = batch.model.llm.embed_tokens(prompts.ids), batch.places.prompt_added
        if added is not None and prompts.aligned:
            x[:, -prompts.aligned :] += prompts.doubled(added.expand(-1, prompts.videos, -1).transpose(0, 1))
        return x

    def prefill(self) -> Tensor:
        """Run the prompts; returns the last hidden states after the final norm, [rows, width]."""
        return run_prompts(self._batch, self._prompt_inputs())

    def refresh(self, tokens: slice) -> None:
        """Reread the vectors added to these tokens; does nothing in an executor that reads `Places` in each pass."""
        return

    def draw(self, hidden: Tensor, inputs: Inputs) -> Step:
        """Sample the positions after the inputs from their hidden states [rows, count, width], into the batch."""
        draws = self._batch.draws
        tokens = inputs.tokens(inputs.videos, hidden.device)
        drawn = [draws.draw(hidden[:, i], t + 1, self.logits) for i, t in enumerate(tokens)]
        draws.latent = torch.stack([latent for latent, _ in drawn], 1)
        self._mark("sampling")
        logits = [x for _, x in drawn if x is not None]
        return Step(inputs, draws, hidden, torch.stack(logits, 2) if logits else None)

    @abstractmethod
    def step(self, inputs: Inputs) -> Step:
        """Run the input tokens through the decoder and sample the positions after them."""

    def advance(self, inputs: Inputs, accepted: tuple[int, ...], record: bool = True) -> None:
        """Make the first `accepted` inputs of each video final, at least one; restore what the others overwrote in the
        caches. Without `record` the decisions of an earlier pass stay.
        """
        replay, (flags, scores, restores, ran) = self._batch.replay, self._passed
        # A prefill may come next, after which there is nothing to restore.
        self._passed = Passed()
        if restores and min(accepted) < ran:
            of_rows = self._rows.new_tensor(accepted * (len(self._rows) // len(accepted)))
            numbers = torch.arange(1, ran, device=of_rows.device)
            rejected = (numbers[:, None] >= of_rows).nonzero(as_tuple=True)
            for restore in restores:
                restore(*rejected)
        if replay is not None and flags is not None and scores is not None:
            if ran > inputs.count:
                flags, scores = flags[..., : inputs.count], scores[..., : inputs.count]
            replay.advance(inputs, accepted, flags, scores, record)
        self._batch.draws.advance(inputs, accepted)

    def _overwrites(self, inputs: Inputs) -> Sequence[Restore]:
        """Copy what drafts will overwrite in the caches; the first input is final and needs no copy."""
        replay, cache = self._batch.replay, self._batch.cache
        if inputs.count == 1 or (replay is None and not cache.overwrites):
            return ()
        drafts = inputs.tokens(len(self._rows), self._rows.device)[1:]
        return [*cache.snapshot(drafts), *([] if replay is None else [replay.snapshot(drafts)])]

    def logits(self, x: Tensor, d: int) -> Tensor:
        """See `sampling.Logits`."""
        if d:
            self._mark("sampling")
        logits, self._past = self._batch.model.logits(x, d, self._past if d else None)
        self._mark("depth_transformer")
        return logits

    def _embed(self, codes: Tensor) -> Tensor:
        """Summed code vectors, rounded like those of sampled codes."""
        return self._batch.model.embed(codes)

    def _mark(self, part: str) -> None:
        mark = self._batch.observers.mark
        if mark is not None:
            mark(part)


class HostExecutor(Executor):
    """An executor that returns to the host between the decoder and sampling."""

    def step(self, inputs: Inputs) -> Step:
        """See `Executor`."""
        hidden = self.run(inputs, self._batch.draws.input_latents(inputs, self._embed))
        began = time.perf_counter()
        step = self.draw(hidden, inputs)
        self._batch.clock.draw += time.perf_counter() - began
        return step

    @abstractmethod
    def run(self, inputs: Inputs, latent: Tensor) -> Tensor:
        """Run the input tokens through the decoder: hidden states after the final norm, [rows, count, width].

        latent [P, count, code_width]: their summed code vectors. Appends to the caches, and sets `_passed`.
        """


@dataclass
class PromptPart:
    """A prompt, and the rows of each video that has it."""

    videos: list[list[int]]
    prompts: PromptRows
    x: Tensor  # the residual stream [rows, n, width] of the n tokens that are not reused
    positions: Tensor  # [rows, n]
    cos: Tensor  # [rows, 1, n, head_dim]
    sin: Tensor  # like `cos`


def run_prompts(batch: Batch, x: Tensor) -> Tensor:
    """Run the prompts from the first block's inputs x [rows, padded, width] on; fills the caches.

    Returns the last hidden states after the final norm, [rows, width].
    """
    llm, padded, parts = batch.model.llm, batch.prompts.padded, list[PromptPart]()
    for videos, own in batch.prompts.apart():
        positions = own.positions()[:, own.reused :]
        cos, sin = (a[:, None] for a in llm.rotary(positions, x.dtype))
        parts.append(PromptPart(videos, own, x[videos[0], own.reused - own.padded :], positions, cos, sin))
    for layer, block in enumerate(llm.blocks):
        results = zip(*[_run_block(batch, layer, block, part) for part in parts], strict=True)
        keys, values, outputs = (_joined(kind, parts, padded) for kind in results)
        batch.fill(layer, keys, values, outputs)
        if batch.observers.watch is not None:
            batch.observers.watch(layer, -1, outputs[:, -1], _last_states(parts))
        batch.observers.prefilled(layer + 1, len(llm.blocks))
    return llm.norm(_last_states(parts))


def _run_block(batch: Batch, layer: int, block: Block, part: PromptPart) -> list[Tensor]:
    """Keys and values of a prompt, [rows, kv_heads, padded, head_dim], and MLP outputs, [rows, padded, width]."""
    settings, own, padded, reused = batch.settings, part.prompts, part.prompts.padded, part.prompts.reused
    results: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k = rotate(q, part.cos, part.sin), rotate(k, part.cos, part.sin)
        if reused:
            old = (cache[layer, part.videos[0], :, :reused] for cache in (batch.cache.k, batch.cache.v))
            k, v = (torch.cat(both, 2) for both in zip(old, (k, v), strict=True))
        results.extend((k, v))
        attended = []
        for first in range(reused, padded, PREFILL_TOKENS):
            last = min(first + PREFILL_TOKENS, padded)
            mask = prompt_mask(own.lengths, padded, settings.window, settings.sinks, first, last)
            attended.append(attention(q[:, :, first - reused : last - reused], k[:, :, :last], v[:, :, :last], mask))
        return torch.cat(attended, 2)

    def mlp(x: Tensor) -> Tensor:
        results.append(torch.cat([block.mlp_branch(piece) for piece in x.split(PREFILL_TOKENS, 1)], 1))
        return results[-1]

    cross_kv = [(k[part.videos[0]], v[part.videos[0]]) for k, v in batch.places.cross_kv[layer : layer + 1]]
    part.x = block(batch.places.before_block(part.x, part.positions), attend, mlp, *cross_kv)
    return results


def _joined(kinds: Sequence[Tensor], parts: Sequence[PromptPart], padded: int = 1) -> Tensor:
    """Join tensors of the parts, each [rows, ..., its padded, n], to one of the batch: [rows, ..., padded, n].

    A token's numbers are adjacent in memory, as blocks leave them: the rounding of sums over tokens depends on it.
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
