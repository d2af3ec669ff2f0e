"""One sweep from a request to its tables, as the command line calls it."""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fastcar_cli._version import __version__
from fastcar_cli.checkpoints.hub import repository_of
from fastcar_cli.checkpoints.open import open_model
from fastcar_cli.config.lists import MOST, parse_shard, shard_of
from fastcar_cli.config.run_config import RunConfig, flat
from fastcar_cli.decoding.replay.scores import DEFAULT
from fastcar_cli.errors import Key, RequestError
from fastcar_cli.inputs.prompt import Clip, first_of
from fastcar_cli.pipeline.clips import ClipFiles
from fastcar_cli.pipeline.engines import open_engine
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.pipeline.resolve import rolls
from fastcar_cli.sweep.grid import OFF, Grid, Group
from fastcar_cli.sweep.metrics import Scorer
from fastcar_cli.sweep.names import VBENCH_FPS, check_names, link_names
from fastcar_cli.sweep.report.build import write_report
from fastcar_cli.sweep.results import build, write_tables
from fastcar_cli.sweep.store import Store, lock_folder, master
from fastcar_cli.sweep.worker import Record, Task, Worker
from fastcar_cli.system.files import sha256_of
from fastcar_cli.system.plugins import can_judge
from fastcar_fpga import preset_for

SWEPT = (
    *("generation.seed", "generation.samples", "replay.tau", "replay.gate", "replay.score", "attention.window"),
    *("backend.name", "backend.preset", "input."),
)
"""Keys that the grid sets, that only some of its cells use (`backend.preset`), or that cells contain as a hash (frames
of an input)."""


@dataclass(frozen=True)
class Request:
    """A requested sweep, not yet checked against a model. `axes`: axes of a `Grid` that replace the configuration's;
    `record` returns arrays to save with each cell.
    """

    config: RunConfig
    prompts: tuple[str, ...]
    seeds: tuple[int, ...]
    axes: Mapping[str, tuple[Any, ...]]
    repeats: int = 3
    metrics: tuple[str, ...] = ()
    lpips: Path | None = None
    vbench: bool = False
    shard: str | None = None
    engine: str = "local"
    address: str | None = None
    workers: int | None = None
    record: Record | None = None
    inputs: ClipFiles = field(default_factory=ClipFiles)


