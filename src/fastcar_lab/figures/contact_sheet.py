"""A picture of many generated videos with their captions, to look at.

`fastcar lab contact-sheet -o sheet.png` draws 48 videos of held-out captions, four
frames each, and marks those that the analyser finds wrong.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.errors import RequestError
from fastcar_lab.claims.prompts import prompts_for
from fastcar_lab.common import pipeline_of, pyplot
from fastcar_lab.evaluation import generate_videos
from fastcar_lab.worlds import world_of


def draw_sheet(
    file: Path, videos: NDArray[np.uint8], captions: Sequence[str], wrong: Sequence[bool], columns: int = 4
) -> None:
    """Videos uint8 [count, T, H, W, 3] with a caption each; wrong ones have a red caption."""
    plt = pyplot("a contact sheet")

    rows = -(-len(videos) // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(4.1 * columns, 1.45 * rows), squeeze=False, layout="constrained"
    )
    frames = np.linspace(0, videos.shape[1] - 1, 4).round().astype(int)
    for i, ax in enumerate(axes.flat):
        ax.axis("off")
        if i < len(videos):
            strip = [np.pad(f, ((0, 0), (0, 2), (0, 0)), constant_values=255) for f in videos[i, frames]]
            ax.imshow(np.concatenate(strip, 1))
            ax.set_title(
                textwrap.fill(captions[i], 52), fontsize=7, color="crimson" if wrong[i] else "black", parse_math=False
            )
    figure.savefig(file, dpi=100)
    plt.close(figure)


def contact_sheet(file: Path, model: str, tau: str, count: int, seed: int) -> int:
    """Draw videos of captions that training left out into a file; how many of them are wrong.

    Raises RequestError for a model of none of our worlds.
    """
    pipe = pipeline_of(model, replay__tau=tau)
    words = pipe.model.tokenizer
    world = world_of(words, pipe.height, pipe.width)
    if world is None:
        raise RequestError("it draws no world of ours", key="model", value=model, allowed="mini, table and their like")
    texts = prompts_for(pipe, count, seed)
    seeds = [seed * 1000 + i for i in range(len(texts))]
    videos, _ = generate_videos(pipe, texts, seeds, batch=12)
    said = [words.complete(words.read(text), seed).tokens for text, seed in zip(texts, seeds, strict=True)]
    wrong = [not world.judge(video, tokens)["all_right"] for video, tokens in zip(videos, said, strict=True)]
    draw_sheet(file, videos, [f"{text} (seed {seed})" for text, seed in zip(texts, seeds, strict=True)], wrong)
    return sum(wrong)
