"""How a decode pass is executed: `Executor`, behind which are `plain`, `native` and `graph`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastcar_cli.decoding.batch import Batch, Step
from fastcar_cli.decoding.inputs import Inputs, Restore
from fastcar_cli.decoding.kv_cache import prompt_mask
from fastcar_cli.decoding.prompts import Prompts
from fastcar_cli.decoding.replay import Token
from fastcar_cli.models.decoder import Block, Branch, attention, rotate

PREFILL_TOKENS = 512
"""Tokens of a prompt that attend, and whose MLPs run, at once: scores and what lies between products take far more
memory than hidden states."""


class Passed(NamedTuple):
    """The input tokens of a pass: their scores [layers, rows, count], and what puts back what drafts overwrote."""

    tokens: Sequence[Token] = ()
    scores: Tensor = torch.empty(0)
    restores: Sequence[Restore] = ()


@dataclass
class Part:
    """The prompt of one or more videos that have the same one, see `Prompts.apart`.

    videos: the rows of each. x: the residual stream [rows, padded, width]. positions: [rows, padded]. cos, sin: [rows,
    1, padded, head_dim].
    """

    videos: list[list[int]]
    prompts: Prompts
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
        """See `Prompts.distinct`."""
        return self.prompts.distinct()

    @classmethod
    def of(cls, batch: Batch, videos: list[int], own: Prompts, x: Tensor) -> Part:
        """The prompt `own` of these videos of a batch, whose inputs are x [rows, padded, width]."""
        positions, rows = own.positions(), [batch.prompts.rows_of(video) for video in videos]
        cos, sin = (a[:, None] for a in batch.model.llm.rotary(positions, x.dtype))
        return cls(rows, own, x[rows[0], -own.padded :], positions, cos, sin)


def _joined(kinds: Sequence[Tensor], parts: Sequence[Part], padded: int = 1) -> Tensor:
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


def _last_states(parts: Sequence[Part]) -> Tensor:
    """The residual stream of each row's last token, [rows, width]."""
    return _joined([part.x[:, -1:] for part in parts], parts)[:, 0]


