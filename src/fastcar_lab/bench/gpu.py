"""All that is needed to trust and to judge decoding on a GPU, in one run: what is equal, and what passes cost.

On a CPU the kernels run through Triton's interpreter, so that the check itself is tested; its times then mean nothing.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.executors.graph import GraphExecutor
from fastcar_cli.decoding.executors.self_check import TOKENS, difference
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.errors import FastcarError
from fastcar_cli.models import load
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.network import Spec
from fastcar_cli.models.vila_u.network import ModelSpec
from fastcar_cli.models.vila_u.rqvae import RQVAESpec
from fastcar_cli.profile.machine import measure_machine, seconds_of
from fastcar_cli.profile.profiler import Shape, decode_of, plan_steps, random_shape, traffic
from fastcar_cli.system.device import synchronise
from fastcar_cli.weights.formats import PACKED
from fastcar_lab.bench.few_bits import in_bits
from fastcar_lab.bench.gpu_drafts import whole_videos
from fastcar_lab.common import commit

TESTS = (
    "tests/kernels/test_kernels.py",
    "tests/decoding/test_executors.py",
    "tests/decoding/test_drafts.py",
    "tests/decoding/test_golden_gpu.py",
)
TESTS_SECONDS = 80
PROMPT = 12
TOY = ModelSpec(
    name="toy",
    frames=4,
    fps=8,
    decoder=DecoderSpec(
        width=16, layers=2, heads=2, kv_heads=2, mlp_width=24, vocab=11, rope_theta=50.0, max_positions=64
    ),
    depth=DepthSpec(width=12, blocks=1, heads=2, depth=2, codes=9, code_width=8, hidden=16),
    rqvae=RQVAESpec(
        grid=(2, 2), depth=2, codes=9, code_width=8, z_channels=8, ch=8, ch_mult=(1, 2), num_res_blocks=1,
        resolution=4, attn_resolutions=(2,), norm_groups=4,
    ),
)  # fmt: skip
"""So small that the interpreter runs all parts in a minute."""


@dataclass(frozen=True)
class Plan:
    """What is checked: bundled models, and passes of layers of some shapes with random weights."""

    device: str
    models: Sequence[str]  # decoded both ways in all `dtypes`
    dtypes: Sequence[str]  # the last float format is that of `shapes`
    shapes: dict[str, Spec]  # run in all formats of few bits
    layers: int  # of each shape, decoded both ways
    context: int  # tokens that a timed pass attends to
    windows: Sequence[int]  # tokens of a row in a timed pass; one replays the first and the last of them
    video: int  # tokens of a whole run of shapes whose frames have fewer
    repeats: int  # their median counts
    tests: bool  # run those of the suite too, where there are any
    draft: DraftSettings = field(default_factory=lambda: DraftSettings("frame", 8, 0.93))  # of a run with drafts
    frames: int = 0  # of codes of whole videos with drafts; 0: all
    most_layers: int = 64  # that are timed
    tokens: int = TOKENS  # of each shape that are decoded both ways
    workers: int = 1  # processes that compare at the same time
    seconds: float = float("inf")  # no part begins after them
    only: str = ""  # run parts whose names match
    drafted: dict[str, Sequence[str]] = field(default_factory=dict)  # prompts of whole videos with drafts, by model

    def wants(self, name: str) -> bool:
        """Whether a part of this name is to run."""
        return re.search(self.only, name) is not None

    @property
    def captures(self) -> bool:
        """Whether passes are CUDA graphs; else the host calls the kernels."""
        return self.device != "cpu"

    @property
    def floats(self) -> str:
        """The float format of shapes."""
        return [name for name in self.dtypes if name not in PACKED][-1]

    @property
    def packed(self) -> list[str]:
        """The formats of few bits."""
        return [name for name in self.dtypes if name in PACKED]


def _cut(spec: Spec, layers: int) -> Spec:
    return replace(spec, decoder=replace(spec.decoder, layers=min(layers, spec.decoder.layers)))


def _random(plan: Plan, spec: Spec, dtype: str, rows: int) -> Shape:
    """As many layers as fit. Raises RequestError where not one does."""
    _, layers = plan_steps(spec, dtype, plan.device, rows, plan.context)
    return random_shape(spec, dtype, plan.device, layers)


def equals_torch(plan: Plan, name: str, dtype: str, most: int) -> dict[str, Any]:
    """Whether tokens and decisions of the graph are those of plain torch, up to `most` tokens a pass. `name` is a
    bundled model's or a shape's. Few bits are of the float format of shapes.
    """
    floats = plan.floats if dtype in PACKED else dtype
    if name in plan.shapes:
        network = _random(plan, _cut(plan.shapes[name], plan.layers), floats, 2).network
    else:
        network = load(name, floats, plan.device).network
    prompt = network.spec.layout.prompt or PROMPT
    batch = decode_of(in_bits(network, dtype) if dtype in PACKED else network, 2, prompt, 2)
    why = difference(batch, min(most, batch.cache.most_inputs), plan.captures, plan.tokens)
    return {"ok": why is None} | ({"why": why} if why else {})


def _tests(plan: Plan) -> dict[str, Any]:
    """The suite's own tests of kernels, executors and golden records, whose Triton kernels run on this device."""
    root = Path(__file__).parents[3]
    if not (root / TESTS[0]).is_file() or importlib.util.find_spec("pytest") is None:
        return {"ok": None, "why": "needs a checkout and pytest"}
    options = ["--tb=line", "-n", str(plan.workers), "-m", "slow or not slow"]
    command = [sys.executable, "-m", "pytest", *options, *TESTS]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=TESTS_SECONDS)
    except subprocess.TimeoutExpired:
        return {"ok": None, "why": f"not done in {TESTS_SECONDS} s"}
    lines = [line for line in done.stdout.strip().splitlines() if " in " in line] or [done.stderr.strip()]
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return {"ok": done.returncode == 0, "summary": lines[-1].strip("= "), "failed": failed}


