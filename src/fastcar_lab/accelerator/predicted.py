"""Decode speeds and watts that others published, predicted from data sheets of their accelerators.

One request, one core that is the whole accelerator, every MLP computed. What a preset takes from a publication and
what is assumed is written in the preset; where a constant is fitted to the speed itself, the speed predicts nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fastcar_fpga.device import Constant, constants
from fastcar_fpga.emulator import Emulator, RunResult
from fastcar_fpga.preset import Preset, load_preset
from fastcar_fpga.summary import energy_of
from fastcar_fpga.workload import Workload


def _token(name: str, layers: int, width: int, mlp_width: int, heads: int, kv_width: int, vocabulary: int) -> Workload:
    """One token of one request, of a decoder that is no video model. MLP width is that of a SwiGLU of as many weights;
    the head counts as the depth transformer.
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


Unknown = Literal["requests", "steps", "scales", "context"]
"""What is not published of a design; points.py describes the values."""

_FEW, _LONG, _ROUND = 4, 284.0, 22


@dataclass(frozen=True)
class Point:
    """A published run and its source; None where a figure is not published."""

    work: str
    preset: str
    model: Workload
    context: int  # tokens attended to, an assumption where only a range is published
    tokens_per_s: float | None
    watts: float | None
    source: str
    missing: str = ""  # why it is off, or no prediction
    steps: float = 1.0  # decode passes a token of the published rate takes
    contexts: tuple[int, int] | None = None  # that range
    unknown: tuple[Unknown, ...] | None = None  # what its range is from; None: no prediction
    cards: int = 1  # in a ring
    beyond: bool = False  # what is fitted is fitted to other points
    first: tuple[tuple[int, float], ...] = ()  # milliseconds to the first token by tokens in
    held_out: bool = False  # the figures were read after the prediction
    most: float | None = None  # upper end of a published range, whose lower one is tokens_per_s
    luts: int | None = None  # of the design, where its watts are those of a report on the chip


_PROCESSORS, _LEAKAGE, _SWITCHING = 2.655 + 0.100, 0.604 / 230_400, 1.749 / (193_186 * 50)
"""Watts of a Zynq's processors with their memory controller, of each LUT of a chip, and of a used one per MHz with its
flip-flops, block RAM and DSP: a Vivado report of DB-ATCNet on a ZCU106 (ZU7EV, 193,186 LUT, 50 MHz), second hand.
"""
_HB, _SECOND = "Hummingbird, arXiv 2507.03308", "second hand"
_EDGE = f"arXiv 2407.21325, {_SECOND}; power of the board, measured"
_ALL: tuple[Unknown, ...] = ("requests", "steps")
_SHORT, _LONGER = (16, 256), (16, 512)
_FITTED = (
    "The design computes attention heads one after another. We fitted the time per head and "
    "`rest.seconds_per_step` to the speeds on one and two cards. A run has 127 passes, for 64 prompt and 64 new tokens."
)
_PROMPT = "We fitted this number and the size of the MAC array."
_DATAFLOW = "The number of memory ports that work at a time is not published."
POINTS = (
    Point("arXiv 2502.10659", "kv260-llama", LLAMA2_7B, 512, 4.9, 6.57, "DATE 25, arXiv 2502.10659", contexts=(1, 1024),
          unknown=_ALL, luts=78_000),
    Point(
        "FlightLLM", "flightllm-u280", LLAMA2_7B, 512, 55.0, 45.0, "FPGA 24, figure 1, contexts of 128 and 512 tokens",
        "The number of requests in flight per port is not published. The authors' simulator assumes that a load "
        "reaches 70 % of a channel's peak bandwidth. According to the memory's timing a load can reach 92 %.",
        contexts=(128, 512), unknown=("requests",)),
    Point("FlexLLM", "flexllm-u280", LLAMA32_1B, 1536, 1024 / 6.94, None,
          f"arXiv 2601.15710, {_SECOND}; 1,024 prompt tokens and 1,024 new tokens", unknown=("scales",)),
    Point("DFX, one card", "dfx-u280", GPT2_M, 64, 93.1, 45.0, "MICRO 22", _FITTED, steps=127 / 64),
    Point("DFX, two cards", "dfx-u280", GPT2_M, 64, 146.3, None, "MICRO 22", _FITTED, steps=127 / 64, cards=2),
    Point("DFX, four cards", "dfx-u280", GPT2_M, 64, 207.6, None, "MICRO 22", _FITTED, steps=127 / 64, cards=4,
          beyond=True),
    Point("CODO", "codo-u280", GPT2_M, 64, 231.5, None, "ISCA 26", f"{_DATAFLOW} {_PROMPT}",
          first=((32, 20.4), (64, 32.6), (128, 110.4))),
    Point("TeLLMe v2", "tellme-kv260", TERNARY, 512, 25.0, 4.8, "a comparison of TeLLMe v2 with PD-Swap", luts=98_303,
          missing="We fitted the number of ternary products per cycle."),
    Point(_HB, "hummingbird-kv260", LLAMA3_8B, 128, 4.8, 3.81, f"abstract of the paper; power from Vivado, {_SECOND}",
          contexts=_SHORT, unknown=_ALL, held_out=True, luts=26_000),
    Point(_HB, "hummingbird-zcu104", LLAMA3_8B, 128, 8.6, 7.09, f"abstract of the paper; power estimated, {_SECOND}",
          contexts=_SHORT, unknown=_ALL, held_out=True, luts=26_000),
    Point(_HB, "hummingbird-u250", LLAMA3_8B, 128, 19.4, None, _SECOND, contexts=_SHORT, unknown=_ALL, held_out=True),
    Point("llama-fpga", "llama-fpga-u250", LLAMA2_7B, 128, 18.0, None, "README of github.com/adamgallas/llama-fpga",
          contexts=_SHORT, unknown=_ALL, held_out=True, most=19.0),
    Point("EdgeLLM", "edgellm-vcu128", GLM_6B, 256, 90.0, 56.86, _EDGE, contexts=_LONGER, unknown=_ALL, held_out=True),
    Point("EdgeLLM", "edgellm-vcu128", QWEN_7B, 256, 42.5, None, _EDGE, contexts=_LONGER, unknown=_ALL, held_out=True,
          most=69.4),
    Point("StreamTensor", "streamtensor-u55c", GPT2_M, 64, 199.5, None, f"arXiv 2509.13694, {_SECOND}",
          f"{_DATAFLOW} We use the number that we fitted for CODO.", held_out=True, most=229.6),
)  # fmt: skip


