"""Documents of `fastcar profile`: steps at several lengths, measured, with drafts, or emulated; and whole decodes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.checkpoints.architectures import published
from fastcar_cli.checkpoints.memory_plan import MemoryPlan, default_dtype
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.executors import native
from fastcar_cli.decoding.replay.replay import ReplayRule, ReplayStats
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels.native import MOST_ROWS, instruction_set
from fastcar_cli.models.checkpoint import DTYPES, Checkpoint
from fastcar_cli.models.network import Spec
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.pipeline.resolve import resolve_device
from fastcar_cli.profile.machine import measure_machine
from fastcar_cli.profile.profiler import (
    Shape,
    decode_from,
    plan_steps,
    profile_length,
    random_shape,
    replay_table,
    tokens_of,
    vision_seconds,
)
from fastcar_cli.system.limits import cores
from fastcar_fpga import Emulator, preset_for, workload_of

WINDOWS = (1, 2, 4, 8, 16)  # draft lengths whose passes are timed


def plan_profile(
    run: RunConfig, lengths: Sequence[int], rows: int | None, repeats: int
) -> tuple[Checkpoint, int, dict[str, Any], MemoryPlan]:
    """Plan `profile_steps` at these context lengths, without loading anything: the checkpoint, the rows of the batch,
    the number of layers (for JSON), and the memory. Raises RequestError for a model that can't be timed, and for a
    length that is shorter than its prompt.
    """
    model, device, dtype = run.model, resolve_device(run.runtime.device), str(run.runtime.dtype)
    dtype = _own_dtype(model, default_dtype(device)) if dtype == "auto" else dtype
    random, checkpoint = published(model) is not None, published(model) or open_model(model)
    spec, layout = checkpoint.spec, checkpoint.spec.layout
    rows = rows or (2 if (layout.guided if random else checkpoint.defaults.cfg != 1.0) else 1)
    least = 0 if layout.prefix is None else layout.prefix + layout.stride + 2
    if min(lengths, default=least) < least:
        prompt = f"the prompt and first frame of {model} take {layout.prefix} + {layout.stride} tokens"
        raise RequestError(f"--seq {min(lengths)}: {prompt}", allowed=f"{least} or more")
    plan, layers = plan_steps(spec, dtype, device, rows, max(lengths, default=1), (repeats + 3) * len(WINDOWS), random)
    said = {"measured": layers, "scaled_to": spec.decoder.layers, "random_weights": random}
    return checkpoint, rows, said, plan


def profile_steps(
    run: RunConfig, lengths: Sequence[int], rows: int | None, repeats: int, ratio: float, on_length: Callable[[], None]
) -> dict[str, Any]:
    """Time the machine and steps of a run's model at these context lengths; the document for JSON.

    rows: of the batch, or None for those of one video. repeats: timed steps per length and kind. ratio: replay ratio to
    compare drafts with. `on_length` is called after each length. Raises RequestError as `plan_profile` does.
    """
    torch.set_num_threads(run.runtime.threads or min(torch.get_num_threads(), cores()))
    checkpoint, rows, layers, plan = plan_profile(run, lengths, rows, repeats)
    machine = measure_machine(torch.device(plan.device), DTYPES[plan.dtype])
    done: list[dict[str, Any]] = []
    document = {"machine": machine.to_dict(), "model": run.model, "backend": "torch", "lengths": done}
    if not lengths:
        return document | {"replay": {}}
    if layers["random_weights"]:
        shape = random_shape(checkpoint.spec, plan.dtype, plan.device, layers["measured"])
    else:
        shape = Shape(checkpoint.load(plan.dtype, plan.device).network, checkpoint.spec, layers["measured"], False)
    executor, why = _executor(run.runtime.executor, shape)
    drafts = []
    vision = vision_seconds(shape.network, max(1, rows // 2) if shape.spec.layout.guided else rows)
    for seq in lengths:
        done.append(profile_length(shape, machine, rows, seq, repeats=repeats, vision=vision, executor=executor))
        drafts.append(draft_table(shape, rows, seq, repeats, ratio))
        on_length()
    return document | {
        "replay": {"rows": rows, "lengths": [replay_table(x, rows) for x in done]},
        "drafts": [table for table in drafts if table is not None],
        "executor": {"name": executor, "why": why},
        "layers": layers,
    }


def _executor(wanted: str, shape: Shape) -> tuple[str, str]:
    """The executor of the steps, and why. Raises RequestError for one that is unavailable or can't time modules."""
    why = native.obstacle(shape.network) if shape.network.device.type == "cpu" else "the device is not a CPU"
    if wanted == "auto":
        return ("native", f"native kernels ({instruction_set()})") if why is None else ("torch", f"plain torch: {why}")
    if wanted == "graph" or (wanted == "native" and why is not None):
        said = why if wanted == "native" else "profile can't time the modules of a CUDA graph"
        raise RequestError(said or "", key="executor", value=wanted, allowed="auto, torch")
    return wanted, f"{'native kernels' if wanted == 'native' else 'plain torch'}, as requested"


