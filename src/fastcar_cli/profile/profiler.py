"""Times the parts of one decode step, in the engine and at any context length.

The engine marks the end of each part, and hooks mark the modules of an MLP. A whole step is also timed without marks.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fastcar_cli.checkpoints.memory_plan import BASE, Demand, MemoryPlan, gib, make_plan
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.executors import native
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.checkpoint import DTYPES, empty_network, ready
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.profile.machine import Machine, Stream, seconds_of
from fastcar_cli.system.device import synchronise

LAYER_PARTS = ("attention.", "mlp.", "tas")
"""Parts that every layer has, scaled to the full depth if fewer layers run."""

BUDGET = 10 * 2**30  # maximum bytes of host memory for a profile with random weights
SMALL = 2**29  # maximum bytes of weights of a model that a dry run loads to time its steps


def parse_lengths(text: str, option: str = "seq") -> list[int]:
    """Parse `2k,4096,0.5k` to numbers of tokens. Raises RequestError for anything else."""
    lengths = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(k?)\s*", part, re.IGNORECASE)
        value = float(match[1]) * (1024 if match[2] else 1) if match else 0.0
        if value < 1 or value != int(value) or value > 2**20:
            allowed = "1 to 1024k tokens, such as 2k,4096,0.5k"
            raise RequestError(f"{part.strip()!r} is not a length", key=option, value=text, allowed=allowed)
        lengths.append(int(value))
    return lengths


@dataclass(frozen=True)
class Shape:
    """The model that runs: it has `layers` layers instead of `spec.decoder.layers`."""

    network: Network
    spec: Spec
    layers: int
    random: bool

    @property
    def scale(self) -> float:
        """All layers divided by the layers that run."""
        return self.spec.decoder.layers / self.layers


def plan_steps(
    spec: Spec, dtype: str, device: str, rows: int, longest: int, passes: int = 64, random: bool = True
) -> tuple[MemoryPlan, int]:
    """The memory of `decode_from` at `longest` tokens, and the number of layers: with random weights as many as fit.
    Raises RequestError if none fits.
    """

    def plan(layers: int) -> MemoryPlan:
        network = empty_network(replace(spec, decoder=replace(spec.decoder, layers=layers)))
        prompt, _, frames = _extent(spec, longest, passes, True)
        demand = Demand(rows, frames, prompt, replaying=layers)
        return make_plan(network, WeightFormat(dtype, DTYPES[dtype]), demand, device)

    layers = spec.decoder.layers
    one, two = plan(1), plan(2)
    free = int(0.7 * one.available)
    free = free if device.startswith("cuda") else min(BUDGET, free)
    if random:
        layers = min(layers, 1 + (free - one.needed) // (two.needed - one.needed))
    if layers < 1:
        hint = ("use a smaller ", Key("seq"), ", fewer ", Key("rows"), ", or ", Key("dtype"), " bfloat16")
        said = f"{one.arithmetic()} = {gib(one.needed)}, but {gib(free)} are free"
        raise RequestError(f"one layer at {longest} tokens does not fit the memory: {said}", hint=hint)
    chosen = plan(layers)
    # The machine is measured first, in memory that is freed before the model is made.
    probe = max(0, BASE + Stream.bytes_on(device) - chosen.needed)
    return replace(chosen, base=chosen.base + probe), layers


def random_shape(spec: Spec, dtype: str, device: str, layers: int) -> Shape:
    """A network of the true widths with random weights and `layers` layers."""
    network = empty_network(replace(spec, decoder=replace(spec.decoder, layers=layers)))
    stored, shared = WeightFormat(dtype, DTYPES[dtype]).on(network), network.shared()
    shapes = {name: like.shape for name, like in network.state_dict().items() if name not in shared}
    # Sampling billions of random numbers would take longer than measuring.
    random = {k: random_tensor(k, shape, stored.float_of(k), 0, 2**20, device) for k, shape in shapes.items()}
    random |= {name: random[first] for name, first in shared.items()}
    network.load_state_dict(random, assign=True)
    return Shape(ready(network, torch.device(device)), spec, layers, True)


def random_tensor(
    key: str, shape: torch.Size, dtype: torch.dtype, seed: int, drawn: int = 2**22, device: str = "cpu"
) -> Tensor:
    """A random parameter: norms 1, biases 0, matrices of about `drawn` different numbers for outputs of order one."""
    if len(shape) == 1:
        return torch.full(shape, 1.0 if key.endswith("weight") else 0.0, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(seed + zlib.crc32(key.encode()))
    scale = 1.0 if "embed_tokens" in key else shape[1:].numel() ** -0.5
    rows = min(shape[0], max(1, drawn // shape[1:].numel()))
    block = (torch.randn(rows, *shape[1:], generator=generator) * scale).to(device, dtype)
    whole = torch.empty(shape, dtype=dtype, device=device)
    for piece in whole.split(rows):
        piece.copy_(block[: len(piece)])
    return whole


@contextlib.contextmanager
def _marked(decode: Decode) -> Iterator[dict[str, float]]:
    """Time the parts of a plain torch step in the block; yields a dict that gets the seconds at its end."""
    network, seconds = decode.model, dict[str, float]()
    device = network.device
    marks: list[tuple[str, Any]] = []
    handles: list[Any] = []

    def mark(name: str) -> None:
        """Mark the end of a part; on a GPU with an event."""
        if device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            marks.append((name, event))
        else:
            synchronise(device)
            marks.append((name, time.perf_counter()))

    def before(module: nn.Module, name: str) -> None:
        handles.append(module.register_forward_pre_hook(lambda *_: mark(name)))

    def after(module: nn.Module, name: str) -> None:
        handles.append(module.register_forward_hook(lambda *_: mark(name)))

    for block in network.llm.blocks:
        after(block.input_layernorm, "attention.norm")
        after(block.post_attention_layernorm, "mlp.norm")
        after(block.mlp.up_proj, "mlp.gate_up")
        before(block.mlp.down_proj, "mlp.activation")
        after(block.mlp.down_proj, "mlp.down")
    if network.depth is not None:
        before(network.depth.classifier_mlp, "depth_transformer")
        after(network.depth.classifier_mlp, "heads")
    elif network.lm_head is not None:
        after(network.lm_head, "heads")
    decode.observers.mark = mark
    try:
        mark("begin")
        yield seconds
        mark("python")
    finally:
        decode.observers.mark = None
        for handle in handles:
            handle.remove()
    synchronise(device)
    for (_, earlier), (name, now) in pairwise(marks):
        elapsed = earlier.elapsed_time(now) / 1e3 if device.type == "cuda" else now - earlier
        seconds[name] = seconds.get(name, 0.0) + elapsed


@dataclass(frozen=True)
class Measured:
    """Seconds of one step: of its parts (with marks), of the whole step (without), and the relative spread of these."""

    parts: dict[str, float]
    whole: float
    spread: float


def tokens_of(window: int, accept: float) -> float:
    """Mean number of tokens that a pass of W inputs makes final if each draft is accepted with this probability."""
    return sum(accept**i for i in range(window))


def decode_of(network: Network, rows: int, prompt: int, frames: int, **settings: Any) -> Decode:
    """A decode of dummy prompts, in guided pairs if `rows` is even; `settings` are fields of DecodeSettings."""
    spec = network.spec
    guided = spec.layout.guided and rows % 2 == 0
    noise = torch.rand(rows // 2 if guided else rows, frames * spec.tokens_per_frame, spec.frame_spec.depth)
    sampling = SamplingSettings(cfg=3.0 if guided else 1.0)
    chosen = DecodeSettings(frames=frames, sampling=sampling, **settings)
    return Decode.of(network, [[1] * prompt] * rows, chosen, noise)


def _extent(spec: Spec, seq: int, passes: int, aligned: bool) -> tuple[int, int, int]:
    """Prompt tokens, the first position to decode after `seq` tokens, and the frames that have room for the passes."""
    layout = spec.layout
    text = layout.prefix or min(12, max(1, seq - 1))
    first = max(1, seq - text, layout.stride + 1 if aligned else 1)
    return text, first, -(-(first + passes + 1) // layout.stride)


@contextlib.contextmanager
def decode_from(
    shape: Shape, rows: int, seq: int, passes: int, *, aligned: bool = True, **settings: Any
) -> Iterator[tuple[Decode, Iterator[Any]]]:
    """A decode with `seq` tokens of context, and its next `passes`; with `aligned` all have an aligned token."""
    text, first, frames = _extent(shape.spec, seq, passes, aligned)
    decode = decode_of(shape.network, rows, text, frames, **settings)
    try:
        yield decode, decode.steps(first=first)
    finally:
        # A decode and its executor refer to each other: without this the caches wait for the garbage collector.
        decode.release()


_NEVER = Tau((1e30,))  # a threshold that no score exceeds, but that every score is compared with


def measure_step(
    shape: Shape, rows: int, seq: int, *, repeats: int, tau: Tau = OFF, scored: bool = False, executor: str = "torch"
) -> Measured:
    """Median seconds of a step with `seq` tokens of context, whole and by part; `scored` computes TAS for any tau."""
    device, warm, timed = shape.network.device, 2, executor == "native"
    # Native kernels only score rows that may replay, and store no scores.
    rule = ReplayRule(_NEVER if timed and scored and tau.off else tau)
    settings: dict[str, Any] = {"rule": rule, "keep_tas": scored and not timed, "executor": executor}
    whole: list[float] = []
    parts: dict[str, list[float]] = {}
    with decode_from(shape, rows, seq, 2 * repeats + warm + 1, aligned=scored, **settings) as (decode, steps):
        for _ in range(warm):
            next(steps)
        for _ in range(repeats):
            synchronise(device)
            began = time.perf_counter()
            next(steps)
            synchronise(device)
            whole.append(time.perf_counter() - began)
            with _clocked(decode) if timed else _marked(decode) as seconds:
                next(steps)
            for name, value in seconds.items():
                parts.setdefault(name, []).append(value)
    spread = (max(whole) - min(whole)) / statistics.median(whole) if len(whole) > 1 else 0.0
    return Measured({k: statistics.median(v) for k, v in parts.items()}, statistics.median(whole), spread)


@contextlib.contextmanager
def _clocked(decode: Decode) -> Iterator[dict[str, float]]:
    """Like `_marked`, for the parts that the native kernels time; attention is a block without its MLP."""
    seconds, before = dict[str, float](), replace(decode.clock)
    yield seconds
    mlp, draw = decode.clock.mlp - before.mlp, decode.clock.draw - before.draw
    attention = decode.clock.decode - before.decode - mlp - draw
    seconds |= {"attention.attention": attention, "mlp.mlp": mlp, "depth_transformer": draw}


def traffic(spec: Spec, rows: int, seq: int, itemsize: int) -> dict[str, tuple[float, float]]:
    """(bytes that must move, FLOP) of each module per step, in all layers: weights once, keys and values per row."""
    d, sampling = spec.decoder, spec.sampling_weights
    kv, projections, mlp, layers = d.kv_width, d.projection_weights, d.mlp_weights, float(d.layers)
    transformer, heads, projector = sampling.transformer, sampling.heads, sampling.projector
    caches = 2.0 * rows * seq * kv
    return {
        "attention": (
            layers * (projections + caches) * itemsize,
            2 * layers * rows * (projections + 2 * seq * d.width),
        ),
        "mlp": (layers * mlp * itemsize, 2 * layers * rows * mlp),
        "depth_transformer": (transformer * itemsize, 2.0 * rows * transformer),
        "heads": (heads * itemsize, 2.0 * rows * heads),
        "embedding": (projector * itemsize, 2.0 * rows * projector),
        "tas": (layers * rows * kv * itemsize, 2 * layers * rows * d.width),
    }


ORDER = ("embedding", "attention", "mlp", "tas", "depth_transformer", "heads", "sampling", "vision", "python")


def profile_length(
    shape: Shape, machine: Machine, rows: int, seq: int, *, repeats: int, vision: float, executor: str = "torch"
) -> dict[str, Any]:
    """The document of one length: modules that add up to step_ms, each with its parts, bytes and floor."""
    how: dict[str, Any] = {"repeats": repeats, "executor": executor}
    dense = measure_step(shape, rows, seq, **how)
    scored = measure_step(shape, rows, seq, scored=True, **how)
    replayed = measure_step(shape, rows, seq, tau=Tau((-math.inf,)), scored=True, **how)
    tas = scored.parts.get("tas", 0.0) if executor == "torch" else max(0.0, scored.whole - dense.whole)

    def full(parts: dict[str, float]) -> dict[str, float]:
        """Milliseconds of parts at the full depth."""
        return {k: v * 1e3 * (shape.scale if k.startswith(LAYER_PARTS) else 1.0) for k, v in parts.items()}

    pixels = vision / shape.spec.tokens_per_frame * 1e3
    modules: dict[str, dict[str, float]] = {"vision": {"vision": pixels}}
    for name, ms in full(dense.parts).items():
        module, _, part = name.partition(".")
        modules.setdefault(module, {})[part or module] = ms
    step = sum(sum(parts.values()) for parts in modules.values())
    marked = sum(dense.parts.values())
    moved = traffic(shape.spec, rows, seq, shape.network.dtype.itemsize)
    document: dict[str, Any] = {}
    for name in (name for name in ORDER if name in modules):
        ms = sum(modules[name].values())
        row: dict[str, Any] = {"ms": ms, "share": ms / step}
        if name in moved:
            size, flops = moved[name]
            row |= {
                "bytes": int(size),
                "gb_s": size / ms / 1e6 if ms else None,
                "gflop_s": flops / ms / 1e6 if ms else None,
                "floor_ms": max(size / machine.bandwidth / 1e6, flops / machine.matrix_gflop_s / 1e6),
            }
        document[name] = row | {"parts": modules[name]}
    return {
        "seq": seq,
        "step_ms": step,
        "modules": document,
        "tas_ms": full({"tas": tas})["tas"],
        "replayed_step_ms": sum(full(replayed.parts).values()) + pixels,
        "method": {
            "rows": rows,
            "executor": executor,
            "layers_run": shape.layers,
            "layers_scaled_to": shape.spec.decoder.layers,
            "repeats": repeats,
            "spread": dense.spread,
            "whole_step_ms": dense.whole * 1e3,
            "sum_of_parts_ms": marked * 1e3,
            "sum_over_whole": marked / dense.whole,
        },
    }


def replay_table(length: dict[str, Any], rows: int) -> dict[str, Any]:
    """Speedups by replay at this length: Amdahl's ceiling, and those expected by ratio r and unit of decision.

    A step of R rows saves the MLP's time if all of them replay, with probability r^R if rows decide alone, r^(R/2) in
    pairs, r together. `measured_all_replayed` is that of a measured step in which every row replays.
    """
    step, mlp, tas = length["step_ms"], length["modules"]["mlp"]["ms"], length["tas_ms"]
    powers = {"rows_alone": rows, "in_pairs": max(1, rows // 2), "together": 1}
    return {
        "seq": length["seq"],
        "mlp_share": mlp / step,
        "ceiling": step / (step - mlp),
        "tas_ms": tas,
        "expected": [
            {"ratio": r, **{who: step / (step + tas - mlp * r**power) for who, power in powers.items()}}
            for r in (0.2, 0.5, 0.8, 0.875, 1.0)
        ],
        "measured_all_replayed": step / length["replayed_step_ms"],
    }


def vision_seconds(network: Network, videos: int) -> float:
    """Seconds to decode one frame's pixels of every video."""
    spec = network.spec
    codes = torch.zeros(videos, spec.tokens_per_frame, spec.frame_spec.depth, dtype=torch.int64, device=network.device)
    with torch.inference_mode():
        frame_decoder = network.frame_decoder(codes.new_zeros(videos, spec.layout.prompt or 1))
        return seconds_of(lambda: frame_decoder.frame(codes), network.device, 2)


