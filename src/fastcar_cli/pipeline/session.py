"""A play session with its files: an actions file with a line per frame, and the video once it is saved."""

from __future__ import annotations

import contextlib
import tempfile
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fastcar_cli.errors import RunError
from fastcar_cli.media import open_writer
from fastcar_cli.system.files import make_folder, numbered, reason_of
from fastcar_cli.system.signals import uninterrupted

if TYPE_CHECKING:
    from fastcar_cli.pipeline.pipeline import VideoPipeline
    from fastcar_cli.pipeline.play import World

IN_MEMORY = 2**26  # maximum bytes of unsaved frames in memory; more go to a temporary file


class PlaySession:
    """A world that writes its frames and actions to files.

    Attributes:
        steered: how players steer this model.
        path: the video's file; its name gets a number if it exists when the first frame is decoded.
        first: the frames that it began with, uint8 [n, H, W, 3]; `newest` contains the last ones.
        seconds: time of each step.

    """

    def __init__(self, pipe: VideoPipeline, frames: NDArray[np.uint8], seed: int, path: Path) -> None:
        """See `VideoPipeline.play`. Raises RequestError."""
        self.first, self._wanted = frames, path
        self._begin(pipe, pipe.play(frames, seed))

    def _begin(self, pipe: VideoPipeline, world: World) -> None:
        self.pipe, self.world, self.path = pipe, world, self._wanted
        self.size, self.reach, self.steered = world.spec.conditions, world.reach, world.spec.steering
        self.newest = deque(world.context, maxlen=len(world.context))
        self.seconds: list[float] = []
        self._passes = self._saved = 0
        self._pixels = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115
        self._actions: TextIO | None = None

    def restart(self, *, seed: int | None = None, here: bool = False, changes: dict[str, Any] | None = None) -> None:
        """Save, then begin again from the first frames or the newest (`here`). Raises RequestError, RunError."""
        pipe = self.pipe.with_config(self.pipe.config.changed(changes)) if changes else self.pipe
        world = pipe.play(np.stack(self.newest) if here else self.first, self.world.seed if seed is None else seed)
        self.save()
        self._begin(pipe, world)

    @property
    def decoded(self) -> int:
        """Number of steps."""
        return len(self.seconds)

    @property
    def actions_path(self) -> Path:
        """The actions file: CSV with a line per step, as `fastcar play --actions` reads it."""
        return self.path.with_suffix(".csv")

    def ahead(self, action: ArrayLike) -> None:
        """Decode the next frame ahead if `action` equals the last one."""
        if self.decoded and np.array_equal(self.world.actions[-1], action):
            self.world.ahead()

    def step(self, action: ArrayLike) -> tuple[NDArray[np.uint8], dict[str, Any]]:
        """Like `World.step`; also appends the action to the CSV file. Raises RequestError, RunError for a full disk."""
        self.world.checked(action)
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
        make_folder(self._wanted.parent)
        for path in numbered(self._wanted):
            self.path = path
            if not path.exists():
                with contextlib.suppress(FileExistsError):
                    return self.actions_path.open("x", buffering=1, encoding="utf-8")
        raise AssertionError("names do not end")

    def save(self) -> None:
        """Write the video so far if it has new frames; replaces an earlier file of this session. Raises RunError."""
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
        """Statistics of the session so far: steps, share of hits, tokens per pass, p50 and p99 of seconds per step."""
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
        pipe, run, saved = self.pipe, self.pipe.resolved, self.decoded > 0
        return {
            **{"model": pipe.name, "seed": self.world.seed, "tau": run.to_dict()["replay"]["tau"]},
            **{"draft": run.draft.kind, **self.statistics()},
            "video": {
                **{"path": str(self.path) if saved else None, "frames": len(self.world.context) + self.decoded},
                **{"height": pipe.height, "width": pipe.width, "fps": pipe.fps},
            },
            "actions": str(self.actions_path) if saved else None,
        }
