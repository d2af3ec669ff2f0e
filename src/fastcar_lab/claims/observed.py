"""What can be seen of every token of a decoded video: decisions, all scores, and how much MLP outputs really changed.

The video is decoded once more with its codes and decisions given, in plain torch, so that looking
changes neither the timed run nor its decisions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from fastcar_cli.config.tau import OFF
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.scores import DEFAULT, SCORES, BlockState, GateScorer
from fastcar_cli.pipeline.pipeline import VideoPipeline

BY_TOKEN = ("change", "cosine", "elsewhere", "output", "input", "attention", "residual", "tas_reach")
BY_LAYER = ("up_max", "gate_max", "residual_min", "attention_max", "tas_max")


class _TokenRecorder:
    """Records every block of a decode: arrays by token [layers, rows, T*N - 1], extremes by layer."""

    def __init__(self, decode: Decode) -> None:
        layers, rows, passes = len(decode.model.llm.blocks), decode.rows, decode.draws.tokens - 1
        self._decode, self._frame = decode, decode.frame
        self._scorers = {name: GateScorer(name, decode.frame, decode.frame) for name in SCORES}
        self._past: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}
        self.scores = torch.full((len(SCORES), layers, rows, passes), torch.nan)
        self.seen = {name: torch.full((layers, rows, passes), torch.nan) for name in BY_TOKEN}
        self.extremes = {name: torch.zeros(layers) for name in BY_LAYER}
        self.extremes["residual_min"] += torch.inf

    def _put(self, state: BlockState, name: str, values: Tensor) -> None:
        self.seen[name][state.layer, :, state.t] = values.float().cpu()

    def _most(self, state: BlockState, name: str, value: Tensor) -> None:
        self.extremes[name][state.layer] = torch.maximum(self.extremes[name][state.layer], value.float().max().cpu())

    def __call__(self, state: BlockState) -> None:
        block = self._decode.model.llm.blocks[state.layer]
        norm = block.post_attention_layernorm
        x = norm(state.after)
        up, gate = block.mlp.up_proj(x), F.silu(block.mlp.gate_proj(x))
        truth = block.mlp.down_proj(gate * up)
        for i, scorer in enumerate(self._scorers.values()):
            score = scorer(replace(state, mlp=lambda _: truth))
            self.scores[i, state.layer, :, state.t] = score.float().cpu()
        self._put(state, "output", truth.float().norm(dim=-1))
        size = (state.after.float().square().sum(-1) + norm.eps * state.after.shape[-1]).sqrt()
        least = self.extremes["residual_min"]
        least[state.layer] = torch.minimum(least[state.layer], size.min().cpu())
        self._most(state, "up_max", up.abs())
        self._most(state, "gate_max", gate.abs())
        self._most(state, "attention_max", state.attention.float().norm(dim=-1))
        place, now = (state.layer, state.t % self._frame), (state.input, state.attention, state.after)
        if state.t >= self._frame:
            self._put(state, "change", (truth.float() - state.replayable.float()).norm(dim=-1))
            self._put(state, "cosine", torch.cosine_similarity(truth.float(), state.replayable.float(), dim=-1))
            replay = self._decode.replay
            assert replay is not None
            other = replay.outputs[state.layer, :, (state.t + self._frame // 2) % self._frame].float()
            self._put(state, "elsewhere", torch.cosine_similarity(truth.float(), other, dim=-1))
            for name, a, b in zip(("input", "attention", "residual"), now, self._past[place], strict=True):
                self._put(state, name, (a.float() - b.float()).norm(dim=-1))
            d, groups = state.rotated.shape[-1], state.rotated.shape[1] // state.aligned_key.shape[1]
            keys = state.aligned_key.float().norm(dim=-1).repeat_interleave(groups, 1)
            reach = (state.rotated.float().norm(dim=-1) * keys).mean(-1) / d**0.5
            self._put(state, "tas_reach", reach)
            self._most(state, "tas_max", reach)
        self._past[place] = (now[0].clone(), now[1].clone(), now[2].clone())


def codes(pipe: VideoPipeline) -> dict[str, NDArray[Any]]:
    """Of the last video of a pipeline: `replayed` bool [layers, rows, T*N - 1], and `codes` int16 [T*N, depth] (int32
    where there are more than 32,768).
    """
    decode = pipe.decode
    assert decode is not None
    shape = (len(decode.model.llm.blocks), decode.rows, decode.draws.tokens - 1)
    replayed = np.zeros(shape, bool) if decode.replay is None else decode.replay.replayed.cpu().numpy()
    integers = np.int16 if decode.model.spec.codes <= 2**15 else np.int32
    return {"replayed": replayed, "codes": decode.codes[0].cpu().numpy().astype(integers)}


def observed(decode: Decode) -> dict[str, NDArray[Any]]:
    """Of every token of a decode [layers, rows, T*N - 1], NaN in the first frame: `scores` float32 [scores, layers,
    rows, T*N - 1] in the order of `names`; `change`, the norm of what a replay would be wrong by (of the true output
    less what the cache holds), and `cosine` of both; `elsewhere`, the cosine with the output used half a frame away,
    which is another place's; `output`, the true output's norm; norms of the change since the aligned token of the
    block's `input`, of what `attention` added and of the `residual` stream that the MLP reads; `tas_reach`, TAS were
    query and key parallel.

    And by layer, over all tokens: largest numbers of W_up x (`up_max`) and silu(W_gate x) (`gate_max`), largest
    attention output (`attention_max`) and `tas_reach` (`tas_max`), smallest length of the residual stream
    (`residual_min`, with the norm's epsilon).
    """
    rule = replace(decode.settings.rule, tau=OFF, target=None, score=DEFAULT)
    settings = replace(decode.settings, rule=rule, draft=DraftSettings(), keep_tas=True, executor="torch")
    again = Decode.of(decode.model, decode.prompts, settings, decode.draws.uniforms[:, : decode.draws.tokens])
    assert again.replay is not None
    if decode.replay is not None:
        again.replay.force(decode.replay.replayed)
    recorder = _TokenRecorder(again)
    again.observers.on_block = recorder
    for _ in again.steps(decode.codes):
        pass
    tensors = {"scores": recorder.scores, **recorder.seen, **recorder.extremes}
    return {"names": np.array(list(SCORES)), **{name: values.numpy() for name, values in tensors.items()}}