class _Formats:
    """Random weights of a shape, the same in all formats, each made when it is first used."""

    def __init__(self, plan: Plan, spec: Spec) -> None:
        self.spec, self.names = spec, (plan.floats, *plan.packed)
        self._plan, self._shapes = plan, dict[str, Shape]()

    def draw(self) -> dict[str, Any]:
        """Make the first."""
        self.of(self.names[0])
        return {}

    def of(self, dtype: str) -> Shape:
        """Raises RequestError where not one layer fits."""
        plan, floats = self._plan, self.names[0]
        if floats not in self._shapes:
            cut = _cut(self.spec, plan.most_layers)
            self._shapes[floats] = _random(plan, cut, floats, 2)
        if dtype not in self._shapes:
            first = self._shapes[floats]
            self._shapes[dtype] = replace(first, network=in_bits(first.network, dtype))
        return self._shapes[dtype]

    def release(self) -> None:
        """Let go of the memory."""
        self._shapes.clear()


def _bytes(shape: Shape, rows: int, context: int, replayed: bool) -> float:
    """Bytes that a pass must read: weights once, every row's keys and values; no MLP where all rows replay."""
    spec = replace(shape.spec, decoder=replace(shape.spec.decoder, layers=shape.layers))

    def read(tokens: int, itemsize: float) -> float:
        parts = traffic(spec, rows, tokens, itemsize)  # type: ignore[arg-type]
        return sum(size for name, (size, _) in parts.items() if not (replayed and name == "mlp"))

    floats, maps = shape.network.dtype.itemsize, shape.network.quantised()
    weight = sum(m.stored_bytes for m in maps) / sum(m.in_features * m.out_features for m in maps) if maps else floats
    return read(0, weight) + read(context, floats) - read(0, floats)


def _seconds(executor: GraphExecutor, inputs: Inputs, device: torch.device, repeats: int) -> float:
    """Median seconds of a pass: on a GPU of one token eight at once, as decoding launches them, else one, awaited."""
    passes, times = 8 if inputs.count == 1 and device.type == "cuda" else 1, []
    for _ in range(repeats + 1):
        synchronise(device)
        began = time.perf_counter()
        for i in range(passes):
            executor.step(Inputs(tuple(t + i for t in inputs.first), inputs.count))
        synchronise(device)
        times.append((time.perf_counter() - began) / passes)
    return statistics.median(times[1:])


