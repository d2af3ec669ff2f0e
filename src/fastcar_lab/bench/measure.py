"""Times contestants interleaved in one run and turns the times into ratios."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch

from fastcar_cli.errors import RequestError
from fastcar_cli.models import load
from fastcar_cli.models.network import Network, Projector
from fastcar_cli.profile.machine import Machine, Stream, measure_machine
from fastcar_cli.profile.profiler import plan_steps, random_shape
from fastcar_cli.system.device import synchronise
from fastcar_cli.weights.formats import PACKED
from fastcar_lab.bench.cases import RATIOS, Benchmark
from fastcar_lab.bench.contestants import Passes, engine, llama, mlp_only
from fastcar_lab.bench.few_bits import in_bits
from fastcar_lab.bench.llama_cpp import IK_LLAMA_CPP, LLAMA_CPP
from fastcar_lab.bench.openvino import OPENVINO
from fastcar_lab.bench.rival import Rival, runs_of

RIVALS = {"llama_cpp": LLAMA_CPP, "ik_llama_cpp": IK_LLAMA_CPP, "openvino": OPENVINO}  # by the name of their option


def chosen(*wanted: bool) -> tuple[Rival, ...]:
    """Those whose option, in the order of `RIVALS`, is given. Raises RequestError where a package is missing."""
    rivals = tuple(rival for rival, is_wanted in zip(RIVALS.values(), wanted, strict=True) if is_wanted)
    for rival in rivals:
        # Missing packages show before anything is timed.
        _ = rival.version
    return rivals


def models(plan: Benchmark) -> dict[str, Network]:
    """The same weights in the formats that are compared, by format; the first is what transformers runs."""
    if plan.whole:
        formats = ("float32", "int8") if plan.device == "cpu" else ("float32",)
        return {name: load(plan.shape, name, plan.device).network for name in formats}
    longest = max(plan.context + 2 * plan.passes, 4096)
    spec = replace(plan.spec, decoder=replace(plan.spec.decoder, layers=plan.layers, max_positions=longest))
    _, layers = plan_steps(spec, "bfloat16", plan.device, plan.rows, plan.context)
    if layers < plan.layers:
        raise RequestError(f"there is memory for {layers} of this width", key="layers", value=plan.layers)
    network = random_shape(spec, "bfloat16", plan.device, layers).network
    loaded = {"bfloat16": network}
    if plan.device == "cpu":
        loaded |= {name: in_bits(network, name) for name in PACKED}
    # transformers is given embeddings; a projector of 4096 x 4096 would weigh much beside one or two layers.
    for each in loaded.values():
        each.projector = Projector(spec.decoder.width, spec.decoder.width, 0)
    return loaded


def pass_bytes(model: Network, rows: int, context: int, kv_dtype: str = "auto") -> int:
    """Bytes a dense pass must read: the weights of the blocks once, and every row's keys and values."""
    spec = model.spec.decoder
    head = spec.head_dim + 4 if kv_dtype == "int8" else spec.head_dim * model.dtype.itemsize
    slot = 2 * spec.layers * spec.kv_heads * head
    return model.weights_bytes("llm.layers.") + rows * context * slot


def contestants(plan: Benchmark, networks: Mapping[str, Network]) -> dict[str, Passes]:
    """Everything that is timed, by name."""
    first = next(iter(networks))
    common: dict[str, Any] = {"rows": plan.rows, "context": plan.context, "passes": plan.passes}
    made: dict[str, Passes] = {}
    for name, model in networks.items():
        kinds = ["native"] if name in PACKED else ["torch", "native"]
        if plan.device != "cpu":
            kinds = ["torch"]
        for executor in kinds:
            label = f"{name}/{executor}"
            made[f"{label}/dense"] = engine(model, executor=executor, **common)
            of_torch = executor == "torch"
            made[f"{label}/mlp"] = (
                mlp_only(model, rows=plan.rows) if of_torch else engine(model, executor=executor, mlp=True, **common)
            )
            for ratio in RATIOS:
                made[f"{label}/joint {ratio:g}"] = engine(model, executor=executor, ratio=ratio, **common)
                if plan.rows > 1 and 0 < ratio < 1:
                    made[f"{label}/alone {ratio:g}"] = engine(
                        model, executor=executor, ratio=ratio, joint=False, **common
                    )
    made[f"{first}/compute-then-select 1"] = engine(networks[first], executor="torch", ratio=1.0, select=True, **common)
    made[f"{first}/transformers eager"] = llama(networks[first], compiled=False, **common)
    if plan.compiled:
        made[f"{first}/transformers compiled"] = llama(networks[first], compiled=True, **common)
    return made


def _whole(name: str) -> bool:
    """Whether a contestant reads all weights, so that its GB/s is known."""
    return name.endswith(("dense", "eager", "compiled"))


