"""The report's second page: which tokens a gate got wrong, laid over the frames.

A gate is judged against one that knows every change: in each layer of each video it replays as many tokens, those
whose MLP output changed least. Where both differ, a token was replayed though it had changed, or computed though it
had not. No threshold of "changed" has to be chosen.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.errors import RunError
from fastcar_cli.media import read_frames
from fastcar_cli.sweep.report.build import asset, filled, head, json_text, read_results
from fastcar_cli.system.files import read_arrays, write_whole

LIMIT = 24 * 2**20
"""Bytes of pictures that are embedded at most; base64 makes four of three."""


def gate_errors(
    tokens: Mapping[str, NDArray[Any]], frames: int, grid: tuple[int, int]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares of layers and rows that were replayed though changed, and computed though still, each [T, h, w].

    `tokens` as `sweep.tokens.token_data` gives them. The first frame and the last token have none.
    """
    h, w = grid
    replayed, change = tokens["replayed"], tokens["change"]
    ideal = np.zeros_like(replayed)
    for layer in range(len(replayed)):
        known = np.isfinite(change[layer])
        count = int(replayed[layer][known].sum())
        order = np.argsort(np.where(known, change[layer], np.inf), axis=None, kind="stable")
        ideal[layer].reshape(-1)[order[:count]] = True
    maps = []
    for wrong in (replayed & ~ideal, ~replayed & ideal):
        places = np.zeros(frames * h * w)
        places[: wrong.shape[2]] = wrong.mean((0, 1))
        maps.append(places.reshape(frames, h, w))
    return maps[0], maps[1]


def chance(tokens: Mapping[str, NDArray[Any]]) -> float:
    """The share of decisions that a gate gets wrong which replays as many tokens of each layer, drawn at random."""
    replayed, known = tokens["replayed"], np.isfinite(tokens["change"])
    ratios = [float(r[k].mean()) for r, k in zip(replayed, known, strict=True) if k.any()]
    return float(np.mean([2 * r * (1 - r) for r in ratios])) if ratios else 0.0


def write_tokens_page(folder: Path, limit: int = LIMIT) -> Path | None:
    """Write `tokens.html` beside the `results.json` of a sweep whose cells kept their tokens; None where none did.

    Cells come one seed of every prompt after the other until their pictures fill `limit` bytes. Raises RequestError
    for results that are missing or damaged, RunError where a file can't be read or written.
    """
    results = read_results(folder / "results.json")
    model = results["model"]
    grid = (int(model["grid"][0]), int(model["grid"][1]))
    shown: list[dict[str, Any]] = []
    left, total = limit, 0
    seeds = {s: i for i, s in enumerate(results["plan"]["seeds"])}
    for cell in sorted(results["cells"], key=lambda c: seeds.get(c["seed"], len(seeds))):
        file = folder / "cells" / f"{cell['id']}.tokens.npz"
        if cell["reference"] is None or not file.is_file():
            continue
        try:
            data = read_arrays(file)
            if "change" not in data:
                continue
            errors, by_chance = gate_errors(data, model["frames"], grid), chance(data)
            pictures = [_png(image) for image in read_frames(folder / cell["video"])]
        except (OSError, ValueError, KeyError) as e:
            raise RunError(f"{file} can't be read: {e}", hint="the same sweep makes it again") from None
        total, left = total + 1, left - sum(map(len, pictures))
        if left < 0 and shown:
            continue
        keys = ("id", "prompt", "seed", "tau", "ratio", "score", "window", "gate", "backend")
        shown.append(
            {k: cell[k] for k in keys}
            | {
                "replayed_ratio": cell["replay"]["ratio"],
                "chance": by_chance,
                "changed": np.round(errors[0], 3).tolist(),
                "still": np.round(errors[1], 3).tolist(),
                "frames": [base64.b64encode(p).decode("ascii") for p in pictures],
            }
        )
    if not total:
        return None
    parts = {
        "head": head(f"fastcar tokens: {model['name']}", "; script-src 'unsafe-inline'"),
        "script": asset("tokens.js"),
        "data": json_text({"cells": shown, "total": total, "model": model, "version": results["version"]}),
    }
    path = folder / "tokens.html"
    write_whole(path, filled(asset("tokens.html"), parts))
    return path


def _png(image: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image).save(out, format="PNG", optimize=True)
    return out.getvalue()