@torch.inference_mode()
def time_passes(plan: Plan, formats: _Formats, dtype: str, rows: int, bandwidth: float) -> dict[str, Any]:
    """A line for each window, dense and with every MLP replayed: ms, bytes/s, and the share of the bandwidth."""
    shape = formats.of(dtype)
    n, device = shape.spec.tokens_per_frame, shape.network.device
    first, lines = max(plan.context - PROMPT, n + 1), []
    for replayed, windows in ((False, plan.windows), (True, (plan.windows[0], plan.windows[-1]))):
        one = 0.0
        for window in windows:
            rule = ReplayRule(Tau((float("-inf"),)) if replayed else OFF)
            decode = decode_of(shape.network, rows, PROMPT, -(-(first + window + 9) // n), rule=rule)
            executor = GraphExecutor(decode, window, plan.captures)
            executor.prefill()
            decode.fast_forward()
            inputs = Inputs((first,) * decode.prompts.videos, min(window, executor.most_inputs))
            seconds = _seconds(executor, inputs, device, plan.repeats)
            size = _bytes(shape, rows, plan.context, replayed)
            one = one or seconds
            line = {"window": inputs.count, "replayed": replayed, "ms": seconds * 1e3, "times": seconds / one}
            lines.append(line | {"gb_s": size / seconds / 1e9, "of_bandwidth": size / seconds / bandwidth})
            decode.release()
    return {"layers": shape.layers, "lines": lines}


def time_run(plan: Plan, formats: _Formats, dtype: str, tau: Tau, draft: DraftSettings) -> dict[str, Any]:
    """A whole decode of the shape with its frames drawn, from its prompt on, at the depth that runs."""
    shape = formats.of(dtype)
    frames = max(1, plan.video // shape.spec.tokens_per_frame)
    decode = decode_of(shape.network, 2, PROMPT, frames, rule=ReplayRule(tau), draft=draft)
    with torch.inference_mode():
        decode.executor = GraphExecutor(decode, draft.window, plan.captures)
    decode.run()
    began = time.perf_counter()
    pixels = torch.stack([decode.decode_frame(frame) for frame in range(frames)])
    finite, clock = bool(pixels.isfinite().all()), decode.clock
    return {
        "ok": finite, "tokens": decode.done, "passes": len(decode.drafter.passes), "capture_s": clock.capture,
        "decode_s": clock.decode, "pixels_s": time.perf_counter() - began, "layers": shape.layers,
    }  # fmt: skip


def _drafts(plan: Plan, name: str, dtype: str) -> dict[str, Any]:
    """Whole videos of a bundled model with drafts; codes that differ are counted, as a GPU does not promise them."""
    windows = [window for window in plan.windows if window > 2] or plan.windows
    return whole_videos(name, dtype, plan.device, plan.drafted[name], windows, plan.frames, plan.captures)


def time_transformers(plan: Plan, spec: Spec) -> dict[str, Any]:
    """Transformers' LlamaModel of some layers under torch.compile, one row; ms of a pass without draws."""
    from fastcar_lab.bench.contestants import llama

    passes, shape = 4, _random(plan, _cut(spec, plan.layers), plan.floats, 1)
    run = llama(shape.network, rows=1, context=plan.context, passes=passes, compiled=plan.captures)
    seconds = seconds_of(partial(run, passes), shape.network.device, plan.repeats) / passes
    return {"ms": seconds * 1e3, "layers": shape.layers}


def _outcome(work: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """What a part gives, with its seconds; where it fails, why."""
    began = time.perf_counter()
    try:
        outcome = {"ok": True} | work(*arguments)
    # Whatever triton's compiler, the driver or a library raises is a finding.
    except (FastcarError, RuntimeError, ValueError, TypeError, ImportError, AssertionError) as e:
        outcome = {"ok": False, "why": (str(e).strip() or type(e).__name__).splitlines()[0]}
    return outcome | {"seconds": time.perf_counter() - began}


def check(plan: Plan, on_part: Callable[[str, dict[str, Any]], None] = lambda name, result: None) -> dict[str, Any]:
    """Run every part; one that fails is reported with its reason, and the others still run. Returns device, commit and
    `parts` by name: `ok` (None: could not run), seconds, and what each found. `on_part` is called with the name of each
    part that is done and all that is known then.
    """
    began, device = time.perf_counter(), torch.device(plan.device)
    # A small copy of a GPU ends before the host has noticed.
    machine = measure_machine(device, getattr(torch, plan.floats), 2**31 if plan.captures else 2**28)
    parts: dict[str, dict[str, Any]] = {}
    result = {"machine": machine.to_dict(), "bandwidth_gb_s": machine.bandwidth, "commit": commit(), "parts": parts}

    def add(name: str, outcome: dict[str, Any]) -> None:
        parts[name] = outcome
        on_part(name, result)

    def part(name: str, work: Callable[..., dict[str, Any]], *arguments: Any) -> None:
        if not plan.wants(name):
            return
        late = time.perf_counter() - began > plan.seconds
        add(name, {"ok": None, "why": "no time is left", "seconds": 0.0} if late else _outcome(work, *arguments))

    compared = [(name, dtype) for name in plan.models for dtype in plan.dtypes]
    compared += [(name, dtype) for name in plan.shapes for dtype in (plan.floats, *plan.packed)]
    jobs: dict[str, tuple[Any, ...]] = {}
    if plan.tests:
        jobs["tests of kernels, executors and golden records"] = _tests, plan
    for name, dtype in compared:
        for most in (1, plan.windows[-1]):
            jobs[f"{name} in {dtype} equals plain torch, {most} tokens a pass"] = equals_torch, plan, name, dtype, most
    shapes = {name: _Formats(plan, spec) for name, spec in plan.shapes.items()}
    wanted = {name: job for name, job in jobs.items() if plan.wants(name)}
    if plan.workers == 1:
        for name, job in wanted.items():
            add(name, _outcome(*job))
    else:
        # Several processes compile at the same time.
        with ProcessPoolExecutor(plan.workers, multiprocessing.get_context("spawn")) as pool:
            running = {pool.submit(_outcome, *job): name for name, job in wanted.items()}
            for formats in [*shapes.values()][:1]:
                # Drawing weights takes seconds, which the other processes need anyhow.
                _outcome(formats.draw)
            for done in as_completed(running):
                broken = done.exception()
                add(running[done], {"ok": False, "why": str(broken), "seconds": 0.0} if broken else done.result())
    for name, formats in shapes.items():
        _timed(plan, name, formats, machine.bandwidth * 1e9, part)
    for name in plan.drafted:
        for dtype in [dtype for dtype in plan.dtypes if dtype not in PACKED]:
            part(f"{name} in {dtype}, drafts", _drafts, plan, name, dtype)
    return result


def _timed(plan: Plan, name: str, formats: _Formats, bandwidth: float, part: Callable[..., None]) -> None:
    """The parts of a shape in which times are taken, of rows and formats in turn."""
    for rows in (2, 1):
        for dtype in formats.names:
            part(f"{name} in {dtype}, passes of {rows} rows", time_passes, plan, formats, dtype, rows, bandwidth)
    if formats.spec.tokens_per_frame <= plan.video:
        kinds = {
            "dense": (OFF, DraftSettings()),
            "replayed": (Tau((float("-inf"),)), DraftSettings()),
            f"drafts of {plan.draft.window} at {plan.draft.accept:g}": (OFF, plan.draft),
        }
        for how, (tau, draft) in kinds.items():
            for dtype in formats.names:
                part(f"{name} in {dtype}, a whole run, {how}", time_run, plan, formats, dtype, tau, draft)
    formats.release()
    part(f"{name}, transformers", time_transformers, plan, formats.spec)