def expected_by_steps(run: RunConfig, videos: int, at_once: int) -> tuple[float, str]:
    """Upper bound of a run's seconds, and its source: steps of the loaded model, timed at half of the tokens."""
    began = time.perf_counter()
    pipe = VideoPipeline.from_config(run, videos=at_once)
    load, network, size = time.perf_counter() - began, pipe.model.network, pipe.batch_size(at_once)
    rows = size * (1 if pipe.settings.sampling.cfg == 1.0 else 2)
    tokens, batches = pipe.settings.frames * pipe.tokens_per_frame, math.ceil(videos / size)
    fast = network.device.type == "cpu" and native.obstacle(network) is None
    seq = (network.spec.layout.prefix or 0) + network.spec.layout.stride + 2 + tokens // 2
    seq = min(seq, network.spec.decoder.max_positions - 16)
    shape, executor = Shape(network, network.spec, pipe.layers, False), "native" if fast else "torch"
    step = measure_step(shape, rows, seq, repeats=3, executor=executor).whole
    seconds = load + batches * (tokens * step + pipe.settings.frames * vision_seconds(network, size))
    return seconds, f"loading {load:.1f} s, then {batches * tokens:,} steps of {step * 1e3:.1f} ms, both measured now"


def expected_by_bandwidth(plan: MemoryPlan, tokens: int) -> tuple[float, str]:
    """Lower bound of a run's seconds if memory is the limit, and its source: every step reads all weights."""
    rate = Stream(torch.device(plan.device), 2**27).rate()
    source = f"{tokens:,} steps that read {gib(plan.weights)} each at {rate / 1e9:.0f} GB/s, which was measured now"
    return tokens * plan.weights / rate, source