def _own_dtype(model: str, default: str) -> str:
    """The default dtype for timing a model. Raises RequestError for a converted model that is not in floats."""
    formats = [] if published(model) is not None else list(open_model(model).formats)
    if len(formats) != 1:
        return default
    if formats[0] not in DTYPES:
        said = f"--model {model}: its weights are {formats[0]}; fastcar profile can only time float weights"
        raise RequestError(said, hint="profile the original model, or use --decode PROMPT")
    return formats[0]


def ratios(now: dict[str, Any], before: dict[str, Any]) -> list[dict[str, Any]]:
    """Times of a new document divided by those of an earlier one, line by line, for the lengths in both."""
    known = {x["seq"]: x for x in before["lengths"]}
    rows = []
    for new in (x for x in now["lengths"] if x["seq"] in known):
        old = known[new["seq"]]
        rows.append({"seq": new["seq"], "name": "step", "ratio": new["step_ms"] / old["step_ms"]})
        for name, module in new["modules"].items():
            if earlier := old["modules"].get(name, {}).get("ms"):
                rows.append({"seq": new["seq"], "name": name, "ratio": module["ms"] / earlier})
    return rows


def needed(window: int, gain: float) -> float | None:
    """The acceptance rate from which a pass of W inputs makes `gain` tokens final; None if no rate is enough."""
    if gain > window:
        return None
    low, high = 0.0, 1.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if tokens_of(window, middle) >= gain else (middle, high)
    return 0.0 if gain <= 1 else high


def _seconds(shape: Shape, rows: int, seq: int, rounds: int, lengths: list[int], tau: Tau) -> dict[int, float]:
    """Minimum seconds by draft length of passes that make one token final, timed in turns after two warm-ups each."""
    draft = DraftSettings("frame", max(lengths), accept=0.0)
    settings: dict[str, Any] = {"rule": ReplayRule(tau), "draft": draft, "executor": "native"}
    least = dict.fromkeys(lengths, math.inf)
    with decode_from(shape, rows, seq, (rounds + 3) * len(lengths), **settings) as (decode, steps):
        clock = decode.clock
        for turn in range(rounds + 3):
            for length in lengths:
                decode.drafter.window = length
                before = clock.decode, clock.draw
                next(steps)
                draw = clock.draw - before[1]
                if turn >= 2:
                    least[length] = min(least[length], (clock.decode - before[0] - draw) * shape.scale + draw)
    return least


def draft_table(shape: Shape, rows: int, seq: int, repeats: int, ratio: float) -> dict[str, Any] | None:
    """Cost of a pass of the native kernels by input tokens W, and the acceptance rates from which drafts pay.

    A pass makes 1 + A + ... + A^(W-1) tokens final if each draft is accepted with probability A. They are compared with
    passes of one token whose rows replay together with this ratio. None if the native kernels can't run.
    """
    if native.obstacle(shape.network) is not None:
        return None
    windows = [w for w in WINDOWS if w <= shape.spec.layout.stride and rows * w <= MOST_ROWS]
    dense = _seconds(shape, rows, seq, repeats, windows, OFF)
    replayed = _seconds(shape, rows, seq, repeats, [1], Tau((-math.inf,)))[1]
    one = dense[1]
    replay = one / (one - ratio * max(0.0, one - replayed))
    lines: list[dict[str, Any]] = []
    for w, seconds in dense.items():
        cost = seconds / one
        gains = {"pays_from": cost, "beats_replay_from": replay * cost}
        least = {key: needed(w, gain) if w > 1 else None for key, gain in gains.items()}
        lines.append({"window": w, "ms": seconds * 1e3, "cost": cost, **least})
    table = {"seq": seq, "rows": rows, "kernels": instruction_set(), "replay_ratio": ratio, "replay_speedup": replay}
    return table | {"replayed_ms": replayed * 1e3, "windows": lines}


