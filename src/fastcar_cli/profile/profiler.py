"""Where the time of one decode step goes, measured in the engine at any context length.

The engine marks the end of each part of a step; modules of an MLP are marked by hooks. A step is
timed whole as well, without marks, and compared with the sum of its parts.
"""

from __future__ import annotations

import contextlib
import math
import re
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from fastcar_cli.checkpoints.memory_plan import available_bytes, gib, parameter_bytes
from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.settings import DecodeSettings
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.models.checkpoint import DTYPES, empty_network, ready
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.profile.machine import Machine, seconds_of
from fastcar_cli.profile.random_weights import random_tensor
from fastcar_cli.system.device import synchronise

LAYER_PARTS = ("attention.", "mlp.", "tas")
"""Parts that every layer has, scaled to the full depth where fewer layers run."""

BUDGET = 10 * 2**30
"""Most bytes the layers with random weights may take in the memory of the machine."""


def parse_lengths(text: str, option: str = "seq") -> list[int]:
    """`2k,4096,0.5k` to numbers of tokens. Raises RequestError for anything else."""
    lengths = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(k?)\s*", part, re.IGNORECASE)
        value = float(match[1]) * (1024 if match[2] else 1) if match else 0.0
        if value < 1 or value != int(value) or value > 2**20:
            raise RequestError(
                f"{part.strip()!r} is not a length",
                key=option,
                value=text,
                allowed="1 to 1024k tokens, such as 2k,4096,0.5k",
            )
        lengths.append(int(value))
    return lengths


@dataclass(frozen=True)
class Shape:
    """What runs: a model of `layers` layers, in place of one of `spec.decoder.layers`."""

    network: Network
    spec: Spec
    layers: int
    random: bool

    @property
    def scale(self) -> float:
        """Full depth over layers that run."""
        return self.spec.decoder.layers / self.layers


