"""Serves one page over HTTP on the loopback interface, in threads, under an address with a secret.

Other pages in the user's browser do not know the secret, and requests with another Host or Origin are refused.
"""

from __future__ import annotations

import hmac
import json
import secrets
import sys
import threading
from abc import ABC, abstractmethod
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fastcar_cli.errors import FastcarError, RequestError

LOOPBACK = "127.0.0.1"
HOSTS = (LOOPBACK, "localhost")
MOST_BYTES = 65536


class LocalServer(ThreadingHTTPServer, ABC):
    """A page under a secret address. `port` 0 selects a free one; raises RequestError if the port is in use."""

    daemon_threads, playing = True, True

    def __init__(self, handler: type[LocalHandler], port: int = 0) -> None:
        self.allow_reuse_address = sys.platform != "win32"  # two servers would share the port there
        try:
            super().__init__((LOOPBACK, port), handler)
        except OSError as e:
            raise RequestError(f"--port {port}: {e.strerror}", hint="choose another port") from None
        self.secret = secrets.token_urlsafe(18)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.secret}/"

    def serve(self) -> None:
        """Answer requests in threads, and call `turn` while `playing`, until an exception such as Ctrl-C."""
        threading.Thread(target=self.serve_forever, daemon=True).start()
        try:
            while self.playing:
                self.turn()
        finally:
            self.shutdown()
            self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if a browser closes its connection; print other errors as the base class does."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @abstractmethod
    def turn(self) -> None:
        """Do the next piece of work besides answers, in the thread of `serve`."""

    @abstractmethod
    def page(self) -> bytes:
        """The page."""


class LocalHandler(BaseHTTPRequestHandler):
    """Answers with the page; subclasses answer what it posts."""

    server: LocalServer
    timeout = 30
    server_version, sys_version = "fastcar", ""

    def do_GET(self) -> None:
        """The page."""
        if self.allowed(""):
            self.begin(200, "text/html; charset=utf-8")
            self.wfile.write(self.server.page())

    def form(self, name: str) -> dict[str, Any] | None:
        """The JSON object that the page posts under this name; None after a refusal."""
        if not self.allowed(name):
            return None
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > MOST_BYTES:
            self.refuse(413, "the request is too large")
            return None
        try:
            form = json.loads(self.rfile.read(int(size)))
            if not isinstance(form, dict):
                raise ValueError
        except (ValueError, RecursionError):
            self.refuse(400, "the request is not a JSON object")
            return None
        return form

    def allowed(self, name: str) -> bool:
        """Whether a request comes from the page itself and is for this name; refuses it otherwise."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        name_of_host, _, port = host.partition(":")
        # Browsers omit port 80; with `ssh -L` the port differs from the server's.
        if name_of_host not in HOSTS or not (port or "80").isdecimal() or origin not in (None, f"http://{host}"):
            self.refuse(403, "the request comes from another page or host; open the address that fastcar prints")
            return False
        _, secret, *rest = [*self.path.split("/"), ""][:4]
        if not hmac.compare_digest(secret.encode(), self.server.secret.encode()) or rest[0] != name:
            self.refuse(404, "no such page; use the full address that fastcar prints")
            return False
        return True

    def refuse(self, status: int, text: str) -> None:
        """Answer with a status and a sentence."""
        self.begin(status, "text/plain; charset=utf-8")
        self.wfile.write(f"{text}\n".encode())

    def begin(self, status: int, kind: str) -> None:
        """Send the status and headers of an answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.end_headers()

    def line(self, line: dict[str, Any]) -> None:
        """Send a line of JSON."""
        self.wfile.write(json.dumps(line).encode() + b"\n")
        self.wfile.flush()

    @staticmethod
    def said(error: FastcarError) -> dict[str, Any]:
        """The JSON line for an error."""
        error.name_of = lambda key: key.rpartition(".")[2]
        return {"error": str(error), "hint": error.hint}

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
