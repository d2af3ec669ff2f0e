"""A session of play with its files: an actions file that grows by a line a frame, and the video when it is saved."""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastcar_cli.config.run_config import flat
from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.media import open_writer
from fastcar_cli.system.files import numbered, reason_of
from fastcar_cli.system.signals import uninterrupted

if TYPE_CHECKING:
    from fastcar_cli.pipeline.pipeline import VideoPipeline

REACH = {"mini-actions": 8.0}
"""The largest number of an action either way, of models where it is known."""
IN_MEMORY = 2**26
"""Bytes of frames that wait in memory for the video; more wait in a temporary file."""


class PlaySession:
    """A world whose frames and actions are written.

    Attributes:
        path: the video's file; its name gets a number if it is taken when the first frame is decoded.
        first: the frames that it began with, uint8 [n, H, W, 3]; `newest` has the last ones.
        seconds: of each step.

    """

    def __init__(self, pipe: VideoPipeline, frames: NDArray[np.uint8], seed: int, path: Path) -> None:
        """As `VideoPipeline.play`. Raises RequestError."""
        self.pipe, self.world, self.path, self._wanted = pipe, pipe.play(frames, seed), path, path
        self.size, self.reach = self.world.spec.conditions, REACH.get(pipe.name)
        self.first, self.newest = frames, deque(self.world.context, maxlen=len(self.world.context))
        self.seconds: list[float] = []
        self._passes = self._saved = 0
        self._pixels = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
        self._actions: TextIO | None = None

    def again(
        self, *, seed: int | None = None, here: bool = False, changes: dict[str, Any] | None = None
    ) -> PlaySession:
        """A new session from the first frames or, with `here`, from the newest; keys of the run may change.

        This one is saved. Raises RequestError, and RunError as `save`.
        """
        pipe = self.pipe.with_config(self.pipe.config.changed(changes)) if changes else self.pipe
        frames = np.stack(self.newest) if here else self.first
        begun = PlaySession(pipe, frames, self.world.seed if seed is None else seed, self._wanted)
        self.save()
        return begun

    @property
    def decoded(self) -> int:
        """Number of steps."""
        return len(self.seconds)

    @property
    def actions_path(self) -> Path:
        """The actions file: CSV, a line a step, as `fastcar play --actions` reads it."""
        return self.path.with_suffix(".csv")

    def check(self, action: ArrayLike) -> None:
        """Raise RequestError for an action that `step` refuses."""
        try:
            given = np.asarray(action, np.float32)
        except (TypeError, ValueError):
            given = np.zeros(0, np.float32)
        said = repr(action)
        said = said if len(said) <= 80 else f"{said[:80]}..."
        if given.shape != (self.size,) or not np.isfinite(given).all():
            raise RequestError(f"an action of {self.pipe.name} is {self.size} finite numbers, not {said}")
        if self.reach is not None and (np.abs(given) > self.reach).any():
            raise RequestError(f"the action {said} is out of range", allowed=f"-{self.reach:g} to {self.reach:g}")

    def step(self, action: ArrayLike) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """As `World.step`, with its action written. A signal waits. Raises RequestError, RunError of a full disk."""
        self.check(action)
        with uninterrupted():
            try:
                if self._actions is None:
                    self._actions = self._open()
                image, info = self.world.step(action)
                self._pixels.write(image.tobytes())
                self._actions.write(",".join(str(float(x)) for x in self.world.actions[-1]) + "\n")
            except OSError as e:
                raise RunError(f"{self.actions_path} could not be written: {reason_of(e)}") from None
            self.newest.append(image)
            self.seconds.append(info["seconds"])
            self._passes += info["passes"]
        return image, info

    def _open(self) -> TextIO:
        for path in numbered(self._wanted):
            self.path = path
            if not path.exists():
                with contextlib.suppress(FileExistsError):
                    return self.actions_path.open("x", buffering=1, encoding="utf-8")
        raise AssertionError("names do not end")

    def save(self) -> None:
        """Write the video of the frames so far, where there are new ones; an earlier one of this session is replaced.

        Raises RunError.
        """
        if self.decoded == self._saved:
            return
        recipe, shape = self.world.recipe(self.pipe.checkpoint.identity), self.newest[-1].shape
        how: dict[str, Any] = {"fps": self.pipe.fps, "scale": self.pipe.config.video.scale, "recipe": recipe}
        with uninterrupted(), open_writer(self.path, **how) as writer:
            for image in self.world.context:
                writer.add(image)
            self._pixels.seek(0)
            for _ in self.seconds:
                writer.add(np.frombuffer(self._pixels.read(self.newest[-1].nbytes), np.uint8).reshape(shape))
        self._saved = self.decoded

    def statistics(self) -> dict[str, Any]:
        """Numbers of the session so far: steps, share of hits, tokens a pass, p50 and p99 of the seconds of a step."""
        steps, world = max(1, self.decoded), self.world
        p50, p99 = np.percentile(self.seconds, [50, 99]).tolist() if self.seconds else (None, None)
        tokens = self.decoded * world.spec.tokens_per_frame
        return {
            **{"steps": self.decoded, "hits": world.hits, "hit_share": world.hits / steps},
            "tokens_per_pass": tokens / self._passes if self._passes else None,
            "seconds": {"p50": p50, "p99": p99},
        }

    def report(self) -> dict[str, Any]:
        """The last document of `fastcar play --json`."""
        settings, pipe = flat(self.pipe.resolved.to_dict()), self.pipe
        kept = self.decoded > 0
        return {
            **{"model": pipe.name, "seed": self.world.seed, "tau": settings["replay.tau"]},
            **{"draft": settings["draft.kind"], **self.statistics()},
            "video": {
                **{"path": str(self.path) if kept else None, "frames": len(self.world.context) + self.decoded},
                **{"height": pipe.height, "width": pipe.width, "fps": pipe.fps},
            },
            "actions": str(self.actions_path) if kept else None,
        }
