"""Times passes of several tokens of a row in each weight format, beside what the machine allows.

A pass can't be faster than its bytes over the bandwidth, nor than its multiply-adds over those that the cores make:
with int8 weights (16-bit inputs) an instruction makes two times as many as with float32, with int4 (8-bit) four times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fastcar_cli.analysis.machine import Stream, processor
from fastcar_cli.analysis.profiler import decode_of
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.native import NativeExecutor
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels import native
from fastcar_cli.models.network import Network
from fastcar_lab.bench.cases import PROMPT_TOKENS, Benchmark
from fastcar_lab.bench.measure import models, pass_bytes
from fastcar_lab.bench.peak import multiply_adds_per_s

AN_INSTRUCTION = {"int8": 2, "int4": 4}
"""Multiply-adds of an instruction, in those of float32."""


def multiply_adds(model: Network, inputs: int, context: int) -> int:
    """Of a dense pass: products of the blocks, and attention of each input to `context` slots."""
    spec = model.spec.decoder
    attended = 2 * spec.layers * spec.heads * spec.head_dim * context
    maps = 2 * spec.width * spec.head_dim * (spec.heads + spec.kv_heads) + 3 * spec.width * spec.mlp_width
    return inputs * (spec.layers * maps + attended)


Works = tuple[Callable[[], Any], Callable[[], Any]]
"""One makes a pass, the other draws the codes behind its inputs."""


def works_of(model: Network, rows: int, context: int, windows: Sequence[int]) -> dict[int, Works]:
    """For each number of tokens what is timed: a pass of so many tokens of every row, and its draws."""
    n, first = model.spec.tokens_per_frame, context - PROMPT_TOKENS
    decode = decode_of(model, rows, PROMPT_TOKENS, -(-(first + max(windows) + 2) // n))
    runner, videos = NativeExecutor(decode, most_inputs=max(windows)), decode.prompts.videos
    with torch.inference_mode():
        runner.prefill()
        decode.fast_forward()

    def of(window: int) -> Works:
        identity = isinstance(model.projector.layers, torch.nn.Identity)
        width = model.spec.decoder.width if identity else model.spec.code_width
        inputs, latent = Inputs((first,) * videos, window), torch.zeros(videos, window, width, dtype=model.dtype)
        hidden = torch.randn(rows, window, model.spec.decoder.width).to(model.dtype)
        return lambda: runner.run(inputs, latent), lambda: runner.draw(hidden, inputs)

    return {window: of(window) for window in windows}


@torch.inference_mode()
def measure(
    plan: Benchmark, windows: Sequence[int], on_progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Time passes of each number of tokens, turn by turn, the least of all turns.

    Returns machine, bandwidth, multiply-adds/s in float32 of all threads, plan, and by format and window: `ms` of a
    pass and `times` that of the first window, `floor_ms`, what the machine allows, `bound` by memory or arithmetic,
    `of_floor`, and `draw_ms`, the time to draw the codes. Raises RequestError for more tokens than a frame has.
    """
    threads, isa = torch.get_num_threads(), native.instruction_set()
    networks = models(plan)
    spec = next(iter(networks.values())).spec
    if max(windows) > spec.tokens_per_frame:
        most = f"1 to {spec.tokens_per_frame}"
        raise RequestError("a pass takes tokens of one frame", key="window", value=max(windows), allowed=most)
    made = {form: works_of(model, plan.rows, plan.context, windows) for form, model in networks.items()}
    least: dict[tuple[str, int, int], float] = {}
    stream, bandwidth, peak = Stream(torch.device("cpu")), 0.0, 0.0
    for turn in range(plan.turns + 1):
        bandwidth, peak = max(bandwidth, stream.rate()), max(peak, threads * multiply_adds_per_s(isa))
        for form, by_window in made.items():
            for window, works in by_window.items():
                for kind, work in enumerate(works):
                    for _ in range(plan.passes):
                        began = time.perf_counter()
                        work()
                        took = time.perf_counter() - began
                        key = form, window, kind
                        least[key] = min(took, least.get(key, took))
        on_progress(turn + 1, plan.turns + 1)
    lines: dict[str, dict[int, dict[str, Any]]] = {}
    for form, model in networks.items():
        for window in windows:
            seconds = least[form, window, 0]
            memory = pass_bytes(model, plan.rows, plan.context) / bandwidth
            arithmetic = multiply_adds(model, plan.rows * window, plan.context) / peak / AN_INSTRUCTION.get(form, 1)
            floor = max(memory, arithmetic)
            lines.setdefault(form, {})[window] = {
                "ms": seconds * 1e3,
                "times": seconds / least[form, windows[0], 0],
                "floor_ms": floor * 1e3,
                "bound": "memory" if memory > arithmetic else "arithmetic",
                "of_floor": floor / seconds,
                "draw_ms": least[form, window, 1] * 1e3,
            }
    return {
        **{"cpu": processor(), "threads": threads, "torch": torch.__version__, "instruction_set": isa},
        **{"bandwidth_gb_s": bandwidth / 1e9, "multiply_adds_g_s": peak / 1e9},
        **{name: getattr(plan, name) for name in ("shape", "context", "rows", "passes", "turns")},
        "layers": spec.decoder.layers,
        "lines": lines,
    }
