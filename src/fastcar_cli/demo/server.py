"""The page's server: HTTP of the standard library, on the loopback interface alone.

Handlers run in threads; videos are made in the thread that calls `serve`, one at a time, so that Ctrl-C stops one that
is being made. Other pages that the user's browser shows can't use it: they know neither the secret in the address nor
may their requests have another Host or Origin.
"""

from __future__ import annotations

import hmac
import json
import queue
import secrets
import sys
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from fastcar_cli._version import __version__
from fastcar_cli.checkpoints.hub import here
from fastcar_cli.checkpoints.names import BUNDLED, REPOSITORIES
from fastcar_cli.checkpoints.open import spec_of
from fastcar_cli.config.run_config import load_config
from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.media import default_name
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_cli.sweep.report.build import asset, page
from fastcar_cli.sweep.worker import draft_data, replay_map
from fastcar_cli.system.device import out_of_memory

Make = Callable[[dict[str, str], Callable[[int, int], None]], tuple[dict[str, Any], bytes]]
Line = dict[str, Any]

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
MOST_BYTES = 65536


SHOWN_SIDE = 256
"""Frames are enlarged to about this many pixels a side."""


def models() -> list[str]:
    """Models that take a text and are on this machine."""
    names = [*BUNDLED, *(name for name, repository in REPOSITORIES.items() if here(repository))]
    return [name for name in names if not spec_of(name).layout.context]


class Maker:
    """Makes one video after another and keeps the model of the last one."""

    def __init__(self) -> None:
        self._pipe: VideoPipeline | None = None

    def __call__(self, form: dict[str, str], on_step: Callable[[int, int], None]) -> tuple[dict[str, Any], bytes]:
        """The results of a sweep with this one video, for the player, and the video as MP4.

        `form` has prompt, model, tau, draft and seed as text, an empty seed for any. Raises RequestError for what is
        refused and RunError for what fails.
        """
        prompt, name = form.get("prompt", "").strip(), form.get("model", "")
        if name not in (offered := models()):
            raise RequestError(f"{name!r} is not a model of this page", allowed=", ".join(offered))
        if not prompt:
            raise RequestError("the prompt is empty", hint="describe the video in a few words")
        seed = form.get("seed", "").strip()
        if seed and not (seed.isascii() and seed.isdigit() and int(seed) < 2**63):
            allowed = "0 to 2^63 - 1, or empty for a random seed"
            raise RequestError(f"the seed {seed[:40]!r} is not a whole number", allowed=allowed)
        scale = max(1, round(SHOWN_SIDE / max(spec_of(name).frame_spec.size)))
        flags = {"replay.tau": form.get("tau", "off"), "draft.kind": form.get("draft", "auto"), "video.scale": scale}
        run = load_config(flags={"model": name, **flags})
        if self._pipe is None or self._pipe.config.model != name:
            self._pipe = None  # before the next one needs memory
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
    """As a video's, before there is one."""
    return {"form": {}, "notes": [], "cells": [], "summary": [], "plan": {}, "model": {}, "report": {"missing": []}}


class Left(Exception):
    """The page that wants a video was closed."""


class _Job:
    """A video that a page wants: its form, the lines of the answer, and whether the page was closed."""

    def __init__(self, form: dict[str, str]) -> None:
        self.form, self.left = form, threading.Event()
        self.lines: queue.Queue[Line] = queue.Queue()

    def progress(self, done: int, total: int) -> None:
        """Send the share that is done. Raises Left."""
        if self.left.is_set():
            raise Left
        self.lines.put({"share": done / total})


class Server(ThreadingHTTPServer):
    """A page under a secret address. `port` 0 takes any free one; raises RequestError where the port is taken."""

    daemon_threads = True

    def __init__(self, make: Make, port: int = 0) -> None:
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as e:
            raise RequestError(f"--port {port}: {e.strerror}", hint="choose another, or leave it out") from None
        self._make = make
        self.secret = secrets.token_urlsafe(18)
        self.busy = threading.Lock()
        self.jobs: queue.Queue[_Job] = queue.Queue()
        self._results, self._video = empty_results(), b""

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.secret}/"

    def serve(self) -> None:
        """Answer requests until an exception, such as Ctrl-C, ends it."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        try:
            while True:
                self._work(self.jobs.get())
        finally:
            self.shutdown()
            self.server_close()

    def _work(self, job: _Job) -> None:
        last: Line = {"error": "stopped"}
        try:
            self._results, self._video = self._make(job.form, job.progress)
            last = {"done": True}
        except Left:
            pass
        except FastcarError as e:
            e.name_of = lambda key: key.rpartition(".")[2]
            last = {"error": str(e), "hint": e.hint}
        except Exception as e:
            last = {"error": "out of memory" if out_of_memory(e) else f"unexpected {type(e).__name__}: {e}"}
        finally:
            self.busy.release()
            job.lines.put(last)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing where a browser closes its connection; any other error as the base class does."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def page(self) -> bytes:
        """The page with the last video."""
        scripts = [asset("core.js"), asset("player.js"), asset("demo.js", __package__)]
        data = self._results | {"models": models(), "version": __version__}
        videos = {"video": self._video} if self._video else {}
        body, policy = asset("page.html", __package__), "; connect-src 'self'"
        return page("fastcar demo", body, scripts, data, videos, policy).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30
    server_version, sys_version = "fastcar", ""

    def do_GET(self) -> None:
        if self._allowed(""):
            self._begin(200, "text/html; charset=utf-8")
            self.wfile.write(self.server.page())

    def do_POST(self) -> None:
        """Make a video: lines of JSON with `share`s, the last with `done`, or with `error` and `hint`."""
        if not self._allowed("make"):
            return
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > MOST_BYTES:
            return self._refuse(413, "the request is too large")
        try:
            form = json.loads(self.rfile.read(int(size)))
            if not isinstance(form, dict) or not all(isinstance(v, str) for v in form.values()):
                raise ValueError
        except (ValueError, RecursionError):
            return self._refuse(400, "the request is not a form")
        self._begin(200, "application/x-ndjson")
        if not self.server.busy.acquire(blocking=False):
            return self._line({"error": "another video is being made", "hint": "try again when it is done"})
        job = _Job(form)
        self.server.jobs.put(job)
        line: Line = {"share": 0}
        try:
            while "share" in line:
                self._line(line := job.lines.get())
        except ConnectionError:
            job.left.set()

    def _allowed(self, name: str) -> bool:
        """Whether a request is of the page itself and for this name; refuses it otherwise."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        name_of_host, _, port = host.partition(":")
        # Browsers leave the port 80 out; with `ssh -L` it is another one than the server's.
        if name_of_host not in HOSTS or not (port or "80").isdecimal() or origin not in (None, f"http://{host}"):
            self._refuse(403, "not from here")
            return False
        _, secret, *rest = [*self.path.split("/"), ""][:4]
        if not hmac.compare_digest(secret.encode(), self.server.secret.encode()) or rest[0] != name:
            self._refuse(404, "no such page; use the full address that fastcar demo prints")
            return False
        return True

    def _refuse(self, status: int, text: str) -> None:
        self._begin(status, "text/plain; charset=utf-8")
        self.wfile.write(f"{text}\n".encode())

    def _begin(self, status: int, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.end_headers()

    def _line(self, line: Line) -> None:
        self.wfile.write(json.dumps(line).encode() + b"\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
