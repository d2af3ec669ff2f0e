"""The server of `fastcar demo`; the thread that calls `serve` makes videos one at a time, and Ctrl-C stops it."""

from __future__ import annotations

import queue
import secrets
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastcar_cli._version import __version__
from fastcar_cli.checkpoints.hub import here
from fastcar_cli.checkpoints.names import BUNDLED, REPOSITORIES
from fastcar_cli.checkpoints.open import spec_of
from fastcar_cli.config.run_config import load_config
from fastcar_cli.demo.local import LocalHandler, LocalServer
from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.media import default_name
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.sweep.report.build import asset, page
from fastcar_cli.sweep.worker import draft_data, replay_map
from fastcar_cli.system.device import out_of_memory

Make = Callable[[dict[str, str], Callable[[int, int], None]], tuple[dict[str, Any], bytes]]
Line = dict[str, Any]

SHOWN_SIDE = 256  # approximate side of enlarged frames in pixels


def models() -> list[str]:
    """Text-to-video models on this machine."""
    names = [*BUNDLED, *(name for name, repository in REPOSITORIES.items() if here(repository))]
    return [name for name in names if not spec_of(name).layout.context]


class Maker:
    """Makes one video after another; caches the last model."""

    def __init__(self) -> None:
        self._pipe: VideoPipeline | None = None

    def __call__(self, form: dict[str, str], on_step: Callable[[int, int], None]) -> tuple[dict[str, Any], bytes]:
        """The results of a sweep with this one video, for the player, and the video as MP4. `form` has prompt, model,
        tau, draft and seed as text; an empty seed selects a random one. Raises RequestError and RunError.
        """
        prompt, name = form.get("prompt", "").strip(), form.get("model", "")
        if name not in (offered := models()):
            raise RequestError(f"{name!r} is not a model of this page", allowed=", ".join(offered))
        if not prompt:
            raise RequestError("the prompt is empty", hint="describe the video in a few words")
        seed = form.get("seed", "").strip()
        if seed and not (seed.isascii() and seed.isdigit() and int(seed) < 2**63):
            allowed = "0 to 2^63 - 1, or empty for a random seed"
            raise RequestError(f"the seed {seed[:40]!r} is not a whole number in range", allowed=allowed)
        scale = max(1, round(SHOWN_SIDE / max(spec_of(name).frame_spec.size)))
        flags = {"replay.tau": form.get("tau", "off"), "draft.kind": form.get("draft", "auto"), "video.scale": scale}
        run = load_config(flags={"model": name, **flags})
        if self._pipe is None or self._pipe.config.model != name:
            self._pipe = None  # frees its memory before the next model is loaded
            self._pipe = VideoPipeline.from_config(run)
        pipe = self._pipe.with_config(run)
        notes = pipe.notices([prompt])
        (video,) = pipe.videos([prompt], [int(seed) if seed else secrets.randbelow(2**31)], on_step)
        report, draft = video.report, video.report["draft"]
        # The results of a sweep with one cell, which is its own reference.
        cell = {
            **{"id": "video", "reference": "video", "prompt": report["prompt"], "seed": report["seed"]},
            "tau": form["tau"] if isinstance(report["tau"], list) else report["tau"],
            **{key: report["replay"][key] for key in ("score", "gate")},
            "draft": f"{draft['kind']}-{draft['window']}" if draft["window"] > 1 else "off",
            "speed": {"decode_s": {"median": report["timing"]["decode_s"]}},
            "replay": {**report["replay"], "map": replay_map(pipe)},
            "drafts": draft_data(pipe, draft),
        }
        results = {"form": form, "notes": notes, "file": default_name(report["prompt"], report["seed"]).name}
        results["model"] = {key: getattr(pipe, key) for key in ("name", "layers", "frames", "fps")}
        with tempfile.TemporaryDirectory() as folder:
            data = video.save(Path(folder) / "video.mp4", scale).read_bytes()
        return empty_results() | results | {"cells": [cell]}, data


def empty_results() -> dict[str, Any]:
    """An empty document, before the first video."""
    return {"form": {}, "notes": [], "cells": [], "summary": [], "plan": {}, "model": {}, "report": {"missing": []}}


class Left(Exception):
    """The page that requested a video was closed."""


class _Job:
    """A requested video: its form, the lines of the answer, and whether the page was closed."""

    def __init__(self, form: dict[str, str]) -> None:
        self.form, self.left = form, threading.Event()
        self.lines: queue.Queue[Line] = queue.Queue()

    def progress(self, done: int, total: int) -> None:
        if self.left.is_set():
            raise Left
        self.lines.put({"share": done / total})


class Server(LocalServer):
    """The server of the page of `fastcar demo`: see `LocalServer`."""

    def __init__(self, make: Make, port: int = 0) -> None:
        super().__init__(_Handler, port)
        self._make = make
        self.busy = threading.Lock()
        self.jobs: queue.Queue[_Job] = queue.Queue()
        self._results, self._video = empty_results(), b""

    def turn(self) -> None:
        """Make the next video."""
        job, last = self.jobs.get(), dict[str, Any](error="stopped")
        try:
            self._results, self._video = self._make(job.form, job.progress)
            last = {"done": True}
        except Left:
            pass
        except FastcarError as e:
            last = LocalHandler.said(e)
        except Exception as e:
            last = {"error": "out of memory" if out_of_memory(e) else f"unexpected {type(e).__name__}: {e}"}
        finally:
            self.busy.release()
            job.lines.put(last)

    def page(self) -> bytes:
        """The page with the last video."""
        scripts = [asset("core.js"), asset("player.js"), asset("demo.js", __package__)]
        data = self._results | {"models": models(), "version": __version__}
        videos = {"video": self._video} if self._video else {}
        body, policy = asset("page.html", __package__), "; connect-src 'self'"
        return page("fastcar demo", body, scripts, data, videos, policy).encode()


class _Handler(LocalHandler):
    server: Server

    def do_POST(self) -> None:
        """Make a video: lines of JSON with `share`s, the last with `done`, or with `error` and `hint`."""
        form = self.form("make")
        if form is None:
            return
        if not all(isinstance(v, str) for v in form.values()):
            return self.refuse(400, "the request has a value that is not a string")
        self.begin(200, "application/x-ndjson")
        if not self.server.busy.acquire(blocking=False):
            return self.line({"error": "another video is being made", "hint": "try again when it is done"})
        job = _Job(form)
        self.server.jobs.put(job)
        line: Line = {"share": 0}
        try:
            while "share" in line:
                self.line(line := job.lines.get())
        except ConnectionError:
            job.left.set()
