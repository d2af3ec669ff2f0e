"""Statistics of a real decode: replay by layer and frame, TAS by layer, similarity of MLP outputs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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
        self._sum = [0.0] * layers
        self._count = [0] * layers

    def layer(self, layer: int, t: int, mlp: Tensor, out: Tensor) -> None:
        if t < 0:
            return
        position = t % self._frame
        before = self._last[layer].get(position)
        now = mlp.detach().float().clone()
        if before is not None:
            self._sum[layer] += float(torch.cosine_similarity(before, now, dim=-1).sum())
            self._count[layer] += len(now)
        self._last[layer][position] = now

    def means(self) -> list[float | None]:
        return [s / n if n else None for s, n in zip(self._sum, self._count, strict=True)]


@dataclass(frozen=True)
class DecodeProfile:
    """A dense run (TAS, similarity) and a run at tau (replay), both of the same prompt and seed.

    tas [layers, values]; times: seconds of both runs as `generate` decodes, a token a pass.
    """

    prompt: str
    seed: int
    tau: float
    definition: str
    tas: NDArray[np.float32]
    similarity: list[float | None]
    replay: ReplayStats
    times: dict[str, Any]

    @property
    def warning(self) -> str | None:
        """A sentence where the threshold does nothing, or everything."""
        if self.tau == math.inf:
            return None
        if self.replay.eligible_ratio in (0.0, 1.0):
            low, high = float(self.tas.min()), float(self.tas.max())
            did = "nothing" if self.replay.eligible_ratio == 0 else "everything that can"
            return f"tau {self.tau:g} is inert: {did} replays; TAS of this run lies between {low:.2f} and {high:.2f}"
        return None

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        percentiles = [np.percentile(row, PERCENTILES) for row in self.tas]
        return {
            "prompt": self.prompt,
            "seed": self.seed,
            "tau": Tau((self.tau,)).plain(),
            "tas": self.definition,
            "times": self.times,
            "replay": asdict(self.replay),
            "tas_percentiles": [
                {f"p{p}": float(v) for p, v in zip(PERCENTILES, row, strict=True)} for row in percentiles
            ],
            "above_tau": None if self.tau == math.inf else [float((row > self.tau).mean()) for row in self.tas],
            "mlp_similarity": self.similarity,
            "warning": self.warning,
        }


def _run(pipe: VideoPipeline, prompt: str, seed: int, watch: Any = None) -> Decode:
    for _ in pipe.stream([prompt], [seed], watch=watch):
        pass
    assert pipe.decode is not None
    return pipe.decode


def profile_decode(pipe: VideoPipeline, prompt: str, seed: int) -> DecodeProfile:
    """Decode the prompt dense and at the pipeline's tau. A list of thresholds counts as its first number."""
    rule = pipe.settings.rule
    dense = pipe.with_settings(rule=ReplayRule(tas_definition=rule.tas_definition), keep_tas=True)
    similarity = _Similarity(pipe.layers, pipe.tokens_per_frame)
    first = _run(dense, prompt, seed, similarity)
    timed = _run(pipe.with_settings(rule=ReplayRule(tas_definition=rule.tas_definition)), prompt, seed)
    times: dict[str, Any] = {"executor": timed.executor_name, "why": timed.why, "dense_s": timed.clock.decode}
    assert first.replay is not None and first.replay.tas is not None
    scores = first.replay.tas
    tas = scores[:, :, first.replay.gateable(scores.shape[2])].cpu().numpy().reshape(pipe.layers, -1)
    stats = ReplayStats(0.0, 0.0, [0.0] * pipe.layers, [0.0] * pipe.frames)
    if not rule.off:
        second = _run(pipe, prompt, seed)
        assert second.replay is not None
        stats = second.replay.stats(second.passed)
        times |= {"tau_s": second.clock.decode, "speedup": timed.clock.decode / second.clock.decode}
    return DecodeProfile(
        prompt=prompt,
        seed=seed,
        tau=next((t for t in rule.tau.values if t < math.inf), math.inf),
        definition=rule.tas_definition,
        tas=tas,
        similarity=similarity.means(),
        replay=stats,
        times=times,
    )
