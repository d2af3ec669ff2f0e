"""A folder as a sweep leaves it, with videos from anywhere: made up ones, or decoded ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.media import open_writer

FRAMES, GRID, LAYERS, FPS = 8, (8, 8), 6, 8
Tau = float | str | None


class Made(NamedTuple):
    """One video: uint8 [T, H, W, 3], replay map [T, h, w], seconds."""

    images: NDArray[np.uint8]
    map: NDArray[np.float64]
    seconds: float


def made_up(prompt: str, seed: int, tau: Tau) -> Made:
    """A bright square that moves right; replayed parts lag the more, the lower tau is."""
    rng = np.random.default_rng([seed, len(prompt)])
    color, back = rng.integers(60, 255, 3), rng.integers(0, 120, 3)
    images = np.broadcast_to(back.astype(np.uint8), (FRAMES, 64, 64, 3)).copy()
    row = int(rng.integers(8, 40))
    share = 0.0 if tau is None else 1.0 if tau == "-inf" else 1 / (1 + math.exp(float(tau) + 1))
    for t in range(FRAMES):
        x = 6 * (t - round(share * t * 0.4))
        images[t, row : row + 14, x : x + 14] = color
    where = np.clip(share + 0.2 * rng.standard_normal((FRAMES, *GRID)), 0, 1) if share else np.zeros((FRAMES, *GRID))
    where[0] = 0
    return Made(images, where, 1.6 - 0.4 * share + 0.01 * float(rng.random()))


def write_folder(
    folder: Path,
    prompts: Sequence[str],
    seeds: Sequence[int] = (0,),
    taus: Sequence[Tau] = (None, 0.0, -2.0, "-inf"),
    gates: Sequence[str] = ("row",),
    make: Callable[[str, int, Tau], Made] = made_up,
    config: dict[str, Any] | None = None,
) -> Path:
    """Write cells and results.json into `folder` and return it."""
    (folder / "cells").mkdir(parents=True)
    cells: list[dict[str, Any]] = []
    for prompt in prompts:
        for seed in seeds:
            dense = make(prompt, seed, None)
            reference = f"c{len(cells)}"
            for tau in taus:
                for gate in gates if tau is not None else gates[:1]:
                    found = dense if tau is None else make(prompt, seed, tau)
                    cells.append(_cell(folder, f"c{len(cells)}", prompt, seed, tau, gate, reference, found, dense))
    summary = _summary(cells)
    knee = [
        {"window": None, "gate": gates[0], "backend": "torch", "tau": -2.0, "why": "most speed before SSIM falls"}
    ] * (-2.0 in taus)
    data = {
        "version": "0.1.0",
        "machine": {"system": "Linux x86_64", "device": "a processor", "cpus": 2, "threads": 1, "torch": "2.13.0"},
        "config": config or {"model": "mini", "sampling": {"cfg": 1.0, "top_p": 0.6}, "replay": {"tas": "attention"}},
        "plan": {
            "prompts": list(prompts), "seeds": list(seeds), "tau": list(taus), "window": [None], "gate": list(gates),
            "backend": ["torch"], "repeats": 1,
        },
        "model": {
            "name": "mini", "layers": LAYERS, "tokens_per_frame": 64, "grid": list(GRID), "frames": FRAMES, "fps": FPS,
        },
        "metrics": ["psnr_db", "ssim", "ms_ssim", "temporal"],
        "cells": cells, "summary": summary, "knee": knee,
    }  # fmt: skip
    (folder / "results.json").write_text(json.dumps(data))
    return folder


def _cell(
    folder: Path, name: str, prompt: str, seed: int, tau: Tau, gate: str, reference: str, found: Made, dense: Made
) -> dict[str, Any]:
    video = f"cells/{name}.mp4"
    with open_writer(folder / video, fps=FPS, recipe={"prompt": prompt, "seed": seed, "settings": {}}) as writer:
        for image in found.images:
            writer.add(image)
    metrics: dict[str, Any] | None = None
    frames = None
    if tau is not None:
        error = np.square(found.images.astype(float) - dense.images).mean((1, 2, 3))
        psnr = [None if e == 0 else float(10 * np.log10(255**2 / e)) for e in error]
        ssim = [float(1 / (1 + e / 400)) for e in error]
        steps = np.abs(np.diff(found.images.astype(float), axis=0) - np.diff(dense.images.astype(float), axis=0))
        finite = [p for p in psnr if p is not None]
        metrics = {
            "psnr_db": float(np.mean(finite)) if finite else None, "ssim": float(np.mean(ssim)),
            "ms_ssim": float(np.mean(ssim)) ** 0.5, "temporal": float(steps.mean()),
        }  # fmt: skip
        frames = {"psnr_db": psnr, "ssim": ssim}
    by_frame = found.map.mean((1, 2))
    ratio = float(by_frame.mean())
    right = bool(tau is None or ratio < 0.8)
    return {
        "id": name, "prompt": prompt, "seed": seed, "tau": tau, "window": None, "gate": gate, "backend": "torch",
        "reference": None if tau is None else reference, "video": video, "metrics": metrics, "frames": frames,
        "fidelity": {
            "background": True, "color": True, "shape": True, "motion": right, "size": True, "all_right": right,
        },
        "speed": {
            "decode_s": {
                "median": found.seconds, "min": found.seconds * 0.99, "max": found.seconds * 1.02,
                "runs": [found.seconds * 0.99, found.seconds, found.seconds * 1.02],
            },
            "tokens_per_s": 512 / found.seconds, "speedup": dense.seconds / found.seconds,
        },
        "replay": {
            "ratio": ratio, "eligible_ratio": ratio * 8 / 7,
            "by_layer": [ratio * (0.9 + 0.03 * i) for i in range(LAYERS)],
            "by_frame": by_frame.tolist(), "map": found.map.round(3).tolist(),
        },
        "fpga": None,
    }  # fmt: skip


def _summary(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for tau, gate in dict.fromkeys((c["tau"], c["gate"]) for c in cells):
        mine = [c for c in cells if (c["tau"], c["gate"]) == (tau, gate)]

        def mean(values: list[Any]) -> float | None:
            found = [v for v in values if v is not None]
            return float(np.mean(found)) if found else None

        right = float(np.mean([c["fidelity"]["all_right"] for c in mine]))
        rows.append({
            "tau": tau, "window": None, "gate": gate, "backend": "torch", "videos": len(mine),
            "replay_ratio": mean([c["replay"]["ratio"] for c in mine]),
            "eligible_ratio": mean([c["replay"]["eligible_ratio"] for c in mine]),
            "decode_s": mean([c["speed"]["decode_s"]["median"] for c in mine]),
            "speedup": mean([c["speed"]["speedup"] for c in mine]),
            **{
                key: mean([c["metrics"][key] for c in mine]) if tau is not None else None
                for key in ("psnr_db", "ssim", "ms_ssim", "temporal")
            },
            "all_right": right, "fidelity_drop": 1.0 - right, "cycles": None, "energy_j": None,
        })  # fmt: skip
    return rows
