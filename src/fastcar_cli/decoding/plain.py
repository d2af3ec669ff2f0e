"""The readable executor: a pass in plain torch, on any device, with every part open to look at.

It is the only one for watchers, profiling, other scores than TAS and other MLP backends, and what the others are
tested against.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.decoding.executor import HostExecutor
from fastcar_cli.decoding.replay import Replay, replays
from fastcar_cli.decoding.scores import BlockState, Scorer, noise
from fastcar_cli.decoding.state import Batch, Step
from fastcar_cli.models.decoder import rotate


class PlainExecutor(HostExecutor):
    """A pass in plain torch. What replays is decided on the host, a layer at a time."""

    name = "torch"

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self._past: Any = None
        self._scorer: Scorer | None = None
        if batch.replay is not None:
            self._scorer = Scorer(batch.replay.rule.score, batch.frame, batch.replay.first)
            layers = batch.model.spec.decoder.layers
            self._noise = noise(batch.uniforms, layers, batch.rows).to(batch.model.device)

    def _mark(self, part: str) -> None:
        if self._batch.mark is not None:
            self._batch.mark(part)

    @torch.inference_mode()
    def run(self, t: int, latent: Tensor) -> Tensor:
        """See `HostExecutor.run`."""
        batch, cache, replay = self._batch, self._batch.cache, self._batch.replay
        llm, spec, rows = batch.model.llm, batch.model.spec.decoder, batch.rows
        thresholds = replay.thresholds(t) if replay is not None and replay.eligible(t) else None
        scores = torch.full((spec.layers, rows), torch.nan, device=latent.device)
        x = batch.model.feedback_latent(latent)
        x = batch.doubled(x if batch.added is None else x + batch.added[t])
        self._mark("embedding")
        cos, sin = batch.cos[t][:, None, None], batch.sin[t][:, None, None]
        at, mask = cache.slots(), cache.mask()
        mask = None if mask is None else mask[:, None, None]
        for i, block in enumerate(batch.blocks):
            q, k, v = block.self_attn.project(block.input_layernorm(x)[:, None])
            self._mark("attention.projections")
            rotated, k = rotate(q, cos, sin), rotate(k, cos, sin)
            self._mark("attention.rotary")
            keys, values = cache.append(i, k, v, at)
            # One query a head: the query heads of a group stand in the place of query positions.
            grouped = rotated.view(rows, spec.kv_heads, -1, spec.head_dim)
            out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
            self._mark("attention.core")
            before, attended = x, block.self_attn.merge(out.view(rows, spec.heads, 1, spec.head_dim))[:, 0]
            x = before + attended
            self._mark("attention.output")
            if replay is not None and self._scorer is not None and replay.scored[i]:
                state = BlockState(
                    layer=i,
                    t=t,
                    tas=replay.rule.tas,
                    input=before,
                    query=q[:, :, 0],
                    rotated=rotated[:, :, 0],
                    aligned_key=cache.aligned[i, :, :, at.aligned_from],
                    attention=attended,
                    after=x,
                    replayable=replay.outputs[i, :, t % replay.frame],
                    noise=self._noise[t, i],
                    mlp=block.mlp_branch,
                )
                scores[i] = self._scorer(state)
                if batch.on_block is not None:
                    batch.on_block(state)
                if thresholds is not None:
                    replay.replayed[i, :, t] = replays(replay.gated(scores[i]), thresholds[i])
                self._mark("tas")
            began = time.perf_counter()
            added = self._mlp(i, t, x, replay)
            batch.clock.mlp += time.perf_counter() - began
            x = x + added
            self._mark("mlp.rest")
            if batch.watch is not None:
                batch.watch.layer(i, t, added, x)
        if replay is not None and thresholds is not None:
            replay.finish(t, scores)
        x = llm.norm(x)
        self._mark("heads")
        return x

    def _mlp(self, layer: int, t: int, x: Tensor, replay: Replay | None) -> Tensor:
        """What the MLP branch adds to x [rows, width]; rows that replay never reach the backend."""
        norm, backend = self._batch.blocks[layer].post_attention_layernorm, self._batch.backend
        if replay is None:
            return backend.mlp(layer, norm(x), None)
        slot = replay.outputs[layer, :, t % replay.frame]
        flags = replay.replayed[layer, :, t].tolist() if replay.eligible(t) else [False]
        if not any(flags):
            slot.copy_(backend.mlp(layer, norm(x), None))
        elif not all(flags):
            rows = [row for row, replayed in enumerate(flags) if not replayed]
            slot[rows] = backend.mlp(layer, norm(x[rows]), rows)
        return slot

    @torch.inference_mode()
    def draw(self, hidden: Tensor, index: int) -> Step:
        """See `HostExecutor.draw`."""
        batch = self._batch
        kept: list[Tensor] | None = [] if batch.keep_logits else None
        codes, batch.latent = batch.sampler.draw(hidden, index, self._logits, batch.given_at(index), kept)
        batch.codes[:, index] = codes
        self._mark("sampling")
        return Step(index, codes, hidden, torch.stack(kept) if kept else None)

    def _logits(self, x: Tensor, d: int) -> Tensor:
        """See `sampling.Logits`."""
        if d:
            self._mark("sampling")
        logits, self._past = self._batch.model.logits(x, d, self._past if d else None)
        self._mark("depth_transformer")
        return logits
