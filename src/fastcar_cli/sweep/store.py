"""A sweep's folder: each finished cell on disk at once and whole, damaged ones found.

DIR/sweep.json          what decides the results (fingerprint), and the axes of all runs so far
DIR/cells/<id>.mp4      the video
DIR/cells/<id>.npz      decoded frames of a dense cell, which the others are compared with
DIR/cells/<id>.tokens.npz   arrays of a `record`
DIR/cells/<id>.json     everything measured, with hashes of the files above; written last
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.media import open_writer
from fastcar_cli.sweep.grid import OFF, Cell, Grid
from fastcar_cli.sweep.lock import master
from fastcar_cli.system.files import file_text, make_folder, read_arrays, sha256_of, write_arrays, write_whole
from fastcar_cli.system.plain_data import Flag, Foreign, Size, checked, parse_json

FORMAT = "fastcar-sweep-1"

_Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_Metrics = dict[str, Annotated[_Finite, Field(ge=-1000, le=1000)] | None]


class _Axes(Foreign):
    """Of sweep.json; folders of earlier versions have no scores, ratios and drafts."""

    prompts: list[str]
    seeds: list[int]
    tau: list[_Finite | Literal["-inf"] | None]
    window: list[int | None]
    gate: list[str | None]
    backend: list[str]
    score: list[str] = Field(["tas"])
    ratio: list[_Finite] = Field([])
    draft: list[str] = Field([OFF])
    repeats: Size


class _Run(Foreign):
    decode_s: Annotated[_Finite, Field(gt=0)]
    tokens_per_s: _Finite


class _Replayed(Foreign):
    ratio: _Finite
    eligible_ratio: _Finite
    by_layer: list[_Finite]
    by_frame: list[_Finite]
    map: list[list[list[_Finite]]]


class _Fpga(Foreign):
    cycles: _Finite
    energy_j: _Finite


class _Fidelity(Foreign):
    all_right: Flag


class _Drafts(Foreign):
    tokens_per_pass: _Finite


class _Saved(Foreign):
    """What a cell's file holds beside the cell; of earlier versions a part."""

    runs: Annotated[list[_Run], Field(min_length=1)]
    files: dict[str, str]
    digest: str
    replay: _Replayed
    metrics: _Metrics | None = None
    frames: dict[str, list[_Finite | None]] | None = None
    fidelity: _Fidelity | None = None
    fpga: _Fpga | None = None
    drafts: _Drafts | None = None
    kernels: str | None = None


@dataclass
class CellRecord:
    """A decoded cell: its document, its frames uint8 [T, H, W, 3], and what its file carries.

    The document holds `metrics`, `frames`, `fidelity`, `replay`, `fpga`, `kernels` (who decoded), `digest` (of the
    frames) and `runs`, a list of {"decode_s", "tokens_per_s"}. `arrays` are those of a `Record`.
    """

    cell: Cell
    document: dict[str, Any]
    images: NDArray[np.uint8]
    fps: int
    scale: int
    recipe: dict[str, Any]
    arrays: dict[str, NDArray[Any]] | None = None


