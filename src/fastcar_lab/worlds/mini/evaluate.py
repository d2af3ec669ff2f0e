"""Measure the bundled model: prompt fidelity on held-out captions, and the tokenizer.

`python -m fastcar_lab.worlds.mini.evaluate --captions 200 --seed 1 --tau off` prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastcar_cli.config import RunConfig, load_config
from fastcar_cli.pipeline import VideoPipeline
from fastcar_lab.checkout import commit
from fastcar_lab.worlds.mini.analyser import analyse, judge, shares, wanted_of
from fastcar_lab.worlds.mini.captions import caption
from fastcar_lab.worlds.mini.render import render
from fastcar_lab.worlds.mini.scene import Scene, scenes_of, split_combinations
from fastcar_lab.worlds.mini.train_tokenizer import Tokenizer


def held_out_captions(count: int, seed: int) -> list[tuple[Scene, str]]:
    """Scenes of combinations that were never trained on, each with a caption naming every attribute."""
    rng = random.Random(seed)
    combinations = split_combinations()[1]
    chosen = rng.sample(combinations, count) if count <= len(combinations) else rng.choices(combinations, k=count)
    scenes = [rng.choice(scenes_of(c)) for c in chosen]
    return [(s, caption(s, rng)) for s in scenes]


def generate_videos(
    pipe: VideoPipeline, captions: Sequence[str], seeds: Sequence[int], batch: int = 40
) -> tuple[NDArray[np.uint8], dict[str, float]]:
    """Videos uint8 [count, T, H, W, 3] of captions and seeds, and means of replay ratios and speed."""
    videos: list[NDArray[np.uint8]] = []
    stats: list[dict[str, float]] = []
    for at in range(0, len(captions), batch):
        chunk = list(captions[at : at + batch])
        out = np.zeros((len(chunk), pipe.frames, pipe.height, pipe.width, 3), np.uint8)
        for frame in pipe.stream(chunk, list(seeds[at : at + batch])):
            out[frame.video, frame.index] = frame.image
        videos.extend(out)
        for i in range(len(chunk)):
            report = pipe.report(i)
            stats.append({k: report["replay"][k] for k in ("ratio", "eligible_ratio")})
    return np.stack(videos), {k: float(np.mean([s[k] for s in stats])) for k in stats[0]}


def fidelity(
    pipe: VideoPipeline, count: int, seed: int, batch: int = 40, reference: NDArray[np.uint8] | None = None
) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Shares of held-out captions whose video is right, attribute by attribute, with replay ratios, and the videos.

    With reference videos (the dense ones of the same seeds) also the PSNR (dB) of the mean squared error.
    """
    chosen = held_out_captions(count, seed)
    videos, replay = generate_videos(pipe, [c for _, c in chosen], [seed * 100_003 + i for i in range(count)], batch)
    verdicts = [judge(analyse(v), wanted_of(s)) for v, (s, _) in zip(videos, chosen, strict=True)]
    result: dict[str, Any] = {"captions": count, "seed": seed, "right": shares(verdicts), "replay": replay}
    if reference is not None:
        error = np.square(videos / 255.0 - reference / 255.0).mean()
        result["psnr_db"] = float(-10 * np.log10(error)) if error else None
    return result, videos


def tokenizer_quality(model: str, count: int, seed: int) -> dict[str, float]:
    """PSNR (dB) of held-out videos encoded and decoded again, and the share the analyser judges right."""
    tokenizer = Tokenizer.of_model(model)
    rng = random.Random(seed)
    combinations = split_combinations()[1]
    errors, verdicts = [], []
    with torch.inference_mode():
        for _ in range(count):
            scene = rng.choice(scenes_of(rng.choice(combinations)))
            video = torch.from_numpy(render(scene))
            image = tokenizer.rqvae.decode(tokenizer.encode(video)).round().to(torch.uint8).numpy()
            errors.append(float(np.square(image / 255.0 - video.numpy()).mean()))
            verdicts.append(judge(analyse(image), wanted_of(scene)))
    return {
        "videos": count,
        "psnr_db": float(-10 * np.log10(np.mean(errors))),
        "analyser_right": shares(verdicts)["all"],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini")
    parser.add_argument("--captions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--tau", default="off", help="several with a semicolon between them")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    parser.add_argument("--tokenizer", action="store_true", help="measure the tokenizer too")
    options = parser.parse_args(arguments)
    result: dict[str, Any] = {
        "model": options.model,
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "commit": commit() or "unknown",
        "fidelity": [],
    }
    if options.tokenizer:
        result["tokenizer"] = tokenizer_quality(options.model, options.captions, options.seed)
    reference: NDArray[np.uint8] | None = None
    for tau in options.tau.split(";"):
        config: RunConfig = load_config(None, options.overrides, {"model": options.model, "replay.tau": tau.strip()})
        began = time.perf_counter()
        row, videos = fidelity(
            VideoPipeline.from_config(config), options.captions, options.seed, options.batch, reference
        )
        reference = videos if tau.strip() == "off" else reference
        result["fidelity"].append({"tau": tau.strip(), "seconds": round(time.perf_counter() - began, 1), **row})
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