def time_all(
    made: Mapping[str, Passes], passes: int, turns: int, device: torch.device, on_progress: Callable[[int, int], None]
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Seconds a pass of every contestant, one number a turn, and bytes/s the machine moved right after each that
    reads all weights.

    In each turn every contestant has its go. The bandwidth of a machine changes from one moment to the next, above
    all where it is shared, so it is measured beside what is held against it.
    """
    seconds: dict[str, list[float]] = {name: [] for name in made}
    moved: dict[str, list[float]] = {name: [] for name in made if _whole(name)}
    stream, ran = Stream(device), 0
    for turn in range(turns + 1):
        for name, run in made.items():
            # What ran before left its own things in the caches.
            run(1)
            synchronise(device)
            began = time.perf_counter()
            counted = run(passes)
            synchronise(device)
            if turn:
                took = time.perf_counter() - began if counted is None else counted
                seconds[name].append(took / passes)
                if name in moved:
                    moved[name].append(stream.rate())
            ran += 1
            on_progress(ran, len(made) * (turns + 1))
    return seconds, moved


def _line(times: Sequence[float], size: int, rates: Sequence[float] | None) -> dict[str, Any]:
    median = statistics.median(times)
    line: dict[str, Any] = {
        "ms": median * 1e3,
        "spread_ms": [min(times) * 1e3, max(times) * 1e3],
        "tokens_per_s": 1 / median,
    }
    if rates is not None:
        share = statistics.median(size / seconds / rate for seconds, rate in zip(times, rates, strict=True))
        line |= {"gb_s": size / median / 1e9, "of_bandwidth": share}
    return line


def measure(plan: Benchmark, on_progress: Callable[[int, int], None] = lambda done, total: None) -> dict[str, Any]:
    """Run the benchmark of one shape at one context length; `on_progress(done, total)` counts runs of contestants.

    Returns machine, the bandwidth measured between the contestants (median), plan, a line a contestant, for each of
    our variants the speed-up against the Amdahl ceiling 1 / (1 - m r) (m: time of the MLPs alone over the dense
    pass, r: ratio), and `ratios`.
    """
    device = torch.device(plan.device)
    networks = models(plan)
    machine: Machine = measure_machine(device, next(iter(networks.values())).dtype)
    spec = next(iter(networks.values())).spec.decoder
    sizes = {name: pass_bytes(model, plan.rows, plan.context) for name, model in networks.items()}
    with ExitStack() as stack:
        made = contestants(plan, networks)
        options = {"layers": spec.layers, "rows": plan.rows, "context": plan.context, "passes": plan.passes}
        options["threads"] = torch.get_num_threads()
        for name, _, run, size in runs_of(plan.rivals, spec, stack, **options):
            made[f"{name}/dense"], sizes[name] = run, size
        times, rates = time_all(made, plan.passes, plan.turns, device, on_progress)
    bandwidth = statistics.median(rate for several in rates.values() for rate in several) / 1e9
    lines: dict[str, dict[str, Any]] = {}
    for name, values in times.items():
        lines[name] = _line(values, sizes[name.partition("/")[0]], rates.get(name))
    for name, line in lines.items():
        kind, _, what = name.rpartition("/")
        if what.startswith(("joint", "alone")):
            # A small number of MLPs can't be split at every ratio: what was forced counts.
            total = spec.layers * plan.passes
            ratio = round(float(what.split()[1]) * total) / total
            dense, mlps = times[f"{kind}/dense"], times[f"{kind}/mlp"]
            share = statistics.median(m / d for m, d in zip(mlps, dense, strict=True))
            speedup = statistics.median(d / r for d, r in zip(dense, times[name], strict=True))
            ceiling = 1 / (1 - share * ratio)
            line |= {"ratio": ratio, "speedup": speedup, "mlp_share": share, "amdahl_ceiling": ceiling}
            line["of_ceiling"] = speedup / ceiling
    return {
        "machine": machine.to_dict(),
        "bandwidth_gb_s": bandwidth,
        "layers": spec.layers,
        **{name: getattr(plan, name) for name in ("shape", "context", "rows", "passes", "turns")},
        "rivals": {rival.name: rival.version for rival in plan.rivals},
        "lines": lines,
        "ratios": _ratios(times, lines, next(iter(networks))),
    }


def _ratios(times: Mapping[str, Sequence[float]], lines: Mapping[str, Any], first: str) -> dict[str, float]:
    """The comparisons that bars are set on; a ratio of two is the median over turns."""

    def faster(ours: str, theirs: str) -> float:
        return statistics.median(b / a for a, b in zip(times[ours], times[theirs], strict=True))

    executor = "native" if f"{first}/native/dense" in times else "torch"
    best, eager = f"{first}/{executor}", f"{first}/transformers eager"
    ratios = {
        "dense_vs_transformers": faster(f"{best}/dense", eager),
        "torch_dense_vs_transformers": faster(f"{first}/torch/dense", eager),
        "dense_of_bandwidth": lines[f"{best}/dense"]["of_bandwidth"],
        "replay_vs_amdahl": min(v["of_ceiling"] for k, v in lines.items() if k.startswith(f"{best}/joint")),
        "replay_vs_compute_then_select": faster(f"{best}/joint 1", f"{first}/compute-then-select 1"),
    }
    if f"{first}/transformers compiled" in times:
        ratios["dense_vs_transformers_compiled"] = faster(f"{best}/dense", f"{first}/transformers compiled")
    for form in ("bfloat16", "int8", "int4"):
        ours = f"{form}/native"
        if f"{ours}/dense" not in times:
            continue
        if form in PACKED:
            ratios |= {
                f"{form}_vs_transformers": faster(f"{ours}/dense", eager),
                f"{form}_of_bandwidth": lines[f"{ours}/dense"]["of_bandwidth"],
                f"{form}_replay_vs_amdahl": min(
                    v["of_ceiling"] for k, v in lines.items() if k.startswith(f"{ours}/joint")
                ),
            }
        for rival in RIVALS.values():
            others = [other for kind in rival.formats[form] if (other := f"{rival.name} {kind}/dense") in times]
            if others:
                # Against the fastest of its formats.
                key = f"{form}_vs_{rival.name.replace('.', '_')}"
                ratios[key] = min(faster(f"{ours}/dense", other) for other in others)
    return ratios