class Session:
    """A request with its model and grid; `notices` are for the user."""

    def __init__(self, request: Request, loaded: VideoPipeline | None = None) -> None:
        """Load the model, unless `loaded` has it, and check the request. Raises RequestError."""
        self.request = request
        config = request.config
        if config.generation.samples != 1:
            said = ("a sweep takes the number of videos from ", Key("seeds"))
            raise RequestError(said, key="generation.samples", hint=("use ", Key("seeds"), " 0-3"))
        # The keys of the grid. Without requested drafts the sweep measures replay alone.
        keys: dict[str, Any] = {"generation.seed": None, "replay.tau": "off", "replay.ratio": None, "replay.gate": None}
        if request.vbench and config.video.fps is None:
            keys["video.fps"] = VBENCH_FPS
        kind = OFF if "draft" in request.axes else config.draft.kind or OFF
        config = config.changed({**keys, "replay.score": DEFAULT, "draft.kind": kind})
        pipe = VideoPipeline.from_config(config) if loaded is None else loaded.with_config(config)
        clips = _named_clips(request.inputs, pipe)
        self.grid = grid = _grid_of(request, tuple(clips) or request.prompts, str(pipe.resolved.replay.gate))
        if len(grid) > MOST:
            hint = ("use fewer ", Key("seeds"), " or values of ", Key("tau"))
            raise RequestError(f"the sweep has {len(grid)} cells, allowed: at most {MOST}", hint=hint)
        scorer = Scorer(tuple(n for n in request.metrics if n != "fidelity"), request.lpips)
        scorer.check(pipe.height, pipe.width)
        self.notices = notices = first_of(pipe.notices([clips.get(p, p) for p in grid.prompts]))
        if "pair" in grid.gate and pipe.settings.sampling.cfg == 1.0:
            alike = "a video without guidance (cfg 1) has one row, so gates pair and row give the same video"
            notices.append(f"gate pair: {alike}; for pairs of rows add --set sampling.cfg=2")
        if "fidelity" in request.metrics and not can_judge():
            notices.append("fidelity is left out: the package fastcar_lab, which judges videos, is not installed")
        if request.vbench:
            notices += check_names(grid.prompts, len(grid.seeds), pipe.fps)
        self.worker = Worker(config, scorer, "fidelity" in request.metrics, request.record, clips, pipe)
        every = grid.groups()
        # Refuse before any work: an accelerator that is unknown or too small, ratios and draft lengths above a frame's.
        for axis in ("backend", "ratio", "draft"):
            for value in getattr(grid, axis):
                self.worker.pipe(replace(every[0][0], **{axis: value}))
        self.groups = shard_of(every, request.shard)
        if not self.groups:
            why = "and a shard computes whole groups; a group is a dense cell and all cells that are compared with it"
            notices.append(f"shard {request.shard} has nothing to do: the sweep has only {len(every)} groups, {why}")

    def fingerprint(self) -> dict[str, Any]:
        """Everything that changes a cell apart from its own parameters, as flat keys."""
        request, pipe = self.request, self.worker.base
        keys = {k: v for k, v in flat(pipe.resolved.to_dict()).items() if not k.startswith(SWEPT)}
        keys.pop("runtime.tokenizer", None)  # its weights are among the model's
        if not rolls(pipe.spec, pipe.resolved):
            del keys["generation.context_policy"]  # without a roll, as in folders from before this key
        network = pipe.model.network
        keys |= {
            "fastcar": __version__,
            "torch": torch.__version__.split("+")[0],
            "model": pipe.name,
            "model weights": open_model(request.config.model, request.config.runtime.tokenizer).identity.weights,
            "runtime.device": network.device.type,
            "runtime.dtype": network.weight_format,
            "metrics": ",".join(request.metrics),
        }
        if request.lpips is not None:
            keys["lpips weights"] = sha256_of(request.lpips)
        if "fpga-sim" in self.grid.backend:
            accelerator = preset_for(pipe.config.backend.preset, pipe.spec)
            known = repr((accelerator, accelerator.card, accelerator.part))
            for now, then in (("NumberFormat(", "Format("), ("DramTiming(", "Timing(")):  # as older folders have it
                known = known.replace(now, then)
            keys["backend.preset"] = hashlib.sha256(known.encode()).hexdigest()
        return {**keys, "tokens": request.record.__name__} if request.record else keys

    @contextlib.contextmanager
    def opened(self, folder: Path) -> Iterator[Store]:
        """Lock a folder, claim it for this configuration and read it; yields its store. Raises RequestError."""
        store, shard = Store.make(folder), self.request.shard
        with lock_folder(folder, None if shard is None else parse_shard(shard)):
            store.claim(self.fingerprint(), self.grid)
            if shard is None:
                store.clean()
            store.read()
            yield store

    def left(self, store: Store | None, backend: str | None = None) -> int:
        """The number of missing decodes, of one backend or of all."""
        groups = [g for g in self.groups if backend in (None, g[0].backend)]
        return sum(max(0, self.grid.repeats - (store.runs(c) if store else 0)) for g in groups for c in g)

    def expected_seconds(self, store: Store | None) -> dict[str, float]:
        """Upper bound of the remaining seconds by backend, without metrics, extrapolated from a short dense decode."""
        seconds: dict[str, float] = {}
        for backend in self.grid.backend:
            cell = replace(next(self.grid.cells()), backend=backend)
            self.worker.warm_up(cell)
            pipe = self.worker.pipe(cell)
            short = pipe.with_settings(frames=min(2, pipe.frames))
            began = time.perf_counter()
            short.run(*self.worker.inputs(cell))
            share = pipe.settings.frames / short.settings.frames
            seconds[backend] = (time.perf_counter() - began) * share * self.left(store, backend)
        return seconds

    def run(self, store: Store, on_done: Callable[[], object] = lambda: None) -> None:
        """Decode what is missing, here or on Ray; calls `on_done` for each decode, once it is on disk.

        Each round times every group once, dense cell first, so that a slow minute of the machine affects all of them.
        Raises what a decode or the disk raises, and RequestError if Ray is missing.
        """
        request, scale = self.request, self.worker.config.video.scale
        with open_engine(self.worker, request.engine, request.address, request.workers) as (run, _):
            for done in range(1, self.grid.repeats + 1):
                for finding in run(t for g in self.groups if (t := _task_of(g, done, store)) is not None):
                    store.put(finding, scale)
                    on_done()

    def finish(self, store: Store) -> tuple[dict[str, Any], list[str], list[str]]:
        """Write tables, links of `--names` and report; returns results, what was written, and notes for the user."""
        written: list[str] = []
        with master(store.folder):
            if self.request.shard is not None:
                store.read()
                # Another shard may have added its own axes.
                store.compare(self.fingerprint())
            config = self.worker.base.resolved.to_dict()
            results = build(store, self.worker.base, config, self.worker.scorer.keys)
            notes = write_tables(store.folder, results)
            if self.request.vbench:
                written.append(f"links to the videos, named as VBench requires: {link_names(store, self.grid)}")
            if results["cells"]:
                written.append(f"report: {write_report(store.folder)}")
        return results, written, notes


