"""One sweep from a request to its tables: what the command line calls."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fastcar_cli.checkpoints.hub import repository_of
from fastcar_cli.config.lists import MOST, parse_shard, shard_of
from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.decoding.replay.scores import DEFAULT
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.pipeline.clips import Inputs
from fastcar_cli.pipeline.engines import Engine, open_engine
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.sweep.clips import named_clips
from fastcar_cli.sweep.fingerprint import fingerprint
from fastcar_cli.sweep.grid import OFF, Cell, Grid, Group
from fastcar_cli.sweep.lock import lock_folder, master
from fastcar_cli.sweep.metrics import Scorer
from fastcar_cli.sweep.names import VBENCH_FPS, check_names, link_names
from fastcar_cli.sweep.report.build import write_report
from fastcar_cli.sweep.results import build
from fastcar_cli.sweep.runner import outstanding, run_groups
from fastcar_cli.sweep.store import Store
from fastcar_cli.sweep.summary import write_tables
from fastcar_cli.sweep.worker import Record, Worker
from fastcar_cli.system.plugins import can_judge


@dataclass(frozen=True)
class Request:
    """A sweep as requested, parsed but not yet checked against a model. None: the configuration's own value.

    `record` gives arrays to save with each cell; the fingerprint has its name. `inputs` replace prompts.
    """

    config: RunConfig
    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    taus: tuple[float | None, ...] | None
    windows: tuple[int | None, ...] | None = None
    gates: tuple[str, ...] | None = None
    backends: tuple[str, ...] | None = None
    repeats: int = 3
    metrics: tuple[str, ...] = ()
    lpips: Path | None = None
    vbench: bool = False
    shard: str | None = None
    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    scores: tuple[str, ...] | None = None
    ratios: tuple[float, ...] | None = None
    drafts: tuple[str, ...] | None = None
    record: Record | None = None
    inputs: Inputs = field(default_factory=Inputs)

    @property
    def kept_ratios(self) -> tuple[float, ...]:
        """Ratios that a controller keeps: those requested, else the configuration's."""
        own = self.config.replay.ratio
        return self.ratios if self.ratios is not None else () if own is None else (own,)


@dataclass
class Session:
    """A request with its model loaded and its grid made.

    Notices are for the user; `on_done`, where set, is called with each decode that is on disk.
    """

    request: Request
    worker: Worker
    grid: Grid
    groups: list[Group]
    notices: list[str] = field(default_factory=list)
    on_done: Callable[[Cell], None] | None = None

    @classmethod
    def open(cls, request: Request, loaded: VideoPipeline | None = None) -> Session:
        """Load the model, unless a pipeline has it, and refuse what is impossible. Raises RequestError."""
        config = _plain(request)
        pipe = VideoPipeline.from_config(config) if loaded is None else loaded.with_config(config)
        taus = request.taus
        if taus is None:
            tau = request.config.replay.tau
            nothing = tau.off and not (request.kept_ratios or request.drafts)
            if nothing or len(tau.values) > 1:
                raise RequestError("no thresholds given", hint=(Key("tau"), " off,0,-1,-2,-4"))
            taus = () if tau.off else tau.values
        clips = named_clips(request.inputs, pipe)
        gate = request.config.replay.gate or str(pipe.resolved.replay.gate)
        grid = _grid_of(request, tuple(clips) or request.prompts, taus, request.gates or (gate,))
        if len(grid) > MOST:
            raise RequestError(
                f"the grid has {len(grid)} cells, allowed: {MOST}",
                hint=(Key("seeds"), " or ", Key("tau"), " with less"),
            )
        scorer = Scorer(tuple(n for n in request.metrics if n != "fidelity"), request.lpips)
        scorer.check(pipe.height, pipe.width)
        notices = pipe.notices([clips.get(p, p) for p in grid.prompts])
        if "pair" in grid.gates and pipe.settings.sampling.cfg == 1.0:
            notices.append(
                "gate pair: without guidance (cfg 1) a video is one row, so it decides as row does; "
                "sampling.cfg=2 makes pairs"
            )
        if "fidelity" in request.metrics and not can_judge():
            notices.append("fidelity is left out: the package fastcar_lab, which judges videos, is not installed")
        if request.vbench:
            notices += check_names(grid.prompts, len(grid.seeds), pipe.fps)
        for backend in grid.backends:
            # Refuses an accelerator that is unknown or too small before any work is done.
            pipe.with_config(config.changed({"backend.name": backend}))
        for ratio in grid.ratios:
            # Refuses what these frames can't reach.
            pipe.with_config(config.changed({"replay.ratio": ratio}))
        worker = Worker(config, scorer, "fidelity" in request.metrics, pipe, request.record, clips)
        for draft in grid.drafts:
            # Refuses a window above a frame.
            worker.pipe(replace(next(grid.cells()), draft=draft))
        groups = shard_of(grid.groups(), request.shard)
        if not groups:
            notices.append(
                f"shard {request.shard} has nothing to do: the grid has {len(grid.groups())} groups of a dense cell "
                "and what is compared with it"
            )
        return cls(request, worker, grid, groups, notices)

    @property
    def shard(self) -> tuple[int, int] | None:
        """(k, n) of `--shard`."""
        return None if self.request.shard is None else parse_shard(self.request.shard)

    def fingerprint(self) -> dict[str, Any]:
        """What the results depend on besides the axes."""
        request = self.request
        keys = fingerprint(self.worker.base, request.config.model, request.metrics, request.lpips, self.grid.backends)
        return {**keys, "tokens": request.record.__name__} if request.record else keys

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[Store]:
        """The store of a folder, locked, claimed for this configuration and read. Raises RequestError."""
        store = Store.make(folder)
        with lock_folder(folder, self.shard):
            store.claim(self.fingerprint(), self.grid)
            if self.shard is None:
                store.clean()
            store.read()
            yield store

    def left(self, store: Store | None) -> int:
        """Decodes that are not on disk."""
        return outstanding(self.groups, self.grid.repeats, store)

    def expected_seconds(self, store: Store | None) -> dict[str, float]:
        """Seconds that are left by backend: the wall time of one short dense decode for each video left.

        An upper bound where cells replay; metrics are not in it.
        """
        seconds: dict[str, float] = {}
        for backend in self.grid.backends:
            groups = [g for g in self.groups if g.reference.backend == backend]
            decodes = outstanding(groups, self.grid.repeats, store)
            cell = Cell(self.grid.prompts[0], self.grid.seeds[0], None, self.grid.windows[0], "row", backend)
            self.worker.warm_up(cell)
            pipe = self.worker.pipe(cell)
            short = pipe.with_settings(frames=min(2, pipe.frames))
            began = time.perf_counter()
            short.run([self.worker.begin(cell.prompt)], [cell.seed])
            share = pipe.settings.frames / short.settings.frames
            seconds[backend] = (time.perf_counter() - began) * share * decodes
        return seconds

    def engine(self) -> contextlib.AbstractContextManager[Engine]:
        """Where this sweep's cells are decoded; entering raises RequestError where Ray is missing."""
        request = self.request
        return open_engine(self.worker, request.engine, request.address, request.workers)

    def run(self, store: Store, engine: Engine) -> None:
        """Decode what is missing of the grid."""
        run_groups(self.groups, self.grid.repeats, store, engine, self.on_done)

    def finish(self, store: Store) -> tuple[dict[str, Any], list[str], list[str]]:
        """Write the tables, the names of `--names` and the report; the results, what is where, notes for the user."""
        written: list[str] = []
        with master(store.folder):
            if self.shard is not None:
                store.read()
                # Another shard may have joined axes of its own.
                store.axes = store.compare(self.fingerprint())[1]
            config = self.worker.base.resolved.to_dict()
            results = build(store, self.worker.base, config, self.worker.scorer.keys)
            notes = write_tables(store.folder, results)
            if self.request.vbench:
                written.append(f"videos by VBench's names are in {link_names(store, self.grid)}")
            if results["cells"]:
                written.append(f"report: {write_report(store.folder)}")
        return results, written, notes


