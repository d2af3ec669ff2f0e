"""fastcar from Python as users of diffusers expect it: a pipeline by name, called with a prompt, gives a video."""

from __future__ import annotations

import base64
import secrets
import tempfile
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.config.run_config import load_config, settings
from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import Prompt
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.pipeline.recipe import recipe_of

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True, eq=False, repr=False)
class Video:
    """A finished video.

    Attributes:
        frames: pixels, uint8 [frames, height, width, 3].
        fps: frames a second.
        report: what `fastcar generate --json` prints of it.
        recipe: what makes it again; `save` writes it into the file.

    """

    frames: NDArray[np.uint8]
    fps: int
    report: dict[str, Any]
    recipe: dict[str, Any]

    def save(self, path: str | Path, scale: int = 1) -> Path:
        """Write an MP4, GIF or folder of PNGs, each pixel `scale` times as large; an existing file is replaced.

        Raises RequestError for another kind of name.
        """
        from fastcar_cli.media import open_writer

        writer = open_writer(Path(path), fps=self.fps, scale=scale, recipe=self.recipe)
        try:
            for frame in self.frames:
                writer.add(frame)
            writer.close()
        finally:
            writer.abort()
        return Path(path)

    def __repr__(self) -> str:
        count, height, width = self.frames.shape[:3]
        return f"Video({self.recipe['prompt']!r}, seed {self.recipe['seed']}: {count} frames of {width} x {height})"

    def _repr_html_(self) -> str:
        """The video as a GIF of at least 256 pixels a side, as notebooks show it."""
        with tempfile.TemporaryDirectory() as folder:
            file = self.save(Path(folder) / "video.gif", max(1, -(-256 // max(self.frames.shape[1:3]))))
            data = base64.b64encode(file.read_bytes()).decode()
        return f'<img src="data:image/gif;base64,{data}" alt="">'


class Pipeline(VideoPipeline):
    """A model that is called with prompts.

    Example:
        >>> pipe = Pipeline.from_pretrained("table", tau=-2)
        >>> pipe("a red ball rolls to the right", seed=1).save("ball.mp4")

    """

    @classmethod
    def from_pretrained(cls, model: str, **options: Any) -> Self:
        """Load a model by name or folder; `options` are those of `fastcar generate`, as tau=-2 or kv_dtype="int8".

        Drafts are `auto` as there, which changes no video. Raises RequestError for what can't be done here, and for an
        unknown option.
        """
        keys = {s.flag.strip("-").replace("-", "_"): s.key for s in settings().values() if s.flag is not None}
        if unknown := sorted(options.keys() - keys.keys()):
            raise RequestError(f"{unknown[0]} is no option", allowed=", ".join(keys))
        flags = {"draft.kind": "auto"} | {keys[name]: value for name, value in options.items()} | {"model": model}
        pipe = cls.from_config(load_config(flags=flags))
        assert isinstance(pipe, cls)
        return pipe

    @overload
    def __call__(self, prompt: str, seed: SupportsIndex | None = None) -> Video: ...
    @overload
    def __call__(self, prompt: list[Prompt], seed: SupportsIndex | None = None) -> list[Video]: ...
    def __call__(self, prompt: str | list[Prompt], seed: SupportsIndex | None = None) -> Video | list[Video]:
        """Decode one video a prompt, a `str` being one; the first draws from `seed`, the others from the next ones.

        Without a seed one is drawn, which the video's report has. Prompts of a model that continues frames are `Clip`s,
        see `clips_of`. Raises RequestError for a prompt that the model does not take, and for what is no seed.
        """
        prompts = [prompt] if isinstance(prompt, str) else prompt
        given = secrets.randbelow(2**31) if seed is None else seed
        first = index(given) if isinstance(given, SupportsIndex) else -1
        if not 0 <= first <= 2**63 - len(prompts):
            raise RequestError("not allowed", key="seed", value=repr(seed), allowed="whole numbers from 0 to 2**63 - 1")
        seeds = range(first, first + len(prompts))
        images: list[list[NDArray[np.uint8]]] = [[] for _ in prompts]
        videos: dict[int, Video] = {}
        for frame in self.stream(prompts, seeds):
            i = frame.video
            images[i].append(frame.image)
            if len(images[i]) == self.frames:
                recipe = recipe_of(self, prompts[i], seeds[i], self.prompt_ids(i))
                videos[i] = Video(np.stack(images[i]), self.fps, self.report(i), recipe)
        made = [videos[i] for i in range(len(prompts))]
        return made[0] if isinstance(prompt, str) else made
