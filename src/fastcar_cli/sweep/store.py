"""A sweep's folder: writes each cell atomically as soon as it is finished, and detects damaged ones.

DIR/sweep.json          all that determines the results (fingerprint), and the axes of all runs so far
DIR/cells/<id>.mp4      the video, <id>.npz a dense cell's frames, <id>.tokens.npz arrays of a `record`
DIR/cells/<id>.json     everything measured, with hashes of these files and of itself; written last

One sweep at a time uses a folder; shards of the same division may share one, each with its own lock.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.pipeline.videos import Video
from fastcar_cli.sweep.grid import Cell, Grid
from fastcar_cli.system.files import file_text, locked, make_folder, read_arrays, sha256_of, write_arrays, write_whole
from fastcar_cli.system.plain_data import checked, parse_json

FORMAT = "fastcar-sweep-1"
LOCK = ".lock"


@dataclass(frozen=True)
class Finding:
    """One timed decode of a cell; the cell's first one also has the video, and the `document` and `arrays` to save."""

    cell: Cell
    run: dict[str, float]
    video: Video | None = None
    document: dict[str, Any] = field(default_factory=dict)
    arrays: dict[str, NDArray[Any]] | None = None


@contextlib.contextmanager
def master(folder: Path) -> Iterator[None]:
    """Hold the lock of what a folder's shards share (grid, tables), for a short time. Raises RunError."""
    busy = RunError(f"a process has locked {folder / LOCK} for two minutes", hint="end that process if it is stuck")
    with locked(folder / LOCK, busy, seconds=120):
        yield


@contextlib.contextmanager
def lock_folder(folder: Path, shard: tuple[int, int] | None = None) -> Iterator[None]:
    """Lock a sweep folder, or one shard of it. Raises RequestError if another sweep has locked it."""
    part = "whole" if shard is None else f"{shard[0]}-of-{shard[1]}"
    mine = folder / f"{LOCK}-{part}"
    note = mine.with_name(f"{mine.name}.txt")
    with contextlib.ExitStack() as held:
        with master(folder):
            for other in sorted({mine, *folder.glob(f"{LOCK}-*")}):
                beside = shard is not None and other != mine and other.name.endswith(f"-of-{shard[1]}")
                if beside or other.suffix == ".txt":
                    continue
                holder = "another process"
                with contextlib.suppress(OSError, ValueError):
                    holder = file_text(other.with_name(f"{other.name}.txt"))
                busy = f"{folder}: another sweep runs in this folder: {holder}"
                lock = locked(other, RequestError(busy, hint="wait until it ends, or use another folder"))
                if other == mine:
                    held.enter_context(lock)
                    continue
                with lock:
                    pass  # a killed sweep left it
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError):
            note.write_text(f"process {os.getpid()} on {platform.node()} ({part}), since {since}", encoding="utf-8")
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                note.unlink(missing_ok=True)


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


