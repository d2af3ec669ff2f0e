"""The server of `fastcar play`: a session that the page steers.

`serve` decodes frames while a page requests the newest one; a slow page skips frames, and several share a session.
"""

from __future__ import annotations

import base64
import io
import queue
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FuturesTimeoutError
from typing import Any

import numpy as np
from PIL import Image

from fastcar_cli._version import __version__
from fastcar_cli.demo.local import LocalHandler, LocalServer
from fastcar_cli.demo.server import empty_results
from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.pipeline.session import PlaySession
from fastcar_cli.sweep.report.build import asset, page

AWAY = 3.0  # seconds without a request after which the session is saved and waits, because no page is open
ANSWER = 1.0  # seconds after which a page gets an answer without a new frame, and so knows that the server runs
ORDERS = ("pause", "play", "step", "reset", "change")


def png(image: Any) -> str:
    """A frame, uint8 [H, W, 3], as PNG in base64."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "png", compress_level=1)
    return base64.b64encode(file.getvalue()).decode("ascii")


class Player(LocalServer):
    """The server of a session's page. `session`: the current session; `fps`: frames to show per second."""

    def __init__(self, session: PlaySession, fps: int, port: int = 0) -> None:
        super().__init__(_PlayHandler, port)
        self.session, self.fps, self.paused = session, fps, False
        self._action: list[float] = [*session.steered.rest]
        # The last key of a page and its time, until the next frame is decoded.
        self._key: tuple[str, float] | None = None
        self._waits: list[float] = []
        self._orders: queue.Queue[tuple[dict[str, Any], Future[None]]] = queue.Queue()
        self._changed, self._line, self._times = threading.Condition(), dict[str, Any](), deque[float](maxlen=30)
        self._asked, self._due, self._one = -np.inf, 0.0, False
        self._show({})

    def serve(self) -> None:
        """Like the base class; saves the session at the end."""
        try:
            super().serve()
        finally:
            self.session.save()

    def report(self) -> dict[str, Any]:
        """The session's report, with the seconds from a key to its frame."""
        p50, p99 = np.percentile(self._waits, [50, 99]).tolist() if self._waits else (None, None)
        return self.session.report() | {"key_to_frame": {"p50": p50, "p99": p99}}

    def turn(self) -> None:
        """Decode one frame or, until it is due, obey orders, decode the next frame ahead, or wait."""
        while not self._orders.empty():
            self._obey(*self._orders.get())
        now, asked, key = time.monotonic(), self._asked, self._key
        # After a key the next frame is due sooner, at the earliest half a frame interval after the last one.
        due = self._due - (0.0 if key is None else 0.5 / self.fps)
        if now - asked > AWAY or (self.paused and not self._one):
            if now - asked > AWAY:
                self.session.save()
            self._wait(lambda: self._asked != asked, AWAY)
            self._due = time.monotonic()
        elif due > now and not self._one:
            self.session.ahead(self._action)
            self._wait(lambda: self._key is not key, due - time.monotonic())
        else:
            self._step()

    def _wait(self, until: Any, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: until() or not self._orders.empty(), max(0.0, seconds))

    def _step(self) -> None:
        with self._changed:
            action, key, self._key, self._one = self._action, self._key, None, False
        _, info = self.session.step(action)
        now = time.monotonic()
        self._due = max(min(self._due, now) + 1 / self.fps, now)
        self._times.append(now)
        if key is not None:
            self._waits.append(now - key[1])
        replayed = info["replayed"].round(2).tolist() if info["replayed"].any() else None
        self._show({"hit": info["hit"], "map": replayed, "key": None if key is None else key[0]})

    def _show(self, more: dict[str, Any]) -> None:
        """Publish the newest frame and the statistics to the pages."""
        session, times = self.session, self._times
        settings = session.pipe.config
        line = {
            **{"number": self._line.get("number", 0) + 1, "png": png(session.newest[-1]), "paused": self.paused},
            **{"tau": str(settings.replay.tau), "draft": session.pipe.resolved.draft.kind, "seed": session.world.seed},
            "fps": (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else None,
            **{"file": str(session.path) if session.decoded else None, **session.statistics(), **more},
        }
        with self._changed:
            self._line = line
            self._changed.notify_all()

    def _obey(self, form: dict[str, Any], done: Future[None]) -> None:
        try:
            order = form["order"]
            if order in ("reset", "change"):
                keys = {"tau": "replay.tau", "draft": "draft.kind"} if order == "change" else {}
                changes = {key: form[name] for name, key in keys.items() if name in form}
                self.session.restart(seed=form.get("seed"), here=order == "change", changes=changes)
                self._times.clear()
            else:
                self.paused, self._one = order != "play", order == "step"
            self._show({})
            done.set_result(None)
        except FastcarError as e:
            done.set_exception(e)

    def newest(self, after: Any) -> dict[str, Any]:
        """The newest line; waits up to `ANSWER` seconds for one that the page does not have. Only that has a `png`."""
        with self._changed:
            self._asked = time.monotonic()
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._line["number"] != after, ANSWER)
            self._asked = time.monotonic()
            line = self._line
        return {name: line[name] for name in line if name != "png"} if line["number"] == after else line

    def take(self, form: dict[str, Any]) -> None:
        """Accept an action or an order from a page. Raises RequestError."""
        if "action" in form:
            self.session.world.checked(form["action"])
            with self._changed:
                self._action, self._key = form["action"], (str(form.get("key"))[:40], time.monotonic())
                self._changed.notify_all()
            return
        seed = form.get("seed", 0)
        if form.get("order") not in ORDERS:
            raise RequestError("unknown order", allowed=", ".join(ORDERS))
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise RequestError(f"the seed {str(seed)[:40]!r} is not a whole number in range", allowed="0 to 2^63 - 1")
        done = Future[None]()
        self._orders.put((form, done))
        with self._changed:
            self._changed.notify_all()
        done.result(60)

    def page(self) -> bytes:
        """The page."""
        session = self.session
        model = {"name": session.pipe.name, "actions": session.size, "reach": session.reach, "fps": self.fps}
        rest, _, keys, words = session.steered
        model |= {"rest": rest, "keys": dict(keys), "words": words}
        data = empty_results() | {"model": model, "version": __version__}
        scripts, body = [asset("core.js"), asset("play.js", __package__)], asset("play.html", __package__)
        return page("fastcar play", body, scripts, data, {}, "; connect-src 'self'").encode()


class _PlayHandler(LocalHandler):
    server: Player

    def do_POST(self) -> None:
        """`frame`: the newest line; `input`: an action or an order, answered with {} or `error` and `hint`."""
        name = "input" if self.path.endswith("/input") else "frame"
        form = self.form(name)
        if form is None:
            return
        answer: dict[str, Any] = {}
        try:
            if name == "frame":
                answer = self.server.newest(form.get("after"))
            else:
                self.server.take(form)
        except FastcarError as e:
            answer = self.said(e)
        except FuturesTimeoutError:
            answer = {"error": "the session is busy; try again"}
        self.begin(200, "application/json")
        self.line(answer)
