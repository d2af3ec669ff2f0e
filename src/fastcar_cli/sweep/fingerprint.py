"""What decides the results of a sweep besides its axes, so that a folder never mixes two configurations."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch

from fastcar_cli._version import __version__
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.config.run_config import RENAMED, flat
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.system.files import sha256_of
from fastcar_fpga import preset_for

SWEPT = (
    "generation.seed",
    "generation.samples",
    "replay.tau",
    "replay.gate",
    "replay.score",
    "attention.window",
    "backend.name",
    "backend.preset",
)
"""Keys that the grid decides, or (`backend.preset`) that matter for some of its cells only."""


def fingerprint(
    pipe: VideoPipeline, model: str, metrics: tuple[str, ...], lpips: Path | None, backends: tuple[str, ...]
) -> dict[str, Any]:
    """Everything that changes a cell apart from its own parameters, as flat keys."""
    # Cells name the frames of an input by their hash.
    keys = flat(pipe.resolved.to_dict())
    keys = {k: v for k, v in keys.items() if k not in SWEPT and not k.startswith("input.")}
    network = pipe.model.network
    keys |= {
        "fastcar": __version__,
        "torch": torch.__version__.split("+")[0],
        "model": pipe.name,
        "model weights": open_model(model).identity.weights,
        "runtime.device": network.device.type,
        "runtime.dtype": network.weight_format,
        "metrics": ",".join(metrics),
    }
    if lpips is not None and "lpips" in metrics:
        keys["lpips weights"] = sha256_of(lpips)
    if "fpga-sim" in backends:
        accelerator = preset_for(pipe.config.backend.preset, pipe.spec)
        known = (accelerator, accelerator.card, accelerator.part)
        keys["backend.preset"] = hashlib.sha256(repr(known).encode()).hexdigest()
    return keys


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first thing in which two configurations differ, in words; None where they agree.

    An accelerator named by one of them only is no difference: a sweep may add `--backend fpga-sim` later.
    """
    before = {RENAMED.get(key, key): value for key, value in before.items()}
    for key in sorted({*before, *now}):
        if key == "backend.preset" and not (key in before and key in now):
            continue
        was, is_ = before.get(key, "absent"), now.get(key, "absent")
        if was != is_:
            if key in ("model weights", "lpips weights", "backend.preset"):
                return f"{key} has other contents"
            return f"{key} was {was!r} there and is {is_!r} now"
    return None
