"""The videos that claims are judged on: run through the sweep's loop, kept in its folders, read again from there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.errors import RequestError
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.sweep.grid import Cell
from fastcar_cli.sweep.metrics import DEFAULT as METRICS
from fastcar_cli.sweep.metrics import Scorer
from fastcar_cli.sweep.results import cells_of
from fastcar_cli.sweep.session import Request, Session
from fastcar_cli.sweep.store import Store
from fastcar_cli.system.files import make_folder, read_arrays, write_arrays
from fastcar_lab.claims.observed import codes, observed
from fastcar_lab.claims.prompts import kinds_of
from fastcar_lab.claims.stats import Values, by_kind, over_kinds

TAUS = (0.0, -0.5, -1.0, -2.0, -4.0, -8.0)  # thresholds of the paper's figure 4
RATIOS = (0.2, 0.5, 0.8)  # replay ratios of the paper's table 1
MAIN, WINDOWED, OBSERVED = "main", "windows", "observed"
"""Folders of the model's own settings, of windows of attention, and of what was seen of every token."""
SIDE_BY_SIDE = 8  # videos that are observed together
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Job:
    """Cells that a claim needs: the folder's name, keys of the configuration that make it another, and axes. `axes` are
    those of a sweep's grid, and its repeats. `prompts`: how many of the study's prompts are decoded at most, from the
    first on. `observe`: every token of the dense videos, see `Study.observed`.
    """

    folder: str = MAIN
    config: tuple[tuple[str, Any], ...] = ()
    axes: tuple[tuple[str, Any], ...] = ()
    prompts: int | None = None
    observe: bool = False