def points_of(preset: str) -> list[Point]:
    """What was published of the accelerator of a preset."""
    return [point for point in POINTS if point.preset == preset]


def _error(predicted: float, published: float | None, most: float | None = None) -> float | None:
    """Of the nearest figure that is published."""
    return None if published is None else predicted / min(max(predicted, published), most or published) - 1


def chip_watts(preset: Preset, luts: int) -> float:
    """What a Vivado report counts of a Zynq: processors, leakage and logic, and neither memory nor the board."""
    assert preset.card.resources is not None
    return _PROCESSORS + _LEAKAGE * preset.card.resources.LUT + _SWITCHING * luts * preset.clock.value


def _share(model: Workload, cards: int) -> Workload:
    """What one of so many cards has of a model; vectors are whole."""
    parts = ("heads", "kv_width", "mlp_width", "projection_weights", "depth_weights", "depth_outputs")
    return replace(model, **{part: getattr(model, part) // cards for part in (*parts, "resident_weights")})


def _pass(preset: Preset, point: Point) -> tuple[float, RunResult]:
    """Seconds of a decode pass, and what a card does in it."""
    model = _share(point.model, point.cards)
    result = Emulator(preset, replace(model, prompt=point.context - 1)).run(
        np.zeros((model.layers, 1, 1), dtype=bool), "static"
    )
    gathers = 0.0
    if preset.ring and point.cards > 1:
        gathers = preset.ring.seconds(point.cards, model.width * preset.format.kv_bits / 8) * model.layers
    return result.cycles * preset.seconds_per_cycle + gathers, result


def _assumed(value: float, unit: str) -> Constant:
    return Constant(value=value, unit=unit, source="assumption: the other end", kind="assumption")


def span(preset: Preset, point: Point) -> tuple[float, float] | None:
    """Tokens a second with all that is unknown at its worst and at its best; None where that is no prediction."""
    if point.unknown is None:
        return None
    hbm: dict[str, Any] = {}
    chain, scales = preset.chain, preset.hbm.scales
    if "requests" in point.unknown:
        hbm["requests"] = _assumed(_FEW, "requests")
    if "scales" in point.unknown and scales:
        use = _assumed(_ROUND * scales.use.value, "cycles/output")
        hbm["latency"] = _assumed(round(_LONG * preset.clock.value / 1e3), "cycles")
        hbm["scales"] = scales.model_copy(update={"use": use})
    if "steps" in point.unknown:
        chain = load_preset("flightllm-u280").chain
    worst = preset.model_copy(update={"hbm": preset.hbm.model_copy(update=hbm), "chain": chain})
    short, long = point.contexts or (point.context, point.context)
    slow, fast = _pass(worst, replace(point, context=long))[0], _pass(preset, replace(point, context=short))[0]
    return 1 / (slow * point.steps), 1 / (fast * point.steps)


def predict(preset: Preset, point: Point) -> dict[str, Any]:
    """Predicted and published decode speed, watts and time to the first token; errors are shares of the published.

    low, high: tokens a second with all that is unknown at its worst and at its best. Watts are those of one card.
    """
    seconds, result = _pass(preset, point)
    moved = sum(t.weight_bytes + t.kv_bytes for t in result.components.values())
    speed, watts = 1 / (seconds * point.steps), energy_of(result, preset).activity / seconds
    low, high = span(preset, point) or (None, None)
    chip = None if point.luts is None else chip_watts(preset, point.luts)
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
        "beyond": point.beyond,
        "fitted": [k for k, c in constants(preset).items() if c.kind == "fitted"],
        "predicted_tokens_per_s": speed,
        "published_tokens_per_s": point.tokens_per_s,
        "published_most": point.most,
        "error": _error(speed, point.tokens_per_s, point.most),
        "low_tokens_per_s": low,
        "high_tokens_per_s": high,
        "unknown": ", ".join([*(["context"] if point.contexts else []), *(point.unknown or ())]),
        "predicted_watts": watts,
        "published_watts": point.watts,
        "watts_error": _error(watts, point.watts),
        "chip_watts": chip,
        "chip_error": None if chip is None else _error(chip, point.watts),
        "first_token": [row | {"error": _error(row["predicted_ms"], row["published_ms"])} for row in first],
        "moved_bytes": moved,
        "share_of_peak": moved / seconds / preset.peak / 1e9,
        "missing": point.missing,
    }
