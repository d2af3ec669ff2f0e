"""All that is needed to trust and to judge decoding on a GPU, in one run: what is equal, and what passes cost.

On a CPU the kernels run through Triton's interpreter, so that the check itself is tested; its times then mean nothing.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fastcar_cli.analysis.machine import Machine, measure_machine, seconds_of
from fastcar_cli.analysis.profiler import Shape, decode_of, random_shape, traffic
from fastcar_cli.decoding.graph import GraphExecutor
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.replay import ReplayRule
from fastcar_cli.decoding.self_check import difference
from fastcar_cli.decoding.tau import OFF, Tau
from fastcar_cli.errors import FastcarError
from fastcar_cli.models import load
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.network import Network, Spec
from fastcar_cli.models.rqvae import RQVAESpec
from fastcar_cli.models.video_model import ModelSpec
from fastcar_lab.checkout import commit

GPT_FAST = "gpt-fast, LLaMA-7B in bfloat16, one row, A100 80 GB: 104.9 tokens/s, 1,397 GB/s"
"""What its README reports (pytorch-labs/gpt-fast, Nov 2023): 68 % of the card's 2,039 GB/s."""
TESTS = ("tests/kernels/test_kernels.py", "tests/decoding/test_executors.py", "tests/decoding/test_golden.py")
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
    """What is checked: bundled models, and passes of layers of some shapes with random weights.

    Attributes:
        device: cuda, cuda:N, or cpu.
        models: bundled models that are decoded both ways.
        dtypes: formats of each of them; the last is that of shapes.
        shapes: specifications by name.
        layers: how many layers of each shape run at most.
        context: tokens that a timed pass attends to.
        windows: tokens of a row that a pass takes.
        video: tokens of a whole run of each shape.
        repeats: timed passes of each kind, of which the median counts.
        tests: whether the test suite's kernels and golden records run too, where this is a checkout.

    """

    device: str
    models: Sequence[str]
    dtypes: Sequence[str]
    shapes: dict[str, Spec]
    layers: int
    context: int
    windows: Sequence[int]
    video: int
    repeats: int
    tests: bool

    @property
    def captures(self) -> bool:
        """Whether passes are CUDA graphs; else the host calls the kernels."""
        return self.device != "cpu"


def _equal(plan: Plan, network: Network) -> dict[str, Any]:
    """Whether tokens and decisions of the graph are those of plain torch, one token a pass and several."""
    batch = decode_of(network, 2, PROMPT, 2)
    why = {inputs: difference(batch, inputs, plan.captures) for inputs in (1, min(4, batch.cache.most_inputs))}
    return {"ok": not any(why.values()), "differences": {k: v for k, v in why.items() if v}}


def _bundled(plan: Plan, model: str, dtype: str) -> dict[str, Any]:
    return _equal(plan, load(model, dtype, plan.device).network)


def _tests() -> dict[str, Any]:
    """The suite's own tests of kernels, executors and golden records, on this device."""
    root = Path(__file__).parents[3]
    if not (root / TESTS[0]).is_file() or importlib.util.find_spec("pytest") is None:
        return {"ok": None, "why": "needs a checkout and pytest"}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "slow or not slow", *TESTS]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {"ok": done.returncode == 0, "summary": lines[-1], "failed": failed}


def _bytes(shape: Shape, rows: int, context: int, replayed: bool) -> float:
    """Bytes that a pass must read: weights once, every row's keys and values; no MLP where all rows replay."""
    spec = replace(shape.spec, decoder=replace(shape.spec.decoder, layers=shape.layers))
    parts = traffic(spec, rows, context, shape.network.dtype.itemsize)
    return sum(size for name, (size, _) in parts.items() if not (replayed and name == "mlp"))


