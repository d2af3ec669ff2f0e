"""Times passes of several tokens of a row in each weight format, beside what the machine allows.

A pass can't be faster than its bytes over the bandwidth, nor than its multiply-adds over those that the cores make,
which are more of fewer bits: int8 weights meet inputs of 16, int4 weights of 8, keys and values in int8 of 16.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from fastcar_cli.decoding.executors.native import NativeExecutor
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels import native
from fastcar_cli.models import load
from fastcar_cli.models.network import Network
from fastcar_cli.profile.machine import Stream, processor
from fastcar_cli.profile.profiler import decode_of, tokens_of
from fastcar_lab.bench.cases import PROMPT_TOKENS, Benchmark
from fastcar_lab.bench.few_bits import in_bits
from fastcar_lab.bench.measure import models, pass_bytes
from fastcar_lab.bench.peak import PRODUCT_BITS, multiply_adds_per_s
from fastcar_lab.bench.rival import runs_of


def multiply_adds(model: Network, inputs: int, context: int) -> int:
    """Of a dense pass: products of the blocks, and attention of each input to `context` slots."""
    spec = model.spec.decoder
    attended = 2 * spec.layers * spec.heads * spec.head_dim * context
    maps = 2 * spec.width * spec.head_dim * (spec.heads + spec.kv_heads) + 3 * spec.width * spec.mlp_width
    return inputs * (spec.layers * maps + attended)


def least_seconds(
    model: Network, form: str, rates: Mapping[int, float], inputs: int, context: int, kv_dtype: str = "auto"
) -> float:
    """That the multiply-adds of a dense pass take at `rates`, by width in bits, with weights in format `form`."""
    products = multiply_adds(model, inputs, 0)
    attention = multiply_adds(model, inputs, context) - products
    return products / rates[PRODUCT_BITS.get(form, 32)] + attention / rates[16 if kv_dtype == "int8" else 32]


Works = tuple[Callable[[], Any], ...]
"""The first makes a pass; the second, which rivals lack, draws the codes behind its inputs."""


def works_of(plan: Benchmark, model: Network, windows: Sequence[int]) -> dict[int, Works]:
    """For each number of tokens what is timed: a pass of so many tokens of every row, and its draws."""
    n, first = model.spec.tokens_per_frame, plan.context - PROMPT_TOKENS
    frames = -(-(first + max(windows) + 2) // n)
    decode = decode_of(model, plan.rows, PROMPT_TOKENS, frames, kv_dtype=plan.kv_dtype)
    runner, videos = NativeExecutor(decode, most_inputs=max(windows)), decode.prompts.videos
    with torch.inference_mode():
        runner.prefill()
        decode.fast_forward()

    def of(window: int) -> Works:
        identity = isinstance(model.projector.layers, torch.nn.Identity)
        width = model.spec.decoder.width if identity else model.spec.frame_spec.code_width
        inputs, latent = Inputs((first,) * videos, window), torch.zeros(videos, window, width, dtype=model.dtype)
        hidden = torch.randn(plan.rows, window, model.spec.decoder.width).to(model.dtype)
        return lambda: runner.run(inputs, latent), lambda: runner.draw(hidden, inputs)

    return {window: of(window) for window in windows}


@torch.inference_mode()
def measure(
    plan: Benchmark, windows: Sequence[int], on_progress: Callable[[int, int], None] = lambda done, total: None
) -> dict[str, Any]:
    """Time passes of each number of tokens, turn by turn, the least of all turns; those of rivals too.

    Returns machine, bandwidth, multiply-adds/s of all threads by width in bits, plan, versions of `rivals`, and by
    format and window: `ms` of a pass and `times` that of the first window, `gb_s` and `multiply_adds_g_s`,
    `of_bandwidth` and `of_arithmetic`, their shares of what the machine allows, `floor_ms`, the least time it allows,
    `bound` by memory or arithmetic, and of ours `draw_ms`, the time to draw the codes with maps in that format.
    Raises RequestError for more tokens than a frame has, or a rival that is not installed.
    """
    threads, isa = torch.get_num_threads(), native.instruction_set()
    networks = models(plan)
    if plan.whole:
        networks["bfloat16"] = load(plan.shape, "bfloat16").network
        networks["int4"] = in_bits(networks["float32"], "int4")
    network = next(iter(networks.values()))
    spec = network.spec
    if max(windows) > spec.tokens_per_frame:
        most = f"1 to {spec.tokens_per_frame}"
        raise RequestError("a pass takes tokens of one frame", key="window", value=max(windows), allowed=most)
    least: dict[tuple[str, int, int], float] = {}
    stream, bandwidth, rates = Stream(torch.device("cpu")), 0.0, dict.fromkeys((32, 16, 8), 0.0)
    with ExitStack() as stack:
        # By name, of ours and of rivals: our format, bytes of a pass, and what is timed.
        timed: dict[str, tuple[str, int, dict[int, Works]]] = {
            form: (form, pass_bytes(model, plan.rows, plan.context, plan.kv_dtype), works_of(plan, model, windows))
            for form, model in networks.items()
        }
        options = {"layers": spec.decoder.layers, "rows": plan.rows, "context": plan.context, "threads": threads}
        for name, form, run, size in runs_of(plan.rivals, spec.decoder, stack, passes=max(windows), **options):
            timed[name] = form, size, {window: (partial(run, 1, window),) for window in windows}
        for turn in range(plan.turns + 1):
            bandwidth = max(bandwidth, stream.rate())
            rates = {bits: max(rates[bits], threads * rate) for bits, rate in multiply_adds_per_s(isa).items()}
            for name, (_, _, by_window) in timed.items():
                for window, works in by_window.items():
                    for kind, work in enumerate(works):
                        for _ in range(plan.passes):
                            began = time.perf_counter()
                            work()
                            took = time.perf_counter() - began
                            key = name, window, kind
                            least[key] = min(took, least.get(key, took))
            on_progress(turn + 1, plan.turns + 1)
    lines: dict[str, dict[int, dict[str, Any]]] = {}
    for name, (form, size, _) in timed.items():
        for window in windows:
            seconds, adds = least[name, window, 0], multiply_adds(network, plan.rows * window, plan.context)
            memory = size / bandwidth
            arithmetic = least_seconds(network, form, rates, plan.rows * window, plan.context, plan.kv_dtype)
            floor = max(memory, arithmetic)
            line = {
                "ms": seconds * 1e3,
                "times": seconds / least[name, windows[0], 0],
                "gb_s": size / seconds / 1e9,
                "of_bandwidth": memory / seconds,
                "multiply_adds_g_s": adds / seconds / 1e9,
                "of_arithmetic": arithmetic / seconds,
                "floor_ms": floor * 1e3,
                "bound": "memory" if memory > arithmetic else "arithmetic",
            }
            if (name, window, 1) in least:
                line["draw_ms"] = least[name, window, 1] * 1e3
            lines.setdefault(name, {})[window] = line
    return {
        **{"cpu": processor(), "threads": threads, "torch": torch.__version__, "instruction_set": isa},
        **{
            "bandwidth_gb_s": bandwidth / 1e9,
            "multiply_adds_g_s": {str(bits): rate / 1e9 for bits, rate in rates.items()},
        },
        **{name: getattr(plan, name) for name in ("shape", "context", "rows", "passes", "turns", "kv_dtype")},
        "layers": spec.decoder.layers,
        "rivals": {rival.name: rival.version for rival in plan.rivals},
        "lines": lines,
    }


def measure_drafts(
    plan: Benchmark, windows: Sequence[int], accept: float, on_progress: Callable[[int, int], None] = lambda *_: None
) -> dict[str, Any]:
    """What `measure` says of one token and of these windows, and what drafts bring. Each line has besides: `cost`, the
    pass at the model's full depth and its draws in those of one token; `tokens_per_pass`, where each draft is right
    with probability `accept`; and `speedup`.
    """
    result = measure(plan, list(dict.fromkeys((1, *windows))), on_progress)
    scale = 1.0 if plan.whole else plan.spec.decoder.layers / plan.layers
    for by_window in result["lines"].values():
        whole = {size: line["ms"] * scale + line["draw_ms"] for size, line in by_window.items()}
        for size, line in by_window.items():
            cost, tokens = whole[size] / whole[1], tokens_of(size, accept)
            line |= {"cost": cost, "tokens_per_pass": tokens, "speedup": tokens / cost}
    return result | {"accept": accept}
