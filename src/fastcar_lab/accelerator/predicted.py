"""Decode speeds and watts that others published, predicted from data sheets of their accelerators.

One request, one core that is the whole accelerator, every MLP computed. What a preset takes from a publication and
what is assumed is written in the preset; where a constant is fitted to the speed itself, the speed predicts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastcar_cli.backends.fpga.constants import constants
from fastcar_cli.backends.fpga.emulator import Emulator
from fastcar_cli.backends.fpga.preset import Preset
from fastcar_cli.backends.fpga.summary import energy_of
from fastcar_cli.backends.fpga.workload import Workload


def _token(name: str, layers: int, width: int, mlp_width: int, heads: int, kv_width: int, vocabulary: int) -> Workload:
    """One token of one request, of a decoder that is no video model.

    MLP width is that of a SwiGLU of as many weights; the head counts as the depth transformer.
    """
    projections, head = 2 * width * (width + kv_width), vocabulary * width
    return Workload(
        name=name,
        layers=layers,
        rows=1,
        width=width,
        mlp_width=mlp_width,
        kv_width=kv_width,
        heads=heads,
        projection_weights=projections,
        depth_weights=head,
        depth_outputs=vocabulary,
        resident_weights=layers * (projections + 3 * width * mlp_width) + head,
        tokens_per_frame=2,
        frames=1,
        prompt=1,
    )


LLAMA2_7B = _token("LLaMA-2-7B", 32, 4096, 11008, 32, 4096, 32_000)
LLAMA3_8B = _token("LLaMA-3-8B", 32, 4096, 14336, 32, 1024, 128_256)
LLAMA32_1B = replace(
    # Keys' and values' columns are padded to those of a vector, the vocabulary to 2^17.
    _token("LLaMA-3.2-1B", 16, 2048, 8192, 32, 512, 131_072), projection_weights=3 * 2048**2
)  # fmt: skip
GLM_6B = _token("GLM-6B", 28, 4096, 13696, 32, 256, 65_024)
QWEN_7B = _token("Qwen-7B", 32, 4096, 11008, 32, 4096, 151_936)
GPT2_M = _token("GPT-2 medium", 24, 1024, 2731, 16, 1024, 50_257)
TERNARY = _token("ternary 0.73B", 24, 1536, 4096, 24, 1536, 32_000)


@dataclass(frozen=True)
class Point:
    """A published run and its source; None where a figure is held out, or not published.

    context: tokens attended to, an assumption where only a range is published. steps: decode passes a token of the
    published rate takes. waits: matrices of a layer whose first load waits for the step before, beside those that open
    projections, attention and MLP. first: milliseconds to the first token by tokens in. missing: why it is off.
    """

    work: str
    preset: str
    model: Workload
    context: int
    tokens_per_s: float | None
    watts: float | None
    source: str
    missing: str = ""
    steps: float = 1.0
    waits: int = 0
    first: tuple[tuple[int, float], ...] = ()
    held_out: bool = False


_HB = "Hummingbird, arXiv 2507.03308"
POINTS = (
    Point("arXiv 2502.10659", "kv260-llama", LLAMA2_7B, 512, 4.9, 6.57, "DATE 25, arXiv 2502.10659"),
    Point(
        "FlightLLM", "flightllm-u280", LLAMA2_7B, 512, 55.0, 45.0, "FPGA 24, figure 1, for steps at 128 and 512 keys",
        "its authors' simulator takes a load at 70 % of a channel's rate, a stream by the memory's timing has 92 %",
        waits=6,
    ),
    Point(
        "FlexLLM", "flexllm-u280", LLAMA32_1B, 1536, 1024 / 6.94, None, "arXiv 2601.15710, second hand: 1k in, 1k out",
        "norms, rotation and quantisers wait for whole vectors between its products, which explains a quarter of it",
    ),
    Point(
        "DFX, one card", "dfx-u280", GPT2_M, 64, 93.1, 45.0, "MICRO 22, 64 in and 64 out, one pass a token",
        steps=127 / 64,
    ),
    Point(
        "CODO", "codo-u280", GPT2_M, 64, 231.5, None, "ISCA 26",
        "a token of the prompt takes it 0.38 ms from 32 to 64 and 1.22 ms from 64 to 128, a constant array 0.6 in both",
        first=((32, 20.4), (64, 32.6), (128, 110.4)),
    ),
    Point("TeLLMe v2", "tellme-kv260", TERNARY, 512, 25.0, 4.8, "TeLLMe v2, beside PD-Swap"),
    Point(_HB, "hummingbird-kv260", LLAMA3_8B, 128, None, None, _HB, held_out=True),
    Point(_HB, "hummingbird-zcu104", LLAMA3_8B, 128, None, None, _HB, held_out=True),
    Point(_HB, "hummingbird-u250", LLAMA3_8B, 128, None, None, _HB, held_out=True),
    Point("llama-fpga", "llama-fpga-u250", LLAMA2_7B, 128, None, None, "an open RTL", held_out=True),
    Point("EdgeLLM", "edgellm-vcu128", GLM_6B, 256, None, None, "EdgeLLM (2025)", held_out=True),
    Point("EdgeLLM", "edgellm-vcu128", QWEN_7B, 256, None, None, "EdgeLLM (2025)", held_out=True),
    Point("StreamTensor", "streamtensor-u55c", GPT2_M, 64, None, None, "StreamTensor", held_out=True),
)  # fmt: skip


def points_of(preset: str) -> list[Point]:
    """What was published of the accelerator of a preset."""
    return [point for point in POINTS if point.preset == preset]


def _error(predicted: float, published: float | None) -> float | None:
    return None if published is None else predicted / published - 1


def predict(preset: Preset, point: Point) -> dict[str, Any]:
    """Predicted and published decode speed, watts and time to the first token; errors are shares of the published."""
    emulator = Emulator(preset, replace(point.model, prompt=point.context - 1))
    result = emulator.run(np.zeros((point.model.layers, 1, 1), dtype=bool), "static")
    fill = emulator.rates.latency + emulator.rates.length(emulator.projections.instructions[0])
    seconds = (result.cycles + point.waits * point.model.layers * fill) * preset.seconds_per_cycle
    moved = sum(t.weight_bytes + t.kv_bytes for t in result.components.values())
    speed, watts = 1 / (seconds * point.steps), energy_of(result, preset).activity / seconds
    first = [
        {
            "tokens": tokens,
            "predicted_ms": 1e3
            * Emulator(preset, replace(point.model, prompt=tokens)).prefill()
            * preset.seconds_per_cycle,
            "published_ms": published,
        }
        for tokens, published in point.first
    ]
    return {
        "work": point.work,
        "preset": preset.name,
        "model": point.model.name,
        "source": point.source,
        "context": point.context,
        "held_out": point.held_out,
        "fitted": [k for k, c in constants(preset).items() if c.kind == "fitted"],
        "predicted_tokens_per_s": speed,
        "published_tokens_per_s": point.tokens_per_s,
        "error": _error(speed, point.tokens_per_s),
        "predicted_watts": watts,
        "published_watts": point.watts,
        "watts_error": _error(watts, point.watts),
        "first_token": [row | {"error": _error(row["predicted_ms"], row["published_ms"])} for row in first],
        "moved_bytes": moved,
        "share_of_peak": moved / seconds / preset.peak / 1e9,
        "missing": point.missing,
    }
