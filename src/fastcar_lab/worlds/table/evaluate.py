"""Measure `table`: fidelity on held-out scenes by the analyser, and the tokenizer.

`python -m fastcar_lab.worlds.table.evaluate --model runs/table/table --captions 100 --tau "off;-2"` prints
one JSON document; `--truth` judges rendered videos instead, `--tokenizer` also encoded and decoded ones.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastcar_cli.config import load_config
from fastcar_cli.pipeline import VideoPipeline
from fastcar_lab.worlds.mini.evaluate import generate_videos
from fastcar_lab.worlds.table.analyser import analyse, judge, shares
from fastcar_lab.worlds.table.captions import caption
from fastcar_lab.worlds.table.render import render
from fastcar_lab.worlds.table.said import said_of
from fastcar_lab.worlds.table.scene import Scene
from fastcar_lab.worlds.table.stories import scene_of
from fastcar_lab.worlds.table.tokenizer import TableTokenizer
from fastcar_lab.worlds.table.train_tokenizer import evaluate as tokenizer_psnr


def held_out_captions(count: int, seed: int) -> list[tuple[Scene, str]]:
    """Scenes that say what was never trained on, each with a caption that says all of it."""
    rng = random.Random(seed)
    scenes = [scene_of(seed, i, kept_out=True) for i in range(count)]
    return [(s, caption(s, rng)) for s in scenes]


def by_objects(scenes: Sequence[Scene], judgements: Sequence[Mapping[str, bool]]) -> dict[str, dict[str, float]]:
    """Shares of right answers over all videos and over those with one, two and three objects, with their number."""
    groups: dict[str, list[Mapping[str, bool]]] = {"all": list(judgements)}
    for scene, judgement in zip(scenes, judgements, strict=True):
        groups.setdefault(f"{len(scene.things)} objects", []).append(judgement)
    return {name: {"videos": len(rows), **shares(rows)} for name, rows in sorted(groups.items())}


def _judged(scenes: Sequence[Scene], videos: Sequence[NDArray[np.uint8]]) -> dict[str, dict[str, float]]:
    return by_objects(scenes, [judge(analyse(v), said_of(s)) for s, v in zip(scenes, videos, strict=True)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=None, help="a model folder")
    parser.add_argument("--tokenizer", type=Path, default=None, help="tokenizer.safetensors of a training")
    parser.add_argument("--truth", action="store_true", help="judge rendered videos")
    parser.add_argument("--captions", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--tau", default="off", help="several with a semicolon between them")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(arguments)
    chosen = held_out_captions(options.captions, options.seed)
    scenes = [s for s, _ in chosen]
    result: dict[str, Any] = {"captions": options.captions, "seed": options.seed}
    if options.truth:
        result["truth"] = _judged(scenes, [render(s) for s in scenes])
    if options.tokenizer is not None:
        tokenizer = TableTokenizer.load(options.tokenizer)
        drawn = [tokenizer.decode(tokenizer.encode(torch.from_numpy(render(s)))).numpy() for s in scenes]
        result["tokenizer"] = {**tokenizer_psnr(tokenizer, options.captions), "right": _judged(scenes, drawn)}
    if options.model is not None:
        result["fidelity"] = []
        reference: NDArray[np.uint8] | None = None
        for tau in (t.strip() for t in options.tau.split(";")):
            config = load_config(None, [*options.overrides, f"replay.tau={tau}"], {"model": options.model})
            pipe = VideoPipeline.from_config(config)
            seeds = [options.seed * 100_003 + i for i in range(len(chosen))]
            videos, replay = generate_videos(pipe, [c for _, c in chosen], seeds, options.batch)
            row: dict[str, Any] = {"tau": tau, "replay": replay, "right": _judged(scenes, list(videos))}
            if tau == "off":
                reference = videos
            elif reference is not None:
                error = float(np.square(videos / 255.0 - reference / 255.0).mean())
                row["psnr_db"] = float(-10 * np.log10(error)) if error else None
            result["fidelity"].append(row)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
