"""Decodes cells and measures them. A worker holds one loaded model on one device.

Only decoding is timed, by the engine's own clock and with nothing else inside; metrics come afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.checkpoints.memory_plan import memory_errors
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.config.tau import OFF, Tau
from fastcar_cli.decoding.replay.scores import DEFAULT
from fastcar_cli.errors import Key
from fastcar_cli.inputs.prompt import Clip, Prompt
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.pipeline.videos import Video
from fastcar_cli.sweep.grid import OFF as NO_DRAFTS
from fastcar_cli.sweep.grid import Cell
from fastcar_cli.sweep.metrics import Scorer
from fastcar_cli.sweep.store import CellRecord
from fastcar_cli.system.plugins import world_of


@dataclass(frozen=True)
class Task:
    """Cells of one group to decode once each, the dense one first.

    `known` are cells that were measured before and are only timed again. `reference` are the dense cell's frames
    where it is among neither.
    """

    cells: tuple[Cell, ...]
    known: frozenset[Cell]
    reference: NDArray[np.uint8] | None


@dataclass(frozen=True)
class Timing:
    """One more timed decode of a cell that was measured before."""

    cell: Cell
    run: dict[str, float]


Finding = CellRecord | Timing
Record = Callable[[VideoPipeline], dict[str, NDArray[Any]]]
"""Arrays to save with a cell, from the pipeline that decoded it."""


class Worker:
    """A loaded model that decodes cells of any setting."""

    def __init__(
        self,
        config: RunConfig,
        scorer: Scorer,
        fidelity: bool,
        pipe: VideoPipeline | None = None,
        record: Record | None = None,
        clips: Mapping[str, Clip] | None = None,
    ) -> None:
        """Load the model of `config` unless a pipeline that has it is given.

        `fidelity` judges videos where the model's world has a judge. `clips` are the clips of prompts by name.
        """
        self.clips = dict(clips or {})
        self.record = record
        self.config, self.scorer = config, scorer
        self.base = pipe or VideoPipeline.from_config(config)
        base = self.base
        world = world_of(base.model.tokenizer, base.height, base.width) if fidelity else None
        self.judge = None if world is None else world.judge
        self._warm: set[str] = set()

    def again(self) -> Callable[[], Worker]:
        """As `engines.TaskWorker` describes."""
        lpips = self.scorer.lpips
        scorer = replace(self.scorer, lpips=None if lpips is None else lpips.resolve())
        fidelity = self.judge is not None
        return partial(Worker, self.config, scorer, fidelity, record=self.record, clips=self.clips)

    def begin(self, prompt: str) -> Prompt:
        """The clip of that name, else the text itself."""
        return self.clips.get(prompt, prompt)

    def pipe(self, cell: Cell) -> VideoPipeline:
        """The pipeline of a cell, sharing the model."""
        keys = {"replay.tau": "off" if cell.tau is None else cell.tau, "replay.ratio": cell.ratio}
        keys |= {"replay.gate": cell.gate, "replay.score": cell.score}
        keys |= {"attention.window": cell.window, "backend.name": cell.backend}
        if cell.draft != NO_DRAFTS:
            kind, _, window = cell.draft.partition("-")
            keys |= {"draft.kind": kind, "draft.window": int(window)}
        return self.base.with_config(self.config.changed(keys))

    def warm_up(self, cell: Cell) -> None:
        """Decode up to two frames with and without replay, so that no timing holds what only a first run does."""
        if cell.backend in self._warm:
            return
        pipe = self.pipe(cell)
        for tau in (OFF, Tau((-np.inf,))):
            rule = replace(pipe.settings.rule, tau=tau, target=None, score=DEFAULT)
            short = pipe.with_settings(rule=rule, frames=1 if tau.off else min(2, pipe.frames))
            short.run([self.begin(cell.prompt)], [cell.seed])
        self._warm.add(cell.backend)

    def decode(self, cell: Cell) -> tuple[VideoPipeline, Video]:
        """Decode a cell; its pipeline, and the video."""
        with memory_errors(("fewer ", Key("frames"), " need less; finished cells stay")):
            self.warm_up(cell)
            pipe = self.pipe(cell)
            (video,) = pipe.videos([self.begin(cell.prompt)], [cell.seed])
            return pipe, video

    def work(self, task: Task) -> Iterator[Finding]:
        """Each cell of a task in turn, as soon as it is done."""
        reference = task.reference
        for cell in task.cells:
            pipe, video = self.decode(cell)
            run = {k: video.report["timing"][k] for k in ("decode_s", "tokens_per_s")}
            if cell.dense:
                reference = video.frames
            if cell in task.known:
                yield Timing(cell, run)
                continue
            yield self._measure(cell, pipe, video, None if cell.dense else reference, run)

    def _measure(
        self,
        cell: Cell,
        pipe: VideoPipeline,
        video: Video,
        reference: NDArray[np.uint8] | None,
        run: dict[str, float],
    ) -> CellRecord:
        report, images = video.report, video.frames
        replay = report["replay"]
        means, frames = (None, None) if reference is None else self.scorer.score(images, reference)
        accelerator = report["backend"]
        document: dict[str, Any] = {
            "metrics": means,
            "frames": frames,
            "fidelity": None if self.judge is None else self.judge(images, report["reading"]["tokens"]),
            "replay": {
                **{k: replay[k] for k in ("ratio", "eligible_ratio", "by_layer", "by_frame")},
                "map": replay_map(pipe),
            },
            "drafts": draft_data(pipe, report["draft"]),
            "fpga": {k: accelerator[k] for k in ("cycles", "latency_s", "energy_j")}
            if accelerator["name"] == "fpga-sim"
            else None,
            "kernels": report["kernels"]["name"],
            "digest": hashlib.sha256(images.tobytes()).hexdigest(),
            "runs": [run],
        }
        arrays = self.record(pipe) if self.record else None
        return CellRecord(cell, document, images, pipe.fps, self.config.video.scale, video.recipe, arrays)


def draft_data(pipe: VideoPipeline, report: dict[str, Any]) -> dict[str, Any]:
    """What drafts did: tokens a pass, of the video and of each frame, and which codes were drafted right, [T, h, w].

    A pass belongs to the frame of its first new token. 0, and no tokens a pass, in frames that the prompt holds; all
    pictures of a frame of codes have what it has.
    """
    decode, (h, w) = pipe.decode, pipe.grid
    assert decode is not None and decode.drafter is not None
    last, pictures = decode.settings.frames - 1, decode.model.spec.frame_spec.pictures
    tokens, passes = np.zeros(last + 1), np.zeros(last + 1)
    for run in decode.drafter.passes:
        frame = min((run.first[0] + 1) // decode.frame, last)
        tokens[frame] += run.accepted[0]
        passes[frame] += 1
    each = [
        t / p if p else None for t, p in zip(tokens.tolist(), passes.tolist(), strict=True) for _ in range(pictures)
    ]
    codes = [place for place in range(decode.frame) if place not in decode.model.spec.layout.delimiters]
    places = np.zeros((pipe.frames, h, w), np.int64)
    drafted = decode.drafter.drafted[0].view(-1, decode.frame)[:, codes].view(-1, h, w)
    places[pipe.context :] = drafted.repeat_interleave(pictures, 0).numpy()
    return {
        **{key: report[key] for key in ("passes", "tokens_per_pass", "accepted_by_frame")},
        "tokens_by_frame": [None] * pipe.context + each,
        "map": places.tolist(),
    }


def replay_map(pipe: VideoPipeline) -> list[list[list[float]]]:
    """Share of layers and rows that replayed at each code's position, [T, h, w].

    0 in frames that the prompt holds, and for the last token, which is never fed back.
    """
    h, w = pipe.grid
    places = np.zeros((pipe.frames, h, w))
    if pipe.decode is not None:
        places[pipe.context :] = pipe.decode.replay_shares().view(-1, h, w).numpy()
    return np.round(places, 4).tolist()
