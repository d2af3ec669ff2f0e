"""Whole videos with drafts on a GPU: what they bring, and how far their codes are from those of one token a pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import Decode, begin
from fastcar_cli.decoding.executors.graph import GraphExecutor
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.common import pipeline_of


def whole_videos(
    model: str, dtype: str, device: str, prompts: Sequence[str], windows: Sequence[int], frames: int, capture: bool
) -> dict[str, Any]:
    """Decode prompts (seeds from 0) with one token a pass, then with `jacobi` drafts of each window.

    frames: of codes, 0: all. Returns `videos` and a line for each window: `ms` a token without compiling and capturing,
    `times` as fast as one token a pass, `tokens_per_pass`, `equal`, how many videos have the codes of one token a pass,
    and `differing`, the share of all codes that differ. Raises RequestError for a model that can't be loaded.
    """
    pipe = pipeline_of(model, runtime__device=device, runtime__dtype=dtype, runtime__executor="graph")
    settings = replace(pipe.settings, frames=frames or pipe.settings.frames)
    lines: list[dict[str, Any]] = []
    alone: list[torch.Tensor] = []
    for window in dict.fromkeys((1, *windows)):
        draft = DraftSettings("jacobi", window) if window > 1 else DraftSettings()
        codes, seconds, tokens, passes = [], 0.0, 0, 0
        for seed, prompt in enumerate(prompts):
            decode = _decoded(pipe, prompt, seed, replace(settings, draft=draft), capture)
            codes.append(decode.codes.cpu())
            seconds += decode.clock.decode
            tokens += decode.done
            passes += len(decode.drafter.passes)
        alone = alone or codes
        pairs = list(zip(codes, alone, strict=True))
        lines.append({
            "window": window,
            "ms": seconds / tokens * 1e3,
            "tokens_per_pass": tokens / passes,
            "equal": sum(bool((a == b).all()) for a, b in pairs),
            "differing": sum(float((a != b).float().mean()) for a, b in pairs) / len(pairs),
        })  # fmt: skip
    return {"videos": len(prompts), "lines": [line | {"times": lines[0]["ms"] / line["ms"]} for line in lines]}


def _decoded(pipe: VideoPipeline, prompt: str, seed: int, settings: DecodeSettings, capture: bool) -> Decode:
    decode, _ = begin(pipe.model, [prompt], [seed], settings)
    with torch.inference_mode():
        decode.executor = GraphExecutor(decode, settings.draft.fixed, capture)
    return decode.run()