def _task_of(group: Group, repeats: int, store: Store) -> Task | None:
    """One run of each cell of a group that was timed fewer than `repeats` times; None if there is no such cell."""
    cells = tuple(c for c in group if store.runs(c) < repeats)
    if not cells:
        return None
    known = frozenset(c for c in cells if store.runs(c))
    alone = group[0] not in cells and len(known) < len(cells)
    return Task(cells, known, store.arrays(f"{group[0].id}.npz")["frames"] if alone else None)


def _named_clips(inputs: ClipFiles, pipe: VideoPipeline) -> dict[str, Clip]:
    """Clips by name and hash, so that a folder never mixes two clips of one name. Raises RequestError."""
    if inputs and not pipe.spec.layout.context:
        raise RequestError(f"the model {pipe.name!r} takes text, not frames", key="input", hint="give prompts")
    clips: dict[str, Clip] = {}
    for clip in (excerpt.clip for excerpt in inputs.read(pipe.spec, pipe.name, pipe.frames)):
        given = clip.frames[: pipe.context]
        digest = hashlib.sha256(given.tobytes() + (b"" if clip.actions is None else clip.actions.tobytes()))
        name = f"{clip.name} {digest.hexdigest()[:8]}"
        if name in clips:
            more = ("for more videos of it, add ", Key("seeds"))
            raise RequestError("is given twice", key="input", value=clip.name, hint=more)
        clips[name] = replace(clip, frames=given)
    return clips


def _grid_of(request: Request, prompts: tuple[str, ...], gate: str) -> Grid:
    """The grid of a request; `gate` is the model's. Raises RequestError if it compares nothing."""
    config, axes = request.config, dict(request.axes)
    own = config.replay
    axes.setdefault("ratio", () if own.ratio is None else (own.ratio,))
    if "tau" not in axes:
        nothing = own.tau.off and not (axes["ratio"] or "draft" in axes)
        if nothing or len(own.tau.values) > 1:
            raise RequestError("no thresholds given", hint=("use ", Key("tau"), " off,0,-1,-2,-4"))
        axes["tau"] = () if own.tau.off else own.tau.values
    others = {"window": config.attention.window, "gate": own.gate or gate, "backend": config.backend.name}
    axes = {name: (value,) for name, value in others.items()} | {"score": (own.score,)} | axes
    grid = Grid(prompts, request.seeds, repeats=request.repeats, **axes)
    if len(grid.score) > 1 and any(t is not None for t in grid.tau):
        hint, said = ("use ", Key("replay_ratio"), " 0.2,0.5,0.8 instead of ", Key("tau")), ",".join(grid.score)
        raise RequestError("thresholds of different scores are not comparable", key="score", value=said, hint=hint)
    return grid


def grid_document(request: Request, folder: Path | None) -> dict[str, Any]:
    """The document of `--dry-run`: grid, missing decodes, expected seconds by backend. Raises RequestError. The weights
    of a model on the hub are not downloaded, so nothing is measured and the model's defaults are unknown.
    """
    notes: list[str] = []
    left = seconds = store = None
    if repository_of(request.config.model) is not None:
        if not {"tau", "gate"} <= request.axes.keys():
            needs = ("a dry run loads no model from the hub, so it needs ", Key("tau"), " and ", Key("gate"))
            raise RequestError(needs, hint=("add ", Key("tau"), " off,-2 ", Key("gate"), " row"))
        grid = _grid_of(request, request.prompts or tuple(file.name for file in request.inputs.files), "")
        groups = shard_of(grid.groups(), request.shard)
    else:
        session = Session(request)
        grid, groups, notes = session.grid, session.groups, session.notices
        if folder is not None and (folder / "sweep.json").exists():
            store = Store(folder)
            store.compare(session.fingerprint())
            store.read(c for g in groups for c in g)
            notes = [*notes, *(f"damaged cell, which the sweep will decode again: {d}" for d in store.damaged)]
        left, seconds = session.left(store), session.expected_seconds(store)
    cells = sum(map(len, groups))
    decodes = cells * grid.repeats
    counts = {"cells": cells, "decodes": decodes, "left": decodes if left is None else left}
    return {"plan": grid.to_dict(), "shard": request.shard, **counts, "expected_s": seconds, "notes": notes}
