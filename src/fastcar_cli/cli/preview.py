"""Frames in a terminal while a video is decoded: half blocks, two pixels a character."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.color import Color
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

MOST_FRAMES, MOST_ROWS = 16, 24
LINES_BELOW = 5
"""Lines of the terminal that are left to bars and the cursor."""


def lacking(console: Console) -> str | None:
    """Why pictures can't be shown there; None where they can."""
    if not console.is_terminal:
        return "standard error is not a terminal"
    return "the terminal has no colours" if console.color_system is None or console.no_color else None


class Preview:
    """The newest frames side by side, as many as the terminal has room for; a renderable of rich."""

    def __init__(self) -> None:
        self._frames: tuple[NDArray[np.uint8], ...] = ()

    def add(self, image: NDArray[np.uint8]) -> None:
        """Append a frame, uint8 [H, W, 3]; another thread may be drawing."""
        self._frames = (*self._frames, image)[-MOST_FRAMES:]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        if frames := self._frames:
            yield from _strip(frames, console.width, console.height - LINES_BELOW)


def _strip(frames: tuple[NDArray[np.uint8], ...], width: int, height: int) -> list[Segment]:
    """The last of these frames that fit, scaled down to one size, a space between them."""
    high, wide = frames[-1].shape[:2]
    rows = max(1, min(MOST_ROWS, height, high // 2, width * high // (2 * wide)))
    columns = max(1, 2 * rows * wide // high)
    fit = max(1, (width + 1) // (columns + 1))
    small = [np.asarray(Image.fromarray(f).resize((columns, 2 * rows), Image.Resampling.BOX)) for f in frames[-fit:]]
    segments = []
    for row in range(rows):
        for image in small:
            for upper, lower in zip(image[2 * row].tolist(), image[2 * row + 1].tolist(), strict=True):
                segments.append(Segment("▀", Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower))))
            segments.append(Segment(" "))
        segments[-1] = Segment.line()
    return segments