class Executor(ABC):
    """Decodes a batch, pass by pass: `prefill`, `draw` of position 0, then `step` and `commit` in turn.

    The methods are called in torch's inference mode, which the engine enters once for all passes.
    """

    name: str
    most_inputs = 1
    """Input tokens of a video that one pass can take."""
    sequential = False
    """Whether the inputs of a pass are run one after another, so that drafts save no time."""

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
        """Run the prompts, a layer at a time; returns the last hidden states after the final norm, [rows, width].

        Each prompt runs by itself, so that what shares the batch changes nothing, and once where videos share it.
        """
        batch, llm = self._batch, self._batch.model.llm
        x, padded = self._prompt_inputs(), batch.prompts.padded
        parts = [Part.of(batch, videos, own, x) for videos, own in batch.prompts.apart()]
        for layer, block in enumerate(llm.blocks):
            left = [self._run_prompt(layer, block, part) for part in parts]
            keys, values, outputs = (_joined(kind, parts, padded) for kind in zip(*left, strict=True))
            batch.fill(layer, keys, values, outputs)
            if batch.observers.watch is not None:
                batch.observers.watch.layer(
                    layer, -1, outputs[:, -1], _joined([p.x[:, -1:] for p in parts], parts)[:, 0]
                )
            batch.observers.prefilled(layer + 1, len(llm.blocks))
        return llm.norm(_joined([part.x[:, -1:] for part in parts], parts)[:, 0])

    def _run_prompt(self, layer: int, block: Block, part: Part) -> tuple[Tensor, Tensor, Tensor]:
        """Run a block; returns its keys and values [rows, kv_heads, padded, head_dim] and MLP outputs of the prompt."""
        settings, places, own, padded = self._batch.settings, self._batch.places, part.prompts, part.prompts.padded
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

        def mlp(x: Tensor) -> Tensor:
            kept.append(self._prompt_mlp(block.mlp_branch, x, part))
            return kept[-1]

        memory = [tuple(a[part.rows] for a in pair) for pair in places.memories[layer : layer + 1]]
        part.x = block(places.before_block(part.x, part.positions), attend, mlp, *memory)
        keys, values, outputs = kept
        return keys, values, outputs

    def _prompt_mlp(self, branch: Branch, x: Tensor, part: Part) -> Tensor:
        """What an MLP adds to the tokens of a prompt, x [rows, padded, width]."""
        return torch.cat([branch(piece) for piece in x.split(PREFILL_TOKENS, 1)], 1)

    def draw(self, hidden: Tensor, inputs: Inputs) -> Step:
        """Draw the positions behind the inputs from their hidden states [rows, count, width], into the batch."""
        batch, draws = self._batch, self._batch.draws
        drawn, t = [], inputs.common
        tokens = inputs.of_rows(batch.prompts.videos, hidden.device) if t is None else range(t, t + inputs.count)
        for i, token in enumerate(tokens):
            drawn.append(draws.draw(hidden[:, i], token + 1, self.logits))
        latents, logits = zip(*drawn, strict=True)
        draws.latent = torch.stack(latents, 1)
        self._mark("sampling")
        kept = [x for x in logits if x is not None]
        return Step(inputs, draws, hidden, torch.stack(kept, 2) if kept else None)

    @abstractmethod
    def step(self, inputs: Inputs) -> Step:
        """Run the input tokens through the decoder and draw the positions behind them."""

    def commit(self, inputs: Inputs, accepted: tuple[int, ...]) -> None:
        """Keep the first `accepted` inputs of each video, at least one, and take the others back.

        The replay rule learns from what is kept.
        """
        replay, passed, least, of_row = self._batch.replay, self._passed, min(accepted), self._rows
        if least < len(passed.tokens):
            of_row = self._rows.new_tensor(accepted * (len(self._rows) // len(accepted)))
            if passed.restores:
                numbers = torch.arange(1, len(passed.tokens), device=of_row.device)
                rejected = (numbers[:, None] >= of_row).nonzero(as_tuple=True)
                for restore in passed.restores:
                    restore(*rejected)
        if replay is None or not replay.learns:
            return
        for i, t in enumerate(passed.tokens[: max(accepted)]):
            if replay.eligible(t):
                replay.finish(t, passed.scores[:, :, i], None if i < least else of_row > i)

    def _overwrites(self, of_rows: Tensor) -> Sequence[Restore]:
        """What the input tokens int64 [count, rows] will overwrite; the first is final and needs no copy."""
        replay, drafts = self._batch.replay, of_rows[1:]
        if not len(drafts):
            return ()
        return [*self._batch.cache.kept(drafts), *(replay.kept(drafts) if replay is not None else ())]

    def logits(self, x: Tensor, d: int) -> Tensor:
        """See `sampling.Logits`."""
        if d:
            self._mark("sampling")
        logits, self._past = self._batch.model.logits(x, d, self._past if d else None)
        self._mark("depth_transformer")
        return logits

    def _mark(self, part: str) -> None:
        mark = self._batch.observers.mark
        if mark is not None:
            mark(part)


class HostExecutor(Executor):
    """An executor that returns to the host between the decoder and the depth transformer."""

    def _embed(self, codes: Tensor) -> Tensor:
        """Sums of code vectors, rounded as those of drawn codes are."""
        return self._batch.model.embed(codes)

    @abstractmethod
    def run(self, inputs: Inputs, latent: Tensor) -> Tensor:
        """Run the input tokens through the decoder: hidden states after the final norm, [rows, count, width].

        latent [P, count, code_width] are the sums of their code vectors. Appends to the caches, and to `_passed`.
        """

    def step(self, inputs: Inputs) -> Step:
        """See `Executor.step`."""
        hidden = self.run(inputs, self._batch.draws.input_latents(inputs, self._embed))
        began = time.perf_counter()
        step = self.draw(hidden, inputs)
        self._batch.clock.draw += time.perf_counter() - began
        return step
