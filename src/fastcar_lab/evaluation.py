"""How well a model draws its world: held-out scenes judged by the world, dense and with replay."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastcar_cli.inputs.prompt import Prompt
from fastcar_cli.media.metrics import psnr_of
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_lab.common import commit, pipeline_of
from fastcar_lab.worlds.protocol import Video, World


def generate_videos(
    pipe: VideoPipeline, prompts: Sequence[Prompt], seeds: Sequence[int], batch: int = 40
) -> tuple[Video, dict[str, float]]:
    """Videos uint8 [count, T, H, W, 3] of prompts and seeds, and means of replay ratios."""
    videos: list[Video] = []
    stats: list[dict[str, float]] = []
    for at in range(0, len(prompts), batch):
        chunk = list(prompts[at : at + batch])
        out = np.zeros((len(chunk), pipe.frames, pipe.height, pipe.width, 3), np.uint8)
        for frame in pipe.stream(chunk, list(seeds[at : at + batch])):
            out[frame.video, frame.index] = frame.image
        videos.extend(out)
        for i in range(len(chunk)):
            report = pipe.report(i)
            stats.append({k: report["replay"][k] for k in ("ratio", "eligible_ratio")})
    return np.stack(videos), {k: float(np.mean([s[k] for s in stats])) for k in stats[0]}


def fidelity(
    world: World, pipe: VideoPipeline, count: int, seed: int, batch: int = 40, reference: Video | None = None
) -> tuple[dict[str, Any], Video]:
    """How right videos of held-out scenes are, with replay ratios, and the videos. With reference videos (the dense
    ones of the same seeds) also the PSNR (dB) of the mean squared error over all frames that are decoded, and the share
    of videos that are the same.
    """
    scenes, prompts = zip(*world.held_out(count, seed), strict=True)
    videos, replay = generate_videos(pipe, prompts, [seed * 100_003 + i for i in range(count)], batch)
    right = world.score(scenes, list(videos))
    result: dict[str, Any] = {"captions": count, "seed": seed, "right": right, "replay": replay}
    if reference is not None:
        errors = (videos[:, pipe.context :].astype(np.float64) - reference[:, pipe.context :]) ** 2
        result["psnr_db"] = psnr_of(float(errors.mean()))
        result["same"] = float((videos == reference).all((1, 2, 3, 4)).mean())
    return result, videos


def evaluate(
    world: World,
    model: str | None,
    count: int,
    seed: int,
    *,
    batch: int = 40,
    settings: Sequence[tuple[str, Any]] = (("tau", "off"),),
    overrides: Sequence[str] = (),
    tokenizer: str | None = None,
    truth: bool = False,
) -> dict[str, Any]:
    """The document of `fastcar lab evaluate`: a row of `fidelity` for each setting of replay, `tau` or `ratio`. Rows
    after a dense one (tau off) are compared with it. `truth` judges rendered videos, `tokenizer` measures that of a
    model or a file.
    """
    result: dict[str, Any] = {
        "world": world.name,
        "model": model,
        "captions": count,
        "seed": seed,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "commit": commit() or "unknown",
    }
    if truth:
        scenes = [scene for scene, _ in world.held_out(count, seed)]
        result["truth"] = world.score(scenes, [world.render(s) for s in scenes])
    if tokenizer is not None:
        result["tokenizer"] = world.tokenizer_quality(tokenizer, count, seed)
    if model is None:
        return result
    reference: NDArray[np.uint8] | None = None
    result["fidelity"] = []
    for key, value in settings:
        began = time.perf_counter()
        pipe = pipeline_of(model, overrides, **{f"replay.{key}": value})
        row, videos = fidelity(world, pipe, count, seed, batch, reference)
        reference = videos if value == "off" else reference
        result["fidelity"].append({key: value, "seconds": round(time.perf_counter() - began, 1), **row})
    return result
