"""Statistics of a real decode: replay by layer and frame, TAS by layer, similarity of MLP outputs."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayRule, ReplayStats
from fastcar_cli.pipeline.pipeline import VideoPipeline

PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


class _Similarity:
    """Cosine similarity of each MLP output with the one at the same position a frame earlier, mean by layer."""

    def __init__(self, layers: int, frame: int) -> None:
        self._frame = frame
        self._last: list[dict[int, Tensor]] = [{} for _ in range(layers)]
        self._values: list[list[float]] = [[] for _ in range(layers)]

    def layer(self, layer: int, t: int, mlp: Tensor, out: Tensor) -> None:
        if t < 0:
            return
        before, now = self._last[layer].get(t % self._frame), mlp.detach().float().clone()
        if before is not None:
            self._values[layer] += torch.cosine_similarity(before, now, dim=-1).flatten().tolist()
        self._last[layer][t % self._frame] = now

    def means(self) -> list[float | None]:
        return [statistics.fmean(values) if values else None for values in self._values]


def _run(pipe: VideoPipeline, prompt: str, seed: int, watch: Any = None) -> Decode:
    for _ in pipe.stream([prompt], [seed], watch=watch):
        pass
    assert pipe.decode is not None
    return pipe.decode


def profile_decode(pipe: VideoPipeline, prompt: str, seed: int) -> dict[str, Any]:
    """Decode the prompt dense (TAS, similarity, time) and at the pipeline's tau (replay, time), one token per pass.

    Of a list of thresholds the first number is the one that TAS is compared with.
    """
    rule = pipe.settings.rule
    dense = ReplayRule(tas_definition=rule.tas_definition)
    similarity = _Similarity(pipe.layers, pipe.tokens_per_frame)
    watched = _run(pipe.with_settings(rule=dense, keep_tas=True), prompt, seed, similarity)
    timed = _run(pipe.with_settings(rule=dense), prompt, seed)
    times: dict[str, Any] = {"executor": timed.executor_name, "why": timed.why, "dense_s": timed.clock.decode}
    assert watched.replay is not None and watched.replay.tas is not None
    scores = watched.replay.tas
    tas = scores[:, :, watched.replay.gateable(scores.shape[2])].cpu().numpy().reshape(pipe.layers, -1)
    stats = ReplayStats(0.0, 0.0, [0.0] * pipe.layers, [0.0] * pipe.frames)
    tau, warning = next((t for t in rule.tau.values if t < math.inf), math.inf), None
    if not rule.off:
        replaying = _run(pipe, prompt, seed)
        assert replaying.replay is not None
        stats = replaying.replay.stats(replaying.passed)
        times |= {"tau_s": replaying.clock.decode, "speedup": timed.clock.decode / replaying.clock.decode}
    if tau < math.inf and stats.eligible_ratio in (0.0, 1.0):
        did = "nothing" if stats.eligible_ratio == 0 else "everything that can"
        between = f"TAS of this run lies between {tas.min():.2f} and {tas.max():.2f}"
        warning = f"tau {tau:g} is inert: {did} replays; {between}"
    percentiles = [np.percentile(row, PERCENTILES).tolist() for row in tas]
    return {
        "prompt": prompt,
        "seed": seed,
        "tau": Tau((tau,)).plain(),
        "tas": rule.tas_definition,
        "times": times,
        "replay": asdict(stats),
        "tas_percentiles": [dict(zip((f"p{p}" for p in PERCENTILES), row, strict=True)) for row in percentiles],
        "above_tau": None if tau == math.inf else [float((row > tau).mean()) for row in tas],
        "mlp_similarity": similarity.means(),
        "warning": warning,
    }
