"""How a decode pass is executed: one small protocol, behind which are `plain`, `native` and `graph`, and the prompts,
all tokens at once, which every executor begins with.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.decoding.kv_cache import prompt_mask
from fastcar_cli.decoding.state import Batch, Step
from fastcar_cli.models.decoder import rotate


class Executor(Protocol):
    """Decodes positions of a batch whose prompts have been run."""

    name: str

    def step(self, index: int) -> Step:
        """Decode position `index`: run token index - 1 through the decoder, draw the codes. In order, from 1 on.

        What is yielded may still be running on the device; its tensors are good until the next step.
        """


def distinct_tokens(ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Deduplicate prompt tokens by prefix.

    Tokens with the same prefix have the same hidden state, so each prefix is computed once. Takes left-padded ids
    [rows, longest] and lengths [rows]. Returns the flat positions to compute, and for every position the index of its
    prefix in that list; padding has index 0, its hidden states do not matter.
    """
    first: dict[tuple[int, ...], int] = {}
    back = torch.zeros_like(ids)
    wanted: list[int] = []
    longest = ids.shape[1]
    for row, length in enumerate(lengths.tolist()):
        prompt = tuple(ids[row, longest - length :].tolist())
        for end in range(1, length + 1):
            at = longest - length + end - 1
            if prompt[:end] not in first:
                first[prompt[:end]] = len(wanted)
                wanted.append(row * longest + at)
            back[row, at] = first[prompt[:end]]
    return torch.tensor(wanted), back.flatten()


@torch.inference_mode()
def prefill(batch: Batch) -> Tensor:
    """Run the prompts; returns the final-normed hidden state of the last position, [rows, width]."""
    llm, settings, lengths = batch.model.llm, batch.settings, batch.lengths
    x = llm.embed_tokens(batch.ids)
    if batch.prompt_added is not None and batch.aligned:
        x[:, -batch.aligned :] += batch.doubled(batch.prompt_added.expand(-1, batch.videos, -1).transpose(0, 1))
    cos, sin = (a[:, None] for a in llm.rotary(batch.positions(), x.dtype))
    mask = prompt_mask(lengths, batch.padded, settings.window, settings.sinks)
    groups = llm.spec.heads // llm.spec.kv_heads
    for i, block in enumerate(batch.blocks):
        q, k, v = block.self_attn.project(block.input_layernorm(x))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        batch.cache.prefill(i, k, v)
        k, v = (a.repeat_interleave(groups, 1) for a in (k, v)) if groups > 1 else (k, v)
        x = x + block.self_attn.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        added = block.mlp_branch(x)
        if batch.replay is not None:
            batch.replay.prefill(i, added)
        x = x + added
        if batch.watch is not None:
            batch.watch.layer(i, -1, added[:, -1], x[:, -1])
    return llm.norm(x[:, -1])


class HostExecutor(ABC):
    """An executor that returns to the host between the decoder and the depth transformer.

    `run` and `draw` are called in torch's inference mode, which the engine enters once for all tokens.
    """

    name: str

    def __init__(self, batch: Batch) -> None:
        self._batch = batch

    def prefill(self) -> Tensor:
        """Run the prompts; returns the final-normed hidden state of the last position, [rows, width]."""
        return prefill(self._batch)

    @abstractmethod
    def run(self, t: int, latent: Tensor) -> Tensor:
        """The decode pass with input token t, whose code vectors sum to latent [P, code_width]: hidden [rows, width].

        Appends to the KV cache, which the caller advances.
        """

    @abstractmethod
    def draw(self, hidden: Tensor, index: int) -> Step:
        """Draw the codes of a position from its hidden states [rows, width], into the batch."""

    def token_pass(self, t: int, latent: Tensor | None = None) -> Tensor:
        """`run`, and on to the next token."""
        batch = self._batch
        hidden = self.run(t, batch.input_latent(t) if latent is None else latent)
        batch.cache.advance()
        batch.passes = t + 1
        return hidden

    def step(self, index: int) -> Step:
        """See `Executor.step`."""
        hidden = self.token_pass(index - 1)
        began = time.perf_counter()
        step = self.draw(hidden, index)
        self._batch.clock.draw += time.perf_counter() - began
        return step