@torch.inference_mode()
def _passes(plan: Plan, shape: Shape, rows: int, bandwidth: float) -> dict[str, Any]:
    """A line for each window, dense and with every MLP replayed: ms, bytes/s, and the share of the bandwidth."""
    n, device = shape.spec.tokens_per_frame, shape.network.device
    first, lines = max(plan.context - PROMPT, n + 1), []
    for replayed in (False, True):
        one = 0.0
        for window in plan.windows:
            rule = ReplayRule(Tau((float("-inf"),)) if replayed else OFF)
            decode = decode_of(shape.network, rows, PROMPT, -(-(first + window + 2) // n), rule=rule)
            executor = GraphExecutor(decode, window, plan.captures)
            executor.prefill()
            decode.fast_forward()
            inputs = Inputs((first,) * decode.prompts.videos, min(window, executor.most_inputs))
            seconds = seconds_of(partial(executor.step, inputs), device, plan.repeats)
            size = _bytes(shape, rows, plan.context, replayed)
            one = one or seconds
            line = {"window": inputs.count, "replayed": replayed, "ms": seconds * 1e3, "times": seconds / one}
            lines.append(line | {"gb_s": size / seconds / 1e9, "of_bandwidth": size / seconds / bandwidth})
            decode.release()
    return {"lines": lines}


def _run(plan: Plan, shape: Shape, tau: Tau) -> dict[str, Any]:
    """A whole decode of the shape, from its prompt on, at the depth that runs."""
    frames = max(1, plan.video // shape.spec.tokens_per_frame)
    decode = decode_of(shape.network, 2, PROMPT, frames, rule=ReplayRule(tau))
    with torch.inference_mode():
        decode.executor = GraphExecutor(decode, 1, plan.captures)
    decode.run()
    clock = decode.clock
    return {"tokens": decode.done, "capture_s": clock.capture, "decode_s": clock.decode, "layers": shape.layers}


def _transformers(plan: Plan, shape: Shape) -> dict[str, Any]:
    """Transformers' LlamaModel of these layers under torch.compile, one row; ms of a pass without draws."""
    from fastcar_lab.bench.contestants import llama

    passes = 4
    run = llama(shape.network, rows=1, context=plan.context, passes=passes, compiled=plan.captures)
    return {"ms": seconds_of(partial(run, passes), shape.network.device, plan.repeats) / passes * 1e3}


def check(plan: Plan, on_part: Callable[[str], None] = lambda name: None) -> dict[str, Any]:
    """Run every part; one that fails is reported with its reason, and the others still run.

    Returns device, commit and `parts` by name: `ok` (None: could not run), seconds, and what each found.
    """
    machine: Machine = measure_machine(torch.device(plan.device), torch.bfloat16 if plan.captures else torch.float32)
    parts: dict[str, dict[str, Any]] = {}

    def part(name: str, work: Callable[[], dict[str, Any]]) -> None:
        on_part(name)
        began = time.perf_counter()
        try:
            outcome = {"ok": True} | work()
        # Whatever triton's compiler, the driver or a library raises is a finding.
        except (FastcarError, RuntimeError, ValueError, TypeError, ImportError, AssertionError) as e:
            outcome = {"ok": False, "why": (str(e).strip() or type(e).__name__).splitlines()[0]}
        parts[name] = outcome | {"seconds": time.perf_counter() - began}

    for model in plan.models:
        for dtype in plan.dtypes:
            part(f"{model} in {dtype} equals plain torch", partial(_bundled, plan, model, dtype))
    if plan.tests:
        part("tests of kernels, executors and golden records", _tests)
    bandwidth = machine.bandwidth * 1e9
    for name, spec in plan.shapes.items():
        cut = replace(spec, decoder=replace(spec.decoder, layers=min(plan.layers, spec.decoder.layers)))
        try:
            shape = random_shape(cut, plan.dtypes[-1], plan.device, 2, plan.context)
        except (FastcarError, RuntimeError) as e:
            parts[f"{name}, random weights"] = {"ok": False, "why": str(e), "seconds": 0.0}
            continue
        part(f"{name} equals plain torch", partial(_equal, plan, shape.network))
        for rows in (1, 2):
            part(f"{name}, passes of {rows} rows", partial(_passes, plan, shape, rows, bandwidth))
        part(f"{name}, transformers", partial(_transformers, plan, shape))
        part(f"{name}, a whole run, dense", partial(_run, plan, shape, OFF))
        part(f"{name}, a whole run, replayed", partial(_run, plan, shape, Tau((float("-inf"),))))
        del shape
    return {"machine": machine.to_dict(), "bandwidth_gb_s": machine.bandwidth, "commit": commit(), "parts": parts}


def page(result: dict[str, Any]) -> str:
    """The result as a page of Markdown."""
    machine, parts = result["machine"], result["parts"]
    lines = [
        f"# GPU check: {machine['device']}",
        "",
        f"torch {machine['torch']}, Python {machine['python']}, commit {result['commit'] or 'unknown'}; memory gives "
        f"{result['bandwidth_gb_s']:.0f} GB/s. To compare: {GPT_FAST}.",
        "",
        "| part | result | seconds |",
        "|---|---|---|",
    ]
    words = {True: "passed", False: "failed", None: "not run"}
    for name, outcome in parts.items():
        why = outcome.get("why") or outcome.get("summary") or "; ".join(outcome.get("differences", {}).values())
        if "decode_s" in outcome:
            why = f"{outcome['tokens']} tokens of {outcome['layers']} layers in {outcome['decode_s']:.2f} s"
        elif "ms" in outcome:
            why = f"{outcome['ms']:.3f} ms a pass"
        lines.append(f"| {name} | {words[outcome['ok']]}{': ' + why if why else ''} | {outcome['seconds']:.1f} |")
    for name, outcome in parts.items():
        if "lines" not in outcome:
            continue
        lines += [
            "",
            f"## {name}",
            "",
            "| tokens | | ms | times one token | GB/s | of bandwidth |",
            "|---|---|---|---|---|---|",
        ]
        for line in outcome["lines"]:
            cells = [str(line["window"]), "replayed" if line["replayed"] else "dense", f"{line['ms']:.3f}"]
            cells += [f"{line['times']:.2f}", f"{line['gb_s']:.0f}", f"{line['of_bandwidth']:.0%}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
