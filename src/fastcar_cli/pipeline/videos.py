"""Results of a pipeline: frames, and finished videos with report and recipe."""

from __future__ import annotations

import base64
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Frame:
    """One finished frame: index of its video, index in it, pixels uint8 [H, W, 3]."""

    video: int
    index: int
    image: NDArray[np.uint8]


@dataclass(frozen=True, eq=False, repr=False)
class Video:
    """A finished video: pixels uint8 [frames, height, width, 3], frames per second. `report` is the document that
    `fastcar generate --json` prints; `recipe`, which `save` also writes, reproduces the video.
    """

    frames: NDArray[np.uint8]
    fps: int
    report: dict[str, Any]
    recipe: dict[str, Any]

    def save(self, path: str | Path, scale: int = 1) -> Path:
        """Write or replace an MP4, GIF or folder of PNGs, enlarged `scale` times. Raises RequestError."""
        from fastcar_cli.media import open_writer

        with open_writer(Path(path), fps=self.fps, scale=scale, recipe=self.recipe) as writer:
            for frame in self.frames:
                writer.add(frame)
        return Path(path)

    def __repr__(self) -> str:
        count, height, width = self.frames.shape[:3]
        return f"Video({self.recipe['prompt']!r}, seed {self.recipe['seed']}: {count} frames of {width} x {height})"

    def _repr_html_(self) -> str:
        """A GIF for notebooks, enlarged until its longer side has at least 256 pixels."""
        with tempfile.TemporaryDirectory() as folder:
            file = self.save(Path(folder) / "video.gif", max(1, -(-256 // max(self.frames.shape[1:3]))))
            data = base64.b64encode(file.read_bytes()).decode()
        return f'<img src="data:image/gif;base64,{data}" alt="">'