def random_shape(spec: Spec, dtype: str, device: str, rows: int, longest: int) -> Shape:
    """A network of the true widths with random weights and as many layers as memory allows.

    Raises RequestError with the arithmetic where not even one fits.
    """
    size = DTYPES[dtype].itemsize
    decoder = spec.decoder
    one = empty_network(replace(spec, decoder=replace(decoder, layers=1)))
    layer = parameter_bytes(one, size, "llm.layers.")
    rest = parameter_bytes(one, size) - layer
    cache = (
        rows
        * (2 * (longest + 128) * decoder.kv_heads * decoder.head_dim + spec.tokens_per_frame * decoder.width)
        * size
    )
    free = int(0.7 * available_bytes(device))
    free = free if device.startswith("cuda") else min(BUDGET, free)
    layers = min(decoder.layers, (free - rest) // (layer + cache))
    if layers < 1:
        raise RequestError(
            f"one layer at {longest} tokens does not fit: {gib(rest)} beside the layers + {gib(layer)} a layer + "
            f"{gib(cache)} caches a layer with {rows} rows = {gib(rest + layer + cache)}, {gib(free)} may be used",
            hint=("a smaller ", Key("seq"), ", fewer ", Key("rows"), ", or ", Key("dtype"), " bfloat16"),
        )
    network = empty_network(replace(spec, decoder=replace(decoder, layers=int(layers))))
    stored = WeightFormat(dtype, DTYPES[dtype]).on(network)
    shapes = {name: like.shape for name, like in network.state_dict().items()}
    # Drawing billions of numbers would take longer than measuring.
    random = {k: random_tensor(k, shape, stored.float_of(k), 0, 2**20, device) for k, shape in shapes.items()}
    network.load_state_dict(random, assign=True)
    return Shape(ready(network, torch.device(device)), spec, int(layers), True)


class Stopwatch:
    """Adds up the time between marks by name; on a GPU by events, read after synchronising."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._device = device
        self._marks: list[tuple[str, Any]] = []

    def mark(self, name: str) -> None:
        """The part that ends now."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((name, event))
        else:
            self._marks.append((name, time.perf_counter()))

    def seconds(self) -> dict[str, float]:
        """Seconds by part since the first mark; forgets them."""
        synchronise(self._device)
        totals: dict[str, float] = {}
        for (_, before), (name, now) in zip(self._marks, self._marks[1:], strict=False):
            elapsed = before.elapsed_time(now) / 1e3 if self._cuda else now - before
            totals[name] = totals.get(name, 0.0) + elapsed
        self._marks.clear()
        return totals


@contextlib.contextmanager
def _hooks(network: Network, mark: Callable[[str], None]) -> Iterator[None]:
    """Marks within the MLPs and the depth transformer."""
    handles: list[Any] = []

    def after(module: nn.Module, name: str) -> None:
        handles.append(module.register_forward_hook(lambda *_: mark(name)))

    for block in network.llm.blocks:
        after(block.input_layernorm, "attention.norm")
        after(block.post_attention_layernorm, "mlp.norm")
        after(block.mlp.up_proj, "mlp.gate_up")
        handles.append(block.mlp.down_proj.register_forward_pre_hook(lambda *_: mark("mlp.activation")))
        after(block.mlp.down_proj, "mlp.down")
    if network.depth is not None:
        handles.append(network.depth.classifier_mlp.register_forward_pre_hook(lambda *_: mark("depth_transformer")))
        after(network.depth.classifier_mlp, "heads")
    elif network.lm_head is not None:
        after(network.lm_head, "heads")
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Measured:
    """Seconds of one step by part, whole with marks and without, and its spread."""

    parts: dict[str, float]
    whole: float
    spread: float


def tokens_of(window: int, accept: float) -> float:
    """Tokens that a pass of W inputs makes final in the mean where each draft is right with this probability."""
    return sum(accept**i for i in range(window))


def decode_of(network: Network, rows: int, prompt: int, frames: int, **settings: Any) -> Decode:
    """A decode for measuring: prompts of so many tokens that mean nothing, in pairs where the model is guided.

    `settings` are the other fields of `DecodeSettings`.
    """
    spec = network.spec
    guided = spec.layout.guided and rows % 2 == 0
    noise = torch.rand(rows // 2 if guided else rows, frames * spec.tokens_per_frame, spec.code_depth)
    sampling = SamplingSettings(cfg=3.0 if guided else 1.0)
    chosen = DecodeSettings(frames=frames, sampling=sampling, **settings)
    return Decode.of(network, [[1] * prompt] * rows, chosen, noise)


def decode_at(
    shape: Shape, rows: int, seq: int, steps: int, tau: Tau = OFF, scored: bool = False, executor: str = "torch"
) -> Iterator[Any]:
    """A decode that begins with `seq` tokens of context; yields itself, then a step at a time.

    `scored` computes TAS whether or not it may exceed tau.
    """
    layout = shape.spec.layout
    n = layout.stride
    text = layout.prefix or min(12, max(1, seq - 1))
    first = max(1, seq - text)
    if scored:
        first = max(first, n + 1)
    frames = -(-(first + steps + 1) // n)
    if executor == "native":
        # It scores what may replay, and keeps no scores.
        tau, scored = _NEVER if scored and tau.off else tau, False
    decode = decode_of(shape.network, rows, text, frames, rule=ReplayRule(tau), keep_tas=scored, executor=executor)
    yield decode
    yield from decode.steps(first=first)


_NEVER = Tau((1e30,))
"""A threshold that every score is compared with and none exceeds."""


def _clocked(decode: Decode, running: Iterator[Any]) -> dict[str, float]:
    """Seconds of the parts of a step that the native kernels time; attention is all of a block but its MLP."""
    before = replace(decode.clock)
    next(running)
    mlp, draw = decode.clock.mlp - before.mlp, decode.clock.draw - before.draw
    attention = decode.clock.decode - before.decode - mlp - draw
    return {"attention.attention": attention, "mlp.mlp": mlp, "depth_transformer": draw}


def measure_step(
    shape: Shape,
    rows: int,
    seq: int,
    *,
    repeats: int,
    tau: Tau = OFF,
    scored: bool = False,
    executor: str = "torch",
) -> Measured:
    """Median seconds of a decode step at this context, whole and by part; arguments as in `decode_at`."""
    device = shape.network.device
    warm = 2
    running = decode_at(shape, rows, seq, 2 * repeats + warm + 1, tau, scored, executor)
    decode: Decode = next(running)
    watch = Stopwatch(device)
    whole: list[float] = []
    parts: dict[str, list[float]] = {}
    for _ in range(warm):
        next(running)
    for _ in range(repeats):
        synchronise(device)
        began = time.perf_counter()
        next(running)
        synchronise(device)
        whole.append(time.perf_counter() - began)
        if executor == "native":
            for name, value in _clocked(decode, running).items():
                parts.setdefault(name, []).append(value)
            continue
        decode.observers.mark = watch.mark
        with _hooks(shape.network, watch.mark):
            watch.mark("begin")
            next(running)
            watch.mark("python")
        decode.observers.mark = None
        for name, value in watch.seconds().items():
            parts.setdefault(name, []).append(value)
    spread = (max(whole) - min(whole)) / statistics.median(whole) if len(whole) > 1 else 0.0
    return Measured({k: statistics.median(v) for k, v in parts.items()}, statistics.median(whole), spread)


def traffic(spec: Spec, rows: int, seq: int, itemsize: int) -> dict[str, tuple[float, float]]:
    """(bytes that must move, FLOP) of each module a step, all layers: weights once, keys and values a row."""
    d, sampling = spec.decoder, spec.sampling_weights
    kv, projections, mlp, layers = d.kv_width, d.projection_weights, d.mlp_weights, float(d.layers)
    transformer, heads, projector = sampling.transformer, sampling.heads, spec.projector_weights
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

    def full(name: str, value: float) -> float:
        return value * (shape.scale if name.startswith(LAYER_PARTS) else 1.0)

    modules: dict[str, dict[str, float]] = {}
    for name, value in dense.parts.items():
        module, _, part = name.partition(".")
        # The step ends when its codes are drawn; what the loop does around it is Python's.
        modules.setdefault(module, {})[part or module] = full(name, value) * 1e3
    modules["vision"] = {"vision": vision / shape.spec.tokens_per_frame * 1e3}
    totals = {name: sum(modules[name].values()) for name in ORDER if name in modules}
    step = sum(totals.values())
    marked = sum(dense.parts.values())
    moved = traffic(shape.spec, rows, seq, shape.network.dtype.itemsize)
    document: dict[str, Any] = {}
    for name, ms in totals.items():
        row: dict[str, Any] = {"ms": ms, "share": ms / step}
        if name in moved:
            size, flops = moved[name]
            floor = max(size / machine.bandwidth / 1e6, flops / machine.matrix_gflop_s / 1e6)
            row |= {
                "bytes": int(size),
                "gb_s": size / ms / 1e6 if ms else None,
                "gflop_s": flops / ms / 1e6 if ms else None,
                "floor_ms": floor,
            }
        row["parts"] = modules[name]
        document[name] = row
    # Steps of all layers: the marked parts of layers scaled, the rest once.
    outside = sum(v for k, v in replayed.parts.items() if not k.startswith(LAYER_PARTS))
    inside = sum(v for k, v in replayed.parts.items() if k.startswith(LAYER_PARTS))
    return {
        "seq": seq,
        "step_ms": step,
        "modules": document,
        "tas_ms": full("tas", tas) * 1e3,
        "replayed_step_ms": (outside + inside * shape.scale) * 1e3 + modules["vision"]["vision"],
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
    """What replay can buy at this length: Amdahl's ceiling and the expected speed-up by ratio and by who decides.

    A step saves the MLP's time where all its rows replay: rows deciding alone r^R, in pairs r^(R/2),
    together r. `measured_all_replayed` is that of a measured step in which every row replays.
    """
    step, mlp, tas = length["step_ms"], length["modules"]["mlp"]["ms"], length["tas_ms"]

    def speedup(hit: float) -> float:
        return step / (step + tas - mlp * hit)

    ratios = (0.2, 0.5, 0.8, 0.875, 1.0)
    return {
        "seq": length["seq"],
        "mlp_share": mlp / step,
        "ceiling": step / (step - mlp),
        "tas_ms": tas,
        "expected": [
            {
                "ratio": r,
                "rows_alone": speedup(r**rows),
                "in_pairs": speedup(r ** max(1, rows // 2)),
                "together": speedup(r),
            }
            for r in ratios
        ],
        "measured_all_replayed": step / length["replayed_step_ms"],
    }


def vision_seconds(network: Network, videos: int) -> float:
    """Seconds to decode one frame's pixels of every video."""
    spec = network.spec
    codes = torch.zeros(videos, spec.tokens_per_frame, spec.code_depth, dtype=torch.int64, device=network.device)
    with torch.inference_mode():
        frame_decoder = network.frame_decoder(codes.new_zeros(videos, spec.layout.prompt or 1))
        return seconds_of(lambda: frame_decoder.frame(codes), network.device, 2)
