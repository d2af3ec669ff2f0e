"""The document of `fastcar profile`: steps of a model measured at several lengths, held against earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fastcar_cli.checkpoints.architectures import published
from fastcar_cli.checkpoints.memory_plan import default_dtype
from fastcar_cli.checkpoints.open import load, open_model
from fastcar_cli.decoding.executors import native
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels.native import instruction_set
from fastcar_cli.models.checkpoint import DTYPES
from fastcar_cli.pipeline.resolve import resolve_device
from fastcar_cli.profile.draft_profile import draft_table
from fastcar_cli.profile.machine import measure_machine
from fastcar_cli.profile.profiler import Shape, profile_length, random_shape, replay_table, vision_seconds
from fastcar_cli.system.limits import cores


@dataclass(frozen=True)
class ProfileSettings:
    """What is measured: steps of `model` at these context lengths.

    rows: of the batch; None: those of one video. dtype: auto is the model's own, or the device's usual one.
    threads: of a CPU; None: all. repeats: timed steps a length and kind. ratio: of the replay that drafts are held
    against. executor: who runs the steps; auto is what `generate` takes on a CPU, else plain torch.
    """

    model: str
    lengths: Sequence[int]
    rows: int | None
    dtype: str
    device: str
    threads: int | None
    repeats: int
    ratio: float
    executor: str = "torch"


def profile_steps(settings: ProfileSettings, on_length: Callable[[], None]) -> dict[str, Any]:
    """Measure the machine and each length, after which `on_length` is called; the document for JSON.

    Raises RequestError for a model that can't be timed and a length that is shorter than its prompt.
    """
    device = resolve_device(settings.device)
    torch.set_num_threads(settings.threads or min(torch.get_num_threads(), cores()))
    dtype = _own_dtype(settings.model, default_dtype(device)) if settings.dtype == "auto" else settings.dtype
    machine = measure_machine(torch.device(device), DTYPES[dtype])
    lengths: list[dict[str, Any]] = []
    document = {"machine": machine.to_dict(), "model": settings.model, "backend": "torch", "lengths": lengths}
    if not settings.lengths:
        return document | {"replay": {}}
    shape, rows = _shape(settings.model, dtype, device, settings.rows, max(settings.lengths))
    executor, why = _executor(settings.executor, shape)
    layout = shape.spec.layout
    least = 0 if layout.prefix is None else layout.prefix + layout.stride + 2
    if min(settings.lengths) < least:
        raise RequestError(
            f"--seq {min(settings.lengths)}: the prompt of {settings.model} takes {layout.prefix} tokens, "
            f"the first frame {layout.stride}",
            allowed=f"{least} or more",
        )
    drafts = []
    vision = vision_seconds(shape.network, max(1, rows // 2) if layout.guided else rows)
    for seq in settings.lengths:
        how: dict[str, Any] = {"repeats": settings.repeats, "vision": vision, "executor": executor}
        lengths.append(profile_length(shape, machine, rows, seq, **how))
        drafts.append(draft_table(shape, rows, seq, settings.repeats, settings.ratio))
        on_length()
    depth = shape.spec.decoder.layers
    return document | {
        "replay": {"rows": rows, "lengths": [replay_table(x, rows) for x in lengths]},
        "drafts": [table for table in drafts if table is not None],
        "executor": {"name": executor, "why": why},
        "layers": {"measured": shape.layers, "scaled_to": depth, "random_weights": shape.random},
    }


def _executor(wanted: str, shape: Shape) -> tuple[str, str]:
    """Who runs the steps, and why. Raises RequestError for what can't be had, or has no parts to time."""
    why = native.obstacle(shape.network) if shape.network.device.type == "cpu" else "the device is not a CPU"
    if wanted == "auto":
        return ("native", f"native kernels ({instruction_set()})") if why is None else ("torch", f"plain torch: {why}")
    if wanted == "graph" or (wanted == "native" and why is not None):
        said = why if wanted == "native" else "the parts of a graph are not timed"
        raise RequestError(said or "", key="executor", value=wanted, allowed="auto, torch")
    return wanted, f"{'native kernels' if wanted == 'native' else 'plain torch'}, requested"


def _own_dtype(model: str, default: str) -> str:
    """What a model is timed in where nobody says. Raises RequestError for a converted one that is not in floats."""
    formats = [] if published(model) is not None else list(open_model(model).formats)
    if len(formats) != 1:
        return default
    if formats[0] not in DTYPES:
        raise RequestError(
            f"--model {model}: its weights are {formats[0]}, the modules that are timed are in floats",
            hint="profile the model it was converted from, or a run: --decode",
        )
    return formats[0]


def _shape(model: str, dtype: str, device: str, rows: int | None, longest: int) -> tuple[Shape, int]:
    """What runs, and rows of it."""
    if (checkpoint := published(model)) is not None:
        count = rows or (2 if checkpoint.spec.layout.guided else 1)
        return random_shape(checkpoint.spec, dtype, device, count, longest), count
    loaded = load(model, dtype, device)
    count = rows or (1 if loaded.defaults.cfg == 1.0 else 2)
    spec = loaded.network.spec
    return Shape(loaded.network, spec, spec.decoder.layers, False), count


def ratios(now: dict[str, Any], before: dict[str, Any]) -> list[dict[str, Any]]:
    """Time of a new document over that of an earlier one, line by line, for the lengths that both have."""
    known = {x["seq"]: x for x in before["lengths"]}
    rows = []
    for new in (x for x in now["lengths"] if x["seq"] in known):
        old = known[new["seq"]]
        rows.append({"seq": new["seq"], "name": "step", "ratio": new["step_ms"] / old["step_ms"]})
        for name, module in new["modules"].items():
            if earlier := old["modules"].get(name, {}).get("ms"):
                rows.append({"seq": new["seq"], "name": name, "ratio": module["ms"] / earlier})
    return rows