def emulated_lengths(spec: Spec, model: str, lengths: list[int], rows: int, preset: str | None) -> dict[str, Any]:
    """The document of `fastcar profile` with cycles and emulated milliseconds instead of measured ones."""
    accelerator = preset_for(preset, spec)
    milliseconds, layers = accelerator.seconds_per_cycle * 1e3, spec.decoder.layers
    measured = []
    for seq in lengths:
        emulator = Emulator(accelerator, workload_of(spec, rows=rows, frames=1, prompt=max(1, seq - 1)))
        rest: float = emulator.all_rows(emulator.depth)
        if accelerator.rest.seconds_per_step is not None:
            rest = accelerator.rest.seconds_per_step.value / accelerator.seconds_per_cycle
        cycles: dict[str, dict[str, float]] = {
            "attention": {
                "projections": layers * emulator.all_rows(emulator.projections),
                "core": layers * float(emulator.attention(np.full((rows, 1), seq))[0]),
            },
            "mlp": {"mlp": layers * emulator.accelerator.rounds(-(-rows // accelerator.cores))},
            "depth_transformer": {"rest": rest},
        }
        sums = {name: sum(parts.values()) for name, parts in cycles.items()}
        total, drs = sum(sums.values()), layers * emulator.accelerator.layer(0, rows)[1]
        modules = {
            name: {
                "ms": sums[name] * milliseconds,
                "cycles": sums[name],
                "share": sums[name] / total,
                "parts": {k: v * milliseconds for k, v in parts.items()},
            }
            for name, parts in cycles.items()
        }
        length = {"seq": seq, "step_ms": total * milliseconds, "step_cycles": total, "modules": modules}
        replayed = (total - sums["mlp"] + drs) * milliseconds
        measured.append(length | {"tas_ms": drs * milliseconds, "replayed_step_ms": replayed})
    name, clock = f"{accelerator.name} (emulated)", accelerator.clock.value
    return {
        "machine": {"device": name, "cores": accelerator.cores, "clock_mhz": clock},
        "model": model,
        "backend": "fpga-sim",
        "lengths": measured,
        "replay": {"rows": rows, "lengths": [replay_table(x, rows) for x in measured]},
    }


PERCENTILES = (1, 5, 25, 50, 75, 95, 99)


class _Similarity:
    """Cosine similarity of each MLP output with the one at the same position one frame earlier, mean by layer."""

    def __init__(self, layers: int, frame: int) -> None:
        self._frame = frame
        self._last: list[dict[int, Tensor]] = [{} for _ in range(layers)]
        self._values: list[list[float]] = [[] for _ in range(layers)]

    def __call__(self, layer: int, t: int, mlp: Tensor, out: Tensor) -> None:
        if t < 0:
            return
        before, now = self._last[layer].get(t % self._frame), mlp.detach().float().clone()
        if before is not None:
            self._values[layer] += torch.cosine_similarity(before, now, dim=-1).flatten().tolist()
        self._last[layer][t % self._frame] = now

    def means(self) -> list[float | None]:
        return [statistics.fmean(values) if values else None for values in self._values]


def _run(pipe: VideoPipeline, prompt: str, seed: int, watch: Any = None) -> Decode:
    for _ in pipe.stream([prompt], [seed], watch=watch):
        pass
    assert pipe.decode is not None
    return pipe.decode


def profile_decode(pipe: VideoPipeline, prompt: str, seed: int) -> dict[str, Any]:
    """Decode dense (TAS, similarity, time) and with tau (replay, time), both with one token per pass."""
    rule = pipe.settings.rule
    dense = ReplayRule(tas_definition=rule.tas_definition)
    similarity = _Similarity(pipe.layers, pipe.tokens_per_frame)
    watched = _run(pipe.with_settings(rule=dense, keep_tas=True), prompt, seed, similarity)
    timed = _run(pipe.with_settings(rule=dense), prompt, seed)
    times: dict[str, Any] = {"executor": timed.executor_name, "why": timed.why, "dense_s": timed.clock.decode}
    assert watched.replay is not None and watched.replay.tas is not None
    scores = watched.replay.tas
    tas = scores[:, :, watched.replay.gateable(scores.shape[2])].cpu().numpy().reshape(pipe.layers, -1)
    stats = ReplayStats(0.0, 0.0, [0.0] * pipe.layers, [0.0] * pipe.frames)
    tau, warning = next((t for t in rule.tau.values if t < math.inf), math.inf), None
    if not rule.off:
        replaying = _run(pipe, prompt, seed)
        assert replaying.replay is not None
        stats = replaying.replay.stats(replaying.passed)
        times |= {"tau_s": replaying.clock.decode, "speedup": timed.clock.decode / replaying.clock.decode}
    if tau < math.inf and stats.eligible_ratio in (0.0, 1.0):
        did = "nothing" if stats.eligible_ratio == 0 else "every eligible MLP"
        between = f"TAS of this run lies between {tas.min():.2f} and {tas.max():.2f}"
        warning = f"at tau {tau:g} {did} replays; {between}"
    percentiles = [np.percentile(row, PERCENTILES).tolist() for row in tas]
    return {
        "prompt": prompt,
        "seed": seed,
        "tau": Tau((tau,)).plain(),
        "tas": rule.tas_definition,
        "times": times,
        "replay": asdict(stats),
        "tas_percentiles": [dict(zip((f"p{p}" for p in PERCENTILES), row, strict=True)) for row in percentiles],
        "above_tau": None if tau == math.inf else [float((row > tau).mean()) for row in tas],
        "mlp_similarity": similarity.means(),
        "warning": warning,
    }