@dataclass
class Store:
    """What is on disk of a sweep. `cells` holds the documents of finished cells by id."""

    folder: Path
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    damaged: list[str] = field(default_factory=list)
    axes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def make(cls, folder: Path) -> Store:
        """A store in a folder, made if missing. Raises RequestError where it can't be written to."""
        make_folder(folder / "cells")
        for path in (folder, folder / "cells"):
            if not os.access(path, os.W_OK | os.X_OK):
                raise RequestError(f"{path} is not writable")
        known = (folder / "sweep.json").exists()
        strangers = [p.name for p in folder.iterdir() if not p.name.startswith(".") and p.name != "cells"]
        if not known and strangers and not any((folder / "cells").iterdir()):
            (folder / "cells").rmdir()
            raise RequestError(
                f"{folder}: is not a sweep and not empty ({sorted(strangers)[0]})", hint="name a new folder"
            )
        return cls(folder)

    @property
    def cells_folder(self) -> Path:
        """The folder of the cells."""
        return self.folder / "cells"

    def claim(self, fingerprint: dict[str, Any], grid: Grid) -> None:
        """Join a grid to the folder's, which must have been made with the same configuration.

        Raises RequestError that names the difference.
        """
        file = self.folder / "sweep.json"
        with master(self.folder):
            axes = grid.to_dict()
            if file.exists():
                before, old = self.compare(fingerprint)
                fingerprint = {**before, **fingerprint}
                axes = merged(old, axes)
            self.axes = axes
            document = {"format": FORMAT, "fingerprint": fingerprint, "plan": axes}
            text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
            if not file.exists() or file_text(file) != text:
                write_whole(file, text)

    def compare(self, fingerprint: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fingerprint and axes of the folder. Raises RequestError where it holds another configuration."""
        file = self.folder / "sweep.json"
        try:
            data = parse_json(file_text(file))
            if data["format"] != FORMAT:
                raise ValueError(f"key 'format' is {data['format']!r}, allowed: {FORMAT!r}")
            before, old = dict(data["fingerprint"]), checked(_Axes, data["plan"], file, "plan").model_dump()
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise RequestError(f"{file} is damaged: {e}", hint="restore it, or sweep into a new folder") from None
        differs = difference(before, fingerprint)
        if differs is not None:
            raise RequestError(
                f"{self.folder}: holds a sweep of another configuration: {differs}",
                hint="name a new folder, or use the configuration of that sweep",
            )
        return before, old

    def clean(self) -> None:
        """Remove what a killed sweep left half-written. Only for who holds the whole folder."""
        for path in (*self.cells_folder.glob(".*"), *self.folder.glob(".results*"), *self.folder.glob(".sweep-*")):
            if path.is_file():
                path.unlink(missing_ok=True)

    def read(self, wanted: Iterable[Cell] | None = None) -> None:
        """Load and check finished cells (all of the folder where none are named); damaged ones go to `damaged`."""
        self.cells, self.damaged = {}, []
        if wanted is None:
            names = sorted(p.name.removesuffix(".json") for p in self.cells_folder.glob("[!.]*.json"))
        else:
            names = [c.id for c in wanted]
        for name in names:
            try:
                document = self._load(name)
            except FileNotFoundError:
                continue
            except (OSError, ValueError, KeyError, TypeError, RequestError) as e:
                self.damaged.append(f"{self.cells_folder / name}.json: {e}")
                continue
            self.cells[name] = document

    def _load(self, name: str) -> dict[str, Any]:
        text = file_text(self.cells_folder / f"{name}.json")
        document = parse_json(text, finite=True)
        if not isinstance(document, dict):
            raise ValueError("is not a cell")
        if document["id"] != name or Cell.from_dict(document).id != name:
            raise ValueError("belongs to another cell")
        checked(_Saved, document, name)
        if lacking := {"metrics", "frames", "fidelity", "fpga"} - document.keys():
            raise ValueError(f"lacks {sorted(lacking)[0]}")
        for suffix, digest in document["files"].items():
            try:
                if sha256_of(self.cells_folder / f"{name}{suffix}") != digest:
                    raise ValueError(f"{name}{suffix} is not the file that was written")
            except FileNotFoundError:
                raise ValueError(f"{name}{suffix} is missing") from None
        return document

    def runs(self, cell: Cell) -> int:
        """How often a cell was timed; 0 where it is not finished."""
        return len(self.cells[cell.id]["runs"]) if cell.id in self.cells else 0

    def put(self, record: CellRecord) -> None:
        """Write a new cell. Raises RunError, leaving nothing half-written under a final name."""
        name = record.cell.id
        video = self.cells_folder / f"{name}.mp4"
        with open_writer(video, fps=record.fps, scale=record.scale, recipe=record.recipe) as writer:
            for image in record.images:
                writer.add(image)
        arrays: dict[str, dict[str, Any]] = {".npz": {"frames": record.images}} if record.cell.dense else {}
        if record.arrays is not None:
            arrays[".tokens.npz"] = record.arrays
        for suffix, held in arrays.items():
            write_arrays(self.cells_folder / f"{name}{suffix}", held)
        try:
            files = {suffix: sha256_of(self.cells_folder / f"{name}{suffix}") for suffix in (".mp4", *arrays)}
        except OSError as e:
            raise RunError(f"{e.filename} can't be read: {e.strerror}") from None
        document = {"id": name, **record.cell.to_dict(), **record.document, "files": files}
        self._save(document)

    def add_run(self, cell: Cell, run: dict[str, float]) -> None:
        """Add one more timing to a finished cell."""
        document = dict(self.cells[cell.id])
        document["runs"] = [*document["runs"], run]
        self._save(document)

    def _save(self, document: dict[str, Any]) -> None:
        text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        write_whole(self.cells_folder / f"{document['id']}.json", text)
        self.cells[document["id"]] = document

    def frames(self, reference: Cell) -> NDArray[np.uint8]:
        """Decoded frames of a finished dense cell. Raises RunError."""
        return self.arrays(f"{reference.id}.npz")["frames"]

    def arrays(self, name: str) -> dict[str, NDArray[Any]]:
        """A file of arrays among the cells. Raises RunError."""
        file = self.cells_folder / name
        try:
            return read_arrays(file)
        except (OSError, ValueError) as e:
            raise RunError(f"{file} can't be read: {e}", hint="the same command makes it again") from None


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Axes of both grids: new values go last, seeds in order, thresholds from off downwards."""
    both: dict[str, Any] = {"repeats": max(old["repeats"], new["repeats"])}
    for key in ("prompts", "seeds", "tau", "window", "gate", "backend", "score", "ratio", "draft"):
        both[key] = [*old[key], *(v for v in new[key] if v not in old[key])]
    both["ratio"] = sorted(both["ratio"])
    both["seeds"] = sorted(both["seeds"])
    both["tau"] = sorted(both["tau"], key=lambda t: (t is not None, 0.0 if t is None else -float(t)))
    return both


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first thing in which two configurations differ, in words; None where they agree.

    An accelerator named by one of them only does not count as a difference: a sweep may add `--backend fpga-sim` later.
    """
    for key in sorted({*before, *now}):
        if key == "backend.preset" and not (key in before and key in now):
            continue
        was, is_ = before.get(key, "absent"), now.get(key, "absent")
        if was != is_:
            if key in ("model weights", "lpips weights", "backend.preset"):
                return f"{key} has other contents"
            return f"{key} was {was!r} there and is {is_!r} now"
    return None