class Store:
    """A sweep on disk: documents of finished cells by id, descriptions of damaged ones, axes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cells_folder, self.file = folder, folder / "cells", folder / "sweep.json"
        self.cells: dict[str, dict[str, Any]] = {}
        self.damaged: list[str] = []
        self.axes = Grid((), (), ())

    @classmethod
    def make(cls, folder: Path) -> Store:
        """A store in a folder, which is made if missing. Raises RequestError if the folder can't be used."""
        store = cls(folder)
        make_folder(folder)
        make_folder(store.cells_folder)
        strangers = [p.name for p in folder.iterdir() if not p.name.startswith(".") and p.name != "cells"]
        if strangers and not store.file.exists() and not any(store.cells_folder.iterdir()):
            store.cells_folder.rmdir()
            raise RequestError(f"{folder}: has no sweep, but other files ({min(strangers)})", hint="name a new folder")
        return store

    def claim(self, fingerprint: dict[str, Any], grid: Grid) -> None:
        """Add a grid to the folder's. Raises RequestError with the first difference of the configurations."""
        with master(self.folder):
            self.axes = grid
            if self.file.exists():
                fingerprint = {**self.compare(fingerprint), **fingerprint}
                self.axes = self.axes.joined(grid)
            document = {"format": FORMAT, "fingerprint": fingerprint, "plan": self.axes.to_dict()}
            text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            if not self.file.exists() or file_text(self.file) != text:
                write_whole(self.file, text)

    def compare(self, fingerprint: dict[str, Any]) -> dict[str, Any]:
        """Read the folder's axes; returns its fingerprint. Raises RequestError if its configuration differs."""
        try:
            data = parse_json(file_text(self.file))
            if data["format"] != FORMAT:
                raise ValueError(f"key 'format' is {data['format']!r}, allowed: {FORMAT!r}")
            before, self.axes = dict(data["fingerprint"]), checked(Grid, data["plan"], self.file, "plan")
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise RequestError(f"{self.file} is damaged: {e}", hint="restore the file, or use a new folder") from None
        for key in sorted({*before, *fingerprint}):
            was, now = before.get(key, "absent"), fingerprint.get(key, "absent")
            # A sweep may add `--backend fpga-sim` later.
            if was == now or (key == "backend.preset" and "absent" in (was, now)):
                continue
            other = key in ("model weights", "lpips weights", "backend.preset")
            differs = f"contents of {key} differ" if other else f"{key} is {was!r} in that sweep and {now!r} in this"
            hint = "name a new folder, or use the configuration of that sweep"
            raise RequestError(f"{self.folder}: holds a sweep with a different configuration: {differs}", hint=hint)
        return before

    def clean(self) -> None:
        """Remove incomplete files of a killed sweep; requires the lock of the whole folder."""
        for path in (*self.cells_folder.glob(".*"), *self.folder.glob(".results*"), *self.folder.glob(".sweep-*")):
            if path.is_file():
                path.unlink(missing_ok=True)

    def read(self, wanted: Iterable[Cell] | None = None) -> None:
        """Load and check finished cells, by default all of the folder; damaged ones go to `damaged`."""
        self.cells, self.damaged = {}, []
        there = (p.name.removesuffix(".json") for p in self.cells_folder.glob("[!.]*.json"))
        for name in sorted(there) if wanted is None else [c.id for c in wanted]:
            try:
                self.cells[name] = self._load(name)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError, RequestError) as e:
                self.damaged.append(f"{self.cells_folder / name}.json: {e}")

    def _load(self, name: str) -> dict[str, Any]:
        document = parse_json(file_text(self.cells_folder / f"{name}.json"), finite=True)
        if document["id"] != name:
            raise ValueError("key 'id' is that of a different cell")
        # Cells of older versions have no hash of themselves.
        if document.pop("sha256", None) not in (None, _digest(document)):
            raise ValueError("was changed after it was written")
        for suffix, digest in document["files"].items():
            try:
                if sha256_of(self.cells_folder / f"{name}{suffix}") != digest:
                    raise ValueError(f"{name}{suffix} was changed after it was written")
            except FileNotFoundError:
                raise ValueError(f"{name}{suffix} is missing") from None
        return document

    def runs(self, cell: Cell) -> int:
        """Number of a cell's timings; 0 for an unfinished cell."""
        return len(self.cells[cell.id]["runs"]) if cell.id in self.cells else 0

    def put(self, finding: Finding, scale: int) -> None:
        """Write a new cell, with its video enlarged `scale` times, or one more timing of a cell. Raises RunError."""
        name, video = finding.cell.id, finding.video
        if video is None:
            document = self.cells[name] | {"runs": [*self.cells[name]["runs"], finding.run]}
        else:
            video.save(self.cells_folder / f"{name}.mp4", scale)
            arrays: dict[str, dict[str, Any]] = {".npz": {"frames": video.frames}} if finding.cell.dense else {}
            if finding.arrays is not None:
                arrays[".tokens.npz"] = finding.arrays
            for suffix, own in arrays.items():
                write_arrays(self.cells_folder / f"{name}{suffix}", own)
            try:
                files = {suffix: sha256_of(self.cells_folder / f"{name}{suffix}") for suffix in (".mp4", *arrays)}
            except OSError as e:
                raise RunError(f"{e.filename} can't be read: {e.strerror}") from None
            document = {"id": name, **finding.cell.to_dict(), **finding.document, "runs": [finding.run], "files": files}
        text = json.dumps(document | {"sha256": _digest(document)}, indent=1, ensure_ascii=False)
        write_whole(self.cells_folder / f"{name}.json", f"{text}\n")
        self.cells[name] = document

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """Read a file of arrays from the folder of cells. Raises RunError."""
        file = self.cells_folder / name
        try:
            return read_arrays(file)
        except (OSError, ValueError) as e:
            raise RunError(f"{file} can't be read: {e}", hint="rerun the command to decode its video again") from None