def _grid_of(
    request: Request, prompts: tuple[str, ...], taus: tuple[float | None, ...], gates: tuple[str, ...]
) -> Grid:
    """The grid of a request, its other axes from the configuration. Raises RequestError where it compares nothing."""
    config = request.config
    grid = Grid(
        prompts=prompts,
        seeds=request.seeds,
        taus=taus,
        windows=request.windows or (config.attention.window,),
        gates=gates,
        backends=request.backends or (config.backend.name,),
        repeats=request.repeats,
        scores=request.scores or (config.replay.score,),
        ratios=request.kept_ratios,
        drafts=request.drafts or (OFF,),
    )
    if len(grid.scores) > 1 and any(t is not None for t in grid.taus):
        raise RequestError(
            "a threshold means something else under each",
            key="score",
            value=",".join(grid.scores),
            hint=(Key("replay_ratio"), " 0.2,0.5,0.8 instead of ", Key("tau")),
        )
    return grid


def _plain(request: Request) -> RunConfig:
    """The configuration without what the grid decides. Raises RequestError for keys that contradict a sweep."""
    config = request.config
    if config.generation.samples != 1:
        raise RequestError(
            ("a sweep takes its videos from ", Key("seeds")), key="generation.samples", hint=(Key("seeds"), " 0-3")
        )
    keys: dict[str, Any] = {"generation.seed": None, "replay.tau": "off", "replay.ratio": None, "replay.gate": None}
    if request.vbench and config.video.fps is None:
        keys["video.fps"] = VBENCH_FPS
    # What replay brings is measured alone unless drafts are wanted.
    kind = OFF if request.drafts else config.draft.kind or OFF
    return config.changed({**keys, "replay.score": DEFAULT, "draft.kind": kind})


def grid_document(request: Request, folder: Path | None) -> dict[str, Any]:
    """What `--dry-run` prints: the grid, what of it is finished in the folder, and seconds expected by backend.

    The weights of a model on the hub are not fetched for it, so there nothing is measured and no default of the
    model is known. Raises RequestError as the sweep would.
    """
    if repository_of(request.config.model) is not None:
        if request.taus is None or request.gates is None:
            raise RequestError(
                ("the grid of a model on the hub loads nothing, so it needs ", Key("tau"), " and ", Key("gate")),
                hint=(Key("gate"), " row"),
            )
        names = request.prompts or tuple(file.name for file in request.inputs.files)
        grid = _grid_of(request, names, request.taus, request.gates)
        groups, notes, seconds, left = shard_of(grid.groups(), request.shard), [], None, None
    else:
        session = Session.open(request)
        grid, groups, notes = session.grid, session.groups, session.notices
        store = None
        if folder is not None and (folder / "sweep.json").exists():
            store = Store(folder)
            store.compare(session.fingerprint())
            store.read(c for g in groups for c in g.all)
            notes = [*notes, *(f"damaged cell, it would be made again: {d}" for d in store.damaged)]
        left, seconds = session.left(store), session.expected_seconds(store)
    cells = sum(len(g.all) for g in groups)
    return {
        "plan": grid.to_dict(),
        "shard": request.shard,
        "cells": cells,
        "decodes": cells * grid.repeats,
        "left": cells * grid.repeats if left is None else left,
        "expected_s": seconds,
        "notes": notes,
    }
