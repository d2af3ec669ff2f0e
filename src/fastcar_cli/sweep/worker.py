"""Decodes and measures cells with one loaded model. The engine's clock times decoding only."""

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
from fastcar_cli.sweep.store import Finding
from fastcar_cli.system.plugins import world_of


@dataclass(frozen=True)
class Task:
    """Cells of a group to decode once; `known` ones are only timed. `reference`: dense frames of an earlier run."""

    cells: tuple[Cell, ...]
    known: frozenset[Cell]
    reference: NDArray[np.uint8] | None


Record = Callable[[VideoPipeline], dict[str, NDArray[Any]]]
"""Arrays to save with a cell, from the pipeline that decoded it."""


class Worker:
    """A loaded model that decodes cells of any setting."""

    def __init__(
        self,
        config: RunConfig,
        scorer: Scorer,
        fidelity: bool,
        record: Record | None,
        clips: Mapping[str, Clip],
        pipe: VideoPipeline | None = None,
    ) -> None:
        """Load the model unless `pipe` has it. `fidelity`: judge videos if the model's world can."""
        self.config, self.scorer, self.record, self.clips = config, scorer, record, clips
        self.base = base = pipe or VideoPipeline.from_config(config)
        world = world_of(base.model.tokenizer, base.height, base.width) if fidelity else None
        self.judge = None if world is None else world.judge
        self._warm: set[str] = set()

    def again(self) -> Callable[[], Worker]:
        """See `engines.TaskWorker`."""
        lpips = self.scorer.lpips
        scorer = replace(self.scorer, lpips=None if lpips is None else lpips.resolve())
        return partial(Worker, self.config, scorer, self.judge is not None, self.record, self.clips)

    def inputs(self, cell: Cell) -> tuple[list[Prompt], list[int]]:
        """A cell's prompt (the clip of that name, or the text itself) and its seed."""
        return [self.clips.get(cell.prompt, cell.prompt)], [cell.seed]

    def pipe(self, cell: Cell) -> VideoPipeline:
        """The pipeline of a cell, sharing the model."""
        keys = {"replay.tau": "off" if cell.tau is None else cell.tau, "attention.window": cell.window}
        keys |= {f"replay.{name}": getattr(cell, name) for name in ("ratio", "gate", "score")}
        keys |= {"backend.name": cell.backend}
        if cell.draft != NO_DRAFTS:
            kind, _, length = cell.draft.partition("-")
            keys |= {"draft.kind": kind, "draft.window": int(length)}
        return self.base.with_config(self.config.changed(keys))

    def warm_up(self, cell: Cell) -> None:
        """Decode up to two frames with and without replay, so that no timing includes the work of a first run."""
        if cell.backend in self._warm:
            return
        pipe = self.pipe(cell)
        for tau in (OFF, Tau((-np.inf,))):
            rule = replace(pipe.settings.rule, tau=tau, target=None, score=DEFAULT)
            short = pipe.with_settings(rule=rule, frames=1 if tau.off else min(2, pipe.frames))
            short.run(*self.inputs(cell))
        self._warm.add(cell.backend)

    def work(self, task: Task) -> Iterator[Finding]:
        """Yield the cells of a task in turn, each as soon as it is done."""
        reference = task.reference
        for cell in task.cells:
            with memory_errors(("to use less memory, reduce ", Key("frames"), "; finished videos are saved")):
                self.warm_up(cell)
                pipe = self.pipe(cell)
                (video,) = pipe.videos(*self.inputs(cell))
            run = {k: video.report["timing"][k] for k in ("decode_s", "tokens_per_s")}
            if cell.dense:
                reference = video.frames
            if cell in task.known:
                yield Finding(cell, run)
                continue
            document = self._measured(pipe, video, None if cell.dense else reference)
            yield Finding(cell, run, video, document, self.record(pipe) if self.record else None)

    def _measured(self, pipe: VideoPipeline, video: Video, reference: NDArray[np.uint8] | None) -> dict[str, Any]:
        report, images, fpga = video.report, video.frames, video.report["backend"]
        means, frames = (None, None) if reference is None else self.scorer.score(images, reference)
        ratios = {k: report["replay"][k] for k in ("ratio", "eligible_ratio", "by_layer", "by_frame")}
        emulated = {k: fpga[k] for k in ("cycles", "latency_s", "energy_j")} if fpga["name"] == "fpga-sim" else None
        return {
            "metrics": means,
            "frames": frames,
            "fidelity": None if self.judge is None else self.judge(images, report["reading"]["tokens"]),
            "replay": {**ratios, "map": replay_map(pipe)},
            "drafts": draft_data(pipe, report["draft"]),
            "fpga": emulated,
            "kernels": report["kernels"]["name"],
            "digest": hashlib.sha256(images.tobytes()).hexdigest(),
        }


def draft_data(pipe: VideoPipeline, report: dict[str, Any]) -> dict[str, Any]:
    """Draft statistics: tokens per pass, of the video and of each frame, and accepted drafts by position, [T, h, w]. A
    pass belongs to the frame of its first new token; context frames have 0 and None.
    """
    decode, (h, w) = pipe.decode, pipe.grid
    assert decode is not None
    last, frames = decode.settings.frames - 1, decode.model.spec.frame_spec.per_latent
    tokens, passes = np.zeros(last + 1), np.zeros(last + 1)
    for run in decode.drafter.passes:
        frame = min((run.first[0] + 1) // decode.frame, last)
        tokens[frame] += run.accepted[0]
        passes[frame] += 1
    each = [t / p if p else None for t, p in zip(tokens.tolist(), passes.tolist(), strict=True) for _ in range(frames)]
    codes = [slot for slot in range(decode.frame) if slot not in decode.model.spec.layout.delimiters]
    accepted = np.zeros((pipe.frames, h, w), np.int64)
    drafted = decode.drafter.drafted[0].view(-1, decode.frame)[:, codes].view(-1, h, w)
    accepted[pipe.context :] = drafted.repeat_interleave(frames, 0).numpy()
    return {
        **{key: report[key] for key in ("passes", "tokens_per_pass", "accepted_by_frame")},
        "tokens_by_frame": [None] * pipe.context + each,
        "map": accepted.tolist(),
    }


def replay_map(pipe: VideoPipeline) -> list[list[list[float]]]:
    """Share of layers and rows that replayed, by position, [T, h, w]; 0 in context frames and for the last token."""
    assert pipe.decode is not None
    shares = np.zeros((pipe.frames, *pipe.grid))
    shares[pipe.context :] = pipe.decode.replay_shares().view(-1, *pipe.grid).numpy()
    return np.round(shares, 4).tolist()
