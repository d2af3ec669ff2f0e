"""Several videos side by side in one file, each under its prompt, or with what was replayed laid over it.

`fastcar lab contact-sheet -o sheet.png` draws 48 videos of held-out captions, four frames each, and marks those that
the analyser finds wrong.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fastcar_cli.errors import RequestError
from fastcar_cli.media import open_writer
from fastcar_lab.claims.prompts import prompts_for
from fastcar_lab.common import pipeline_of, pyplot
from fastcar_lab.evaluation import generate_videos
from fastcar_lab.worlds import world_of

_GAP, _LINE, _LINES = 6, 13, 2  # pixels between videos, of a line of text, and lines of a prompt
_TINT = (0, 200, 90)  # colour of what was replayed
Frames = NDArray[np.uint8]


def _titled(width: int, text: str) -> Frames:
    """A prompt in black on white, [height, width, 3]."""
    image = Image.new("RGB", (width, _LINE * _LINES + 4), "white")
    lines = textwrap.wrap(text, max(8, width // 6), max_lines=_LINES, placeholder="...")
    ImageDraw.Draw(image).text((1, 1), "\n".join(lines), fill="black", font=ImageFont.load_default(), spacing=2)
    return np.asarray(image)


def side_by_side(videos: Sequence[Frames], titles: Sequence[str], columns: int) -> Frames:
    """Videos uint8 [T, H, W, 3] of one size as one [T, ..., 3], row by row, each under its title."""
    frames, _, width, _ = videos[0].shape
    gap = ((0, 0), (0, _GAP), (0, _GAP), (0, 0))
    tiles = []
    for video, title in zip(videos, titles, strict=True):
        head = np.broadcast_to(_titled(width, title), (frames, _LINE * _LINES + 4, width, 3))
        tiles.append(np.pad(np.concatenate([head, video], 1), gap, constant_values=255))
    columns = min(columns, len(tiles))
    tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % columns)
    rows = [np.concatenate(tiles[i : i + columns], 2) for i in range(0, len(tiles), columns)]
    return np.concatenate(rows, 1)[:, :-_GAP, :-_GAP]


def laid_over(video: Frames, share: NDArray[np.float64], grid: tuple[int, int]) -> Frames:
    """A video [T, H, W, 3] darkened, and green where MLPs were replayed: `share` [T, N] of them for each token."""
    frames, height, width, _ = video.shape
    rows, columns = grid
    places = share.reshape(frames, rows, columns).repeat(height // rows, 1).repeat(width // columns, 2)[..., None]
    return np.asarray(0.55 * video + 0.45 * places * np.array(_TINT), np.uint8)


def showcase(
    file: Path,
    model: str,
    prompts: Sequence[str],
    seeds: Sequence[int],
    *,
    tau: str,
    columns: int,
    scale: int,
    replayed: bool,
) -> list[float]:
    """Write the videos of prompts with a seed each; their replay ratios. With `replayed` each has a twin showing it."""
    pipe = pipeline_of(model, replay__tau=tau)
    tiles, titles, ratios = [], [], []
    for prompt, seed in zip(prompts, seeds, strict=True):
        videos, _ = generate_videos(pipe, [prompt], [seed])
        ratio = float(pipe.report(0)["replay"]["ratio"])
        ratios.append(ratio)
        tiles.append(videos[0])
        titles.append(prompt)
        if replayed:
            share = pipe.decisions().replayed[:, 0].mean(0)
            # The last token is no input of any pass.
            whole = np.append(share, share[-1]).reshape(pipe.frames, pipe.tokens_per_frame)
            tiles.append(laid_over(videos[0], whole, pipe.grid))
            titles.append(f"green: MLPs that were replayed, {ratio:.0%} of all")
    large = [tile.repeat(scale, 1).repeat(scale, 2) for tile in tiles]
    with open_writer(file, fps=pipe.fps, recipe={}) as writer:
        for frame in side_by_side(large, titles, columns):
            writer.add(frame)
    return ratios


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
    """Draw videos of captions that training left out into a file; how many of them are wrong. Raises RequestError for a
    model of none of our worlds.
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
