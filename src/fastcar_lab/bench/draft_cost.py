"""What `--draft auto` costs where no draft is right, and until the first token: side by side with no drafts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import begin
from fastcar_cli.pipeline.pipeline import VideoPipeline

ORDERS = ("off", "auto", "auto", "off"), ("auto", "off", "off", "auto")
"""How prompts are decoded in turn, so that neither kind is always first, nor earlier on a machine that gets slower."""


def measure(
    pipe: VideoPipeline, prompts: Sequence[str], on_decode: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Decode every prompt four times: twice without drafts, twice with the pipeline's, which all count as wrong.

    Each decode chooses windows anew, as the first of a process does. The first token, from the prompt on, is that of
    one more video behind the decode: both kinds find memory that their own kind let go of, as the videos of a command
    do. Returns for `decode` and `first_token` the least and the median milliseconds of both kinds, the median ratio of
    the pairs that follow each other (`pairs`) and that of the sums (`sums`); and the passes with drafts of all decodes.
    `on_decode(done, total)` counts.
    """
    wrong = replace(pipe.settings.draft, accept=0.0)
    settings = {"off": replace(pipe.settings, draft=DraftSettings()), "auto": replace(pipe.settings, draft=wrong)}
    took: dict[str, dict[str, list[float]]] = {part: {"off": [], "auto": []} for part in ("decode", "first_token")}
    tries = 0
    for seed, prompt in enumerate(prompts):
        for i, kind in enumerate(ORDERS[seed % 2]):
            decode, _ = begin(pipe.model, [prompt], [seed], settings[kind])
            for _ in decode.steps():
                pass
            took["decode"][kind].append(decode.clock.decode * 1e3)
            tries += sum(made.taken > 1 for made in decode.drafter.passes)
            decode.release()
            began = time.perf_counter()
            decode, _ = begin(pipe.model, [prompt], [seed], settings[kind])
            next(decode.steps())
            took["first_token"][kind].append((time.perf_counter() - began) * 1e3)
            decode.release()
            on_decode(4 * seed + i + 1, 4 * len(prompts))
    return {"passes_with_drafts": tries} | {part: _compared(**times) for part, times in took.items()}


def _compared(off: list[float], auto: list[float]) -> dict[str, float]:
    return {
        "off_least_ms": min(off),
        "off_median_ms": statistics.median(off),
        "auto_least_ms": min(auto),
        "auto_median_ms": statistics.median(auto),
        "pairs": statistics.median(a / b for a, b in zip(auto, off, strict=True)),
        "sums": sum(auto) / sum(off),
    }
