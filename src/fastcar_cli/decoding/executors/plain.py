"""The readable executor: a pass in plain torch, on any device.

Only it supports observers, scores other than TAS and other MLP backends; it is the reference of the others in tests.
"""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.decoding.batch import Batch
from fastcar_cli.decoding.executors.executor import HostExecutor, Passed
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.kv_cache import Reach
from fastcar_cli.decoding.replay.replay import replays, temporal_attention_score
from fastcar_cli.decoding.replay.scores import DEFAULT, BlockState, GateScorer, noise
from fastcar_cli.models.decoder import rotate


class PlainExecutor(HostExecutor):
    """Runs passes in plain torch. The host decides what replays, layer by layer. Input tokens run one after another, so
    each gives the same numbers as in a pass of its own (up to rounding if videos are at different tokens).
    """

    name = "torch"
    sequential = True

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self._scorer: GateScorer | None = None
        replay = batch.replay
        if replay is not None and (batch.observers.on_block is not None or replay.rule.score != DEFAULT):
            self._scorer = GateScorer(replay.rule.score, batch.frame, replay.first)
            layers = batch.model.spec.decoder.layers
            self._noise = noise(batch.draws.uniforms, layers, batch.rows).to(batch.model.device)
        # What observers and scorers remember of a rejected token can't be undone.
        self.most_inputs = 1 if self._scorer or batch.observers.watch else batch.cache.most_inputs

    def run(self, inputs: Inputs, latent: Tensor) -> Tensor:
        """See `HostExecutor.run`."""
        batch, hidden = self._batch, []
        restores = self._overwrites(inputs)
        scores = torch.full((len(batch.model.llm.blocks), batch.rows, inputs.count), torch.nan, device=latent.device)
        flags = torch.zeros(scores.shape, dtype=torch.bool, device=latent.device)
        for i in range(inputs.count):
            hidden.append(self._token(inputs[i], latent[:, i], scores[:, :, i], flags[:, :, i]))
        self._passed = Passed(flags, scores, restores, inputs.count)
        return torch.stack(hidden, 1)

    def _token(self, inputs: Inputs, latent: Tensor, scores: Tensor, flags: Tensor) -> Tensor:
        """Run one input token of every row: hidden [rows, width]; writes scores and flags [layers, rows]."""
        batch, replay, llm, places = self._batch, self._batch.replay, self._batch.model.llm, self._batch.places
        x = batch.model.feedback_latent(latent)
        if places.added is not None:
            x = x + inputs.of(places.added)[0]
        x = batch.prompts.doubled(x)[:, None]
        self._mark("embedding")
        cos, sin = (inputs.of(table)[0][:, None, None] for table in (places.cos, places.sin))
        step, t = batch.cache.step(inputs), inputs.tokens(batch.rows, x.device)[0]
        index = places.index(t)[:, None]
        thresholds = replay.thresholds(inputs)[0] if replay is not None and replay.reached(inputs) else None
        mask = None if step.mask is None else step.mask[:, None, None]
        for i, block in enumerate(llm.blocks):
            # Queries before and after rotation, and the output of the heads, each [rows, heads, 1, head_dim].
            before, heads = x, list[Tensor]()

            def attend(q: Tensor, k: Tensor, v: Tensor, i: int = i, heads: list[Tensor] = heads) -> Tensor:
                self._mark("attention.projections")
                rotated, k = rotate(q, cos, sin), rotate(k, cos, sin)
                self._mark("attention.rotary")
                keys, values = batch.cache.append(i, k, v, step)
                # One query per head: the query heads of a group are query positions here.
                grouped = rotated.view(len(q), keys.shape[1], -1, q.shape[-1])
                output = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask).reshape(q.shape)
                heads.extend((q, rotated, output))
                self._mark("attention.core")
                return output

            def mlp(x: Tensor, i: int = i, heads: list[Tensor] = heads, before: Tensor = before) -> Tensor:
                self._mark("attention.output")
                if replay is not None and replay.scored[i]:
                    if thresholds is not None or self._scorer is not None:
                        scores[i] = self._score(i, inputs, step, heads, before[:, 0], x[:, 0])
                    if thresholds is not None:
                        flags[i] = replays(replay.gated(scores[i]), thresholds[i])
                    self._mark("tas")
                began = time.perf_counter()
                added = self._mlp(i, t, flags[i], x[:, 0])
                batch.clock.mlp += time.perf_counter() - began
                if batch.observers.watch is not None:
                    assert inputs.common is not None
                    batch.observers.watch(i, inputs.common, added, x[:, 0] + added)
                return added[:, None]

            x = places.before_block(x, index)
            x = block(x, attend, mlp, *places.cross_kv[i : i + 1])
            self._mark("mlp.rest")
        x = llm.norm(x[:, 0])
        self._mark("heads")
        return x

    def _score(
        self, layer: int, inputs: Inputs, step: Reach, heads: list[Tensor], before: Tensor, after: Tensor
    ) -> Tensor:
        """The scores [rows] of a layer; `before`, `after`: the residual stream before and after attention."""
        batch, replay = self._batch, self._batch.replay
        assert replay is not None
        query, rotated = heads[0][:, :, 0], heads[1][:, :, 0]
        definition, key = replay.rule.tas_definition, batch.cache.aligned_key(layer, step)
        if self._scorer is None:
            return temporal_attention_score(rotated if definition == "attention" else query, key)
        t, block = inputs.common, batch.model.llm.blocks[layer]
        assert t is not None
        state = BlockState(
            layer=layer,
            t=t,
            tas_definition=definition,
            input=before,
            query=query,
            rotated=rotated,
            aligned_key=key,
            attention=block.self_attn.merge(heads[2])[:, 0],
            after=after,
            replayable=replay.outputs[layer, :, t % replay.frame],
            noise=self._noise[t, layer],
            mlp=block.mlp_branch,
        )
        scores = self._scorer(state)
        if batch.observers.on_block is not None:
            batch.observers.on_block(state)
        return scores

    def _mlp(self, layer: int, t: Tensor, flags: Tensor, x: Tensor) -> Tensor:
        """What the MLP branch adds to x [rows, width] at tokens t int64 [rows]; rows with `flags` replay."""
        batch, replay = self._batch, self._batch.replay
        norm = batch.model.llm.blocks[layer].post_attention_layernorm
        if replay is None:
            return batch.backend.mlp(layer, norm(x), None)
        outputs, place, replayed = replay.outputs[layer], t % replay.frame, flags.tolist()
        if not any(replayed):
            outputs[self._rows, place] = batch.backend.mlp(layer, norm(x), None).to(outputs.dtype)
        elif not all(replayed):
            computed = [row for row, flag in enumerate(replayed) if not flag]
            outputs[computed, place[computed]] = batch.backend.mlp(layer, norm(x[computed]), computed).to(outputs.dtype)
        return outputs[self._rows, place]