@dataclass
class Study:
    """One model with its prompts and seeds."""

    model: str
    folder: Path
    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    base: RunConfig
    pipe: VideoPipeline
    _sessions: dict[str, tuple[Session, Store]] = field(default_factory=dict)

    @classmethod
    def open(
        cls, pipe: VideoPipeline, config: RunConfig, folder: Path, prompts: Sequence[str], seeds: Sequence[int]
    ) -> Study:
        """Of the model that a pipeline of this configuration has. Raises RequestError for prompts it can't read."""
        pipe.notices(prompts)
        return cls(pipe.name, folder / pipe.name, tuple(prompts), tuple(seeds), config, pipe)

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The kind of scene of each prompt."""
        return kinds_of(self.pipe, self.prompts)

    def notes_on_kinds(self, what: str, values: Values) -> list[str]:
        """A sentence on some numbers by kind of scene, where there are several."""
        estimates = by_kind(values, self.kinds)
        if len(estimates) < 2:
            return []
        each = ", ".join(f"{kind} {e.text()}" for kind, e in estimates.items())
        return [
            f"{what} by kind of scene: {each}; kinds drawn with replacement {over_kinds(values, self.kinds).text()}."
        ]

    def run(self, jobs: Sequence[Job], on_done: Callable[[str, int], None]) -> None:
        """Decode what is missing. `on_done(folder, decodes)` reports each decode on disk and of those to come. A stop
        keeps what is finished; the same call resumes.
        """
        for job in jobs:
            session = self._session(job)
            path = self.folder / job.folder
            path.parent.mkdir(parents=True, exist_ok=True)
            with session.opened(path) as store:
                on_done(job.folder, session.left(store))
                session.run(store, partial(on_done, job.folder, -1))
                session.finish(store)
                self._sessions[job.folder] = session, store
            if job.observe:
                self._observe(on_done)

    def _observe(self, on_done: Callable[[str, int], None]) -> None:
        """Observe dense videos that are not yet, some at a time: one takes half as long as eight side by side."""
        left = [c for c in self.cells() if not self._observations(c).exists()]
        make_folder(self.folder / OBSERVED)
        on_done(OBSERVED, len(left))
        while left:
            batch = left[-SIDE_BY_SIDE:]
            decode = self.pipe.run([c["prompt"] for c in batch], [c["seed"] for c in batch])
            # Where memory holds fewer, the last ones are what is decoded last.
            batch = batch[-len(decode.codes) :]
            seen = observed(decode)
            for video, cell in enumerate(batch):
                own = {k: v[..., video :: len(batch), :] if v.ndim > 2 else v for k, v in seen.items()}
                write_arrays(self._observations(cell), own)
                on_done(OBSERVED, -1)
            del left[-len(batch) :]

    def _session(self, job: Job) -> Session:
        config, axes = self.base.changed(dict(job.config)), {"tau": (), **dict(job.axes)}
        request = Request(
            config=config, prompts=self.prompts[: job.prompts], seeds=self.seeds, repeats=axes.pop("repeats", 1),
            axes=axes, metrics=self._metrics(), record=codes,
        )  # fmt: skip
        weights = {k for k, _ in job.config} & {"runtime.dtype", "model"}
        return Session(request, None if weights else self.pipe)

    def _metrics(self) -> tuple[str, ...]:
        """Those of a sweep that frames of this size allow."""
        names: tuple[str, ...] = METRICS
        for name in ("ssim", "ms-ssim"):
            try:
                Scorer((name,)).check(self.pipe.height, self.pipe.width)
            except RequestError:
                names = tuple(n for n in names if n != name)
        return names

    def reached(self, ratios: Sequence[float]) -> tuple[float, ...]:
        """Those of some ratios that this model's frames can keep."""
        reachable = []
        for ratio in ratios:
            try:
                self.pipe.with_config(self.base.changed({"replay.ratio": ratio}))
            except RequestError:
                continue
            reachable.append(ratio)
        return tuple(reachable)

    def with_frames(self, frames: int) -> VideoPipeline:
        """The model making longer videos. Raises RequestError where it has no positions for them."""
        return self.pipe.with_config(self.base.changed({"generation.frames": frames}))

    @property
    def layers(self) -> int:
        """Decoder blocks."""
        return self.pipe.layers

    @property
    def frame(self) -> int:
        """N, tokens a frame."""
        return self.pipe.tokens_per_frame

    def cells(self, folder: str = MAIN, **fields: Any) -> list[dict[str, Any]]:
        """Finished cells of this study's videos with these fields (tau, ratio, score, window, gate), by video. Fields
        that are not named are those of a dense run; the order is that of prompts and seeds.
        """
        _, store = self._sessions[folder]
        documents = []
        for cell in self._wanted(folder, **fields):
            documents += [store.cells[cell.id]] if cell.id in store.cells else []
        references = {Cell.from_dict(d).reference.id for d in documents}
        return [c for c in cells_of([*documents, *(store.cells[r] for r in references)])][: len(documents)]

    def _wanted(self, folder: str, **fields: Any) -> Iterator[Cell]:
        session, _ = self._sessions[folder]
        dense = fields.get("tau") is None and fields.get("ratio") is None
        gate = "row" if dense else session.grid.gate[0]
        for prompt in session.grid.prompts:
            for seed in self.seeds:
                yield replace(Cell(prompt, seed, None, None, gate, "torch"), **fields)

    def _observations(self, cell: dict[str, Any]) -> Path:
        return self.folder / OBSERVED / f"{Cell.from_dict(cell).id}.npz"

    def observed(self, cell: dict[str, Any]) -> Arrays:
        """What was seen of every token of a dense video, see `observed.observed`; extremes are of some videos."""
        return read_arrays(self._observations(cell))

    def tokens(self, cell: dict[str, Any], folder: str = MAIN) -> Arrays:
        """Decisions and codes of a cell, see `observed.codes`."""
        return self._sessions[folder][1].arrays(f"{cell['id']}.tokens.npz")

    def images(self, cell: dict[str, Any], folder: str = MAIN) -> NDArray[np.uint8]:
        """Frames uint8 [T, H, W, 3] of a cell, from its codes."""
        n = self.frame
        own = torch.from_numpy(self.tokens(cell, folder)["codes"].astype(np.int64)).to(self.pipe.model.network.device)
        with torch.inference_mode():
            frame_decoder = self.pipe.model.network.frame_decoder(own.new_zeros(1, 1))
            frames = torch.cat([frame_decoder.frame(part[None]) for part in own.split(n)])
            return self.pipe.model.network.to_bytes(frames).cpu().numpy()

    def scorer(self) -> Scorer:
        """Metrics of frames, for comparisons that are none of a sweep."""
        return Scorer(tuple(n for n in self._metrics() if n != "fidelity"))

    def results(self, folder: str = MAIN) -> Path:
        """results.json of a folder."""
        return self.folder / folder / "results.json"
