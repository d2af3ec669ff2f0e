"""Decode speeds that others published, predicted from their own figures: a check of the emulator that nobody fitted.

One request, one core that is the whole accelerator, every MLP computed. What a preset takes from a publication (clock,
DSP, bits a weight, share of the bandwidth reached) and what is assumed is written in the preset.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fastcar_cli.backends.fpga.emulator import Emulator
from fastcar_cli.backends.fpga.preset import Preset
from fastcar_cli.backends.fpga.workload import Workload

CONTEXT = 512
"""Tokens attended to: an assumption, as the publications give a range. A 7B model's keys and values of 512 tokens in
8 bit are 4 % of its weights in 4 bit."""


def _token(name: str, layers: int, width: int, mlp_width: int, heads: int, vocabulary: int) -> Workload:
    """One token of one request after `CONTEXT` - 1 others, of a decoder that is no video model.

    MLP width is that of a SwiGLU of as many weights; the head counts as the depth transformer.
    """
    projections, head = 4 * width * width, vocabulary * width
    return Workload(
        name=name,
        layers=layers,
        rows=1,
        width=width,
        mlp_width=mlp_width,
        kv_width=width,
        heads=heads,
        projection_weights=projections,
        depth_weights=head,
        depth_outputs=vocabulary,
        resident_weights=layers * (projections + 3 * width * mlp_width) + head,
        tokens_per_frame=2,
        frames=1,
        prompt=CONTEXT - 1,
    )


LLAMA2_7B = _token("LLaMA-2-7B", 32, 4096, 11008, 32, 32_000)
GPT2_345M = _token("GPT-2 345M", 24, 1024, 2731, 16, 50_257)


@dataclass(frozen=True)
class Point:
    """A published decode speed in tokens a second, and its source."""

    work: str
    model: Workload
    tokens_per_s: float
    source: str


POINTS = {
    "flightllm-u280": Point("FlightLLM", LLAMA2_7B, 55.0, "FlightLLM (FPGA 24), as AccLLM quotes it"),
    "dfx-u280": Point("DFX", GPT2_345M, 185.0, "DFX (MICRO 22)"),
    "kv260-llama": Point("LLaMA-2-7B on a KV260", LLAMA2_7B, 5.0, "arXiv 2502.10659: around 5 tokens a second"),
}
"""By the preset that predicts it."""


def predict(preset: Preset, point: Point) -> dict[str, Any]:
    """Predicted and published decode speed, and the bound by the bandwidth the publication says it reaches."""
    result = Emulator(preset, point.model).run(np.zeros((point.model.layers, 1, 1), dtype=bool), "static")
    seconds = result.cycles * preset.seconds_per_cycle
    moved = sum(t.weight_bytes + t.kv_bytes for t in result.components.values())
    rate = preset.bytes_per_cycle / preset.seconds_per_cycle
    return {
        "work": point.work,
        "model": point.model.name,
        "source": point.source,
        "published_tokens_per_s": point.tokens_per_s,
        "predicted_tokens_per_s": 1 / seconds,
        "error": 1 / seconds / point.tokens_per_s - 1,
        "bandwidth_bound_tokens_per_s": rate / moved,
    }
