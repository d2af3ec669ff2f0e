"""How long a run will take, from a measurement of a second or two."""

from __future__ import annotations

import math
import time

import torch

from fastcar_cli.checkpoints.memory_plan import MemoryPlan, gib
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding.executors import native
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.profile.machine import Stream
from fastcar_cli.profile.profiler import Shape, measure_step, vision_seconds

SMALL = 2**29
"""Bytes of weights up to which a model is loaded to be measured."""


def measured(run: RunConfig, videos: int, at_once: int) -> tuple[float, str]:
    """Seconds of a run at most, and how they come about: steps of the loaded model are timed at half of its tokens.

    No more than `at_once` videos are decoded at once.
    """
    began = time.perf_counter()
    pipe = VideoPipeline.from_config(run, videos=at_once)
    load, network, size = time.perf_counter() - began, pipe.model.network, pipe.batch_size(at_once)
    rows = size * (1 if pipe.settings.sampling.cfg == 1.0 else 2)
    tokens, batches = pipe.settings.frames * pipe.tokens_per_frame, math.ceil(videos / size)
    fast = network.device.type == "cpu" and native.obstacle(network) is None
    shape = Shape(network, network.spec, pipe.layers, False)
    seq = (network.spec.layout.prefix or 0) + network.spec.layout.stride + 2 + tokens // 2
    seq = min(seq, network.spec.decoder.max_positions - 16)
    step = measure_step(shape, rows, seq, repeats=3, executor="native" if fast else "torch").whole
    frames = pipe.settings.frames * vision_seconds(network, size)
    seconds = load + batches * (tokens * step + frames)
    return seconds, f"loading {load:.1f} s, then {batches * tokens:,} steps of {step * 1e3:.1f} ms, measured now"


def by_bandwidth(plan: MemoryPlan, tokens: int) -> tuple[float, str]:
    """Seconds of a run at least where memory is the limit, and how they come about: all weights are read a step."""
    rate = Stream(torch.device(plan.device), 2**27).rate()
    said = f"{tokens:,} steps that read {gib(plan.weights)} at {rate / 1e9:.0f} GB/s, measured now"
    return tokens * plan.weights / rate, said
