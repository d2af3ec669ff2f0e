"""How a decode pass is executed: `Executor`, behind which are `plain`, `native` and `graph`."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastcar_cli.decoding.batch import Batch, Step
from fastcar_cli.decoding.executors.prefill import run_block, run_prompts
from fastcar_cli.decoding.inputs import Inputs, Restore
from fastcar_cli.decoding.replay.replay import Token


class Passed(NamedTuple):
    """The input tokens of a pass: their scores [layers, rows, count], and what puts back what drafts overwrote."""

    tokens: Sequence[Token] = ()
    scores: Tensor = torch.empty(0)
    restores: Sequence[Restore] = ()


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
        """Run the prompts; returns the last hidden states after the final norm, [rows, width]."""
        return run_prompts(self._batch, self._prompt_inputs(), run_block)

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
