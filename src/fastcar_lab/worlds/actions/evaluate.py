"""Measure `mini-actions`: does the object go where the pushes say, and what replay does to that.

`python -m fastcar_lab.worlds.actions.evaluate --clips 100 --tau "off;-2" --ratio "0.2;0.4"` prints one JSON document.
Where the object is in a frame is found by the world's analyser, which knows nothing of the model. `true_codes` is the
same of videos whose later frames are drawn from the codes that are right: what the tokenizer alone gets wrong.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastcar_cli.config import load_config
from fastcar_cli.models.ivideogpt_tokenizer import Tokenizer
from fastcar_cli.pipeline import VideoPipeline
from fastcar_lab.checkout import commit
from fastcar_lab.worlds.actions.codes import dictionary
from fastcar_lab.worlds.actions.samples import clip_of, frames_of, held_out
from fastcar_lab.worlds.actions.scene import Story, centre
from fastcar_lab.worlds.actions.train_tokenizer import ActionsTokenizer
from fastcar_lab.worlds.mini.analyser import follow

LIMITS = (2, 4)
"""Distances in px, along either side, within which an object is where it should be."""


def generate(
    pipe: VideoPipeline, stories: Sequence[Story], seed: int, batch: int = 25
) -> tuple[NDArray[np.uint8], dict[str, float]]:
    """Videos uint8 [count, frames, 64, 64, 3] that a model makes of first frames and pushes, and mean replay ratios."""
    videos = np.zeros((len(stories), pipe.frames, pipe.height, pipe.width, 3), np.uint8)
    ratios: list[dict[str, float]] = []
    for at in range(0, len(stories), batch):
        clips = [clip_of(story) for story in stories[at : at + batch]]
        for frame in pipe.stream(clips, [seed * 100_003 + at + i for i in range(len(clips))]):
            videos[at + frame.video, frame.index] = frame.image
        ratios += [pipe.report(i)["replay"] for i in range(len(clips))]
    return videos, {key: float(np.mean([r[key] for r in ratios])) for key in ("ratio", "eligible_ratio")}


@torch.no_grad()
def drawn_from_true_codes(tokenizer: Tokenizer, stories: Sequence[Story]) -> NDArray[np.uint8]:
    """Videos as `generate` gives them by a transformer without fault: first frames read, later ones as enumerated."""
    spec, videos = tokenizer.spec, []
    for story in stories:
        first = torch.from_numpy(frames_of(story)[:1]).permute(0, 3, 1, 2)[None] / 255.0
        codes = dictionary().of(story)[1].astype(np.int64) + spec.codes
        later = np.pad(codes, ((0, 0), (1, 0)), constant_values=spec.delimiter).reshape(1, -1)
        given, memories = tokenizer.decode_context(tokenizer.tokenize(first)[:, : spec.prompt_tokens])
        pixels = torch.cat([given, tokenizer.decode_later(torch.from_numpy(later), memories)], 1)[0]
        videos.append((pixels.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).numpy())
    return np.stack(videos)


def obedience(videos: NDArray[np.uint8], stories: Sequence[Story]) -> dict[str, float]:
    """Shares of predicted frames whose object is where the pushes say, within `LIMITS`, and of clips with all of them.

    `look` is the share of frames with the right shape and colour, `first` that of first predicted frames within the
    tighter limit, `unmoved` that of frames which an object that never moves would be right in.
    """
    gaps, kept, still = [], [], []
    for video, story in zip(videos, stories, strict=True):
        wanted = np.array([centre(spot) for spot in story.places[1 : len(video)]], float)
        seen = follow(video)[1:]
        found = np.array([(s.x, s.y) if s else (np.inf, np.inf) for s in seen])
        gaps.append(np.abs(found - wanted).max(1))
        kept.append([s is not None and (s.shape, s.color) == (story.look.shape, story.look.color) for s in seen])
        still.append(np.abs(np.array(centre(story.start)) - wanted).max(1))
    gap = np.stack(gaps)
    return {
        **{f"within_{limit}": float((gap <= limit).mean()) for limit in LIMITS},
        **{f"clips_{limit}": float((gap <= limit).all(1).mean()) for limit in LIMITS},
        "first": float((gap[:, 0] <= LIMITS[0]).mean()),
        "look": float(np.mean(kept)),
        "unmoved": float((np.stack(still) <= LIMITS[0]).mean()),
    }


def psnr(videos: NDArray[np.uint8], reference: NDArray[np.uint8]) -> float | None:
    """PSNR in dB of the mean squared error of all predicted frames together; None where they are equal."""
    error = np.square(videos[:, 1:] / 255.0 - reference[:, 1:] / 255.0).mean()
    return float(-10 * np.log10(error)) if error else None


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="mini-actions")
    parser.add_argument("--clips", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tau", default="off", help="several with a semicolon between; the first is the reference")
    parser.add_argument("--ratio", default="", help="replay ratios to keep, the same way")
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    options = parser.parse_args(arguments)
    stories = held_out(options.clips, options.seed)
    truth = np.stack([frames_of(story) for story in stories])
    rows: list[dict[str, Any]] = []
    asked: list[tuple[str, Any]]
    reference: NDArray[np.uint8] | None = None
    exact = drawn_from_true_codes(ActionsTokenizer.of_model(options.model), stories)
    asked = [("tau", tau.strip()) for tau in options.tau.split(";")]
    asked += [("ratio", float(ratio)) for ratio in options.ratio.split(";") if ratio]
    for key, value in asked:
        config = load_config(None, options.overrides, {"model": options.model, f"replay.{key}": value})
        videos, ratios = generate(VideoPipeline.from_config(config), stories, options.seed)
        reference = videos if reference is None else reference
        same = float((videos == reference).all((1, 2, 3, 4)).mean())
        quality = {"psnr_truth": psnr(videos, truth), "psnr_reference": psnr(videos, reference), "same": same}
        rows.append({f"asked_{key}": value, **obedience(videos, stories), **quality, **ratios})
    print(
        json.dumps(
            {
                "model": options.model,
                "clips": options.clips,
                "seed": options.seed,
                "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
                "commit": commit() or "unknown",
                "true_codes": {**obedience(exact, stories), "psnr_truth": psnr(exact, truth)},
                "replay": rows,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
