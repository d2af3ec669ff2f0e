"""Several videos side by side in one file, each under its prompt; or one with what was replayed laid over it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fastcar_cli.media import open_writer
from fastcar_lab.common import pipeline_of
from fastcar_lab.evaluation import generate_videos

_GAP, _LINE, _LINES = 6, 13, 2
"""Pixels between videos, of a line of text, and lines of a prompt."""
_TINT = (0, 200, 90)
"""Colour of what was replayed."""
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
