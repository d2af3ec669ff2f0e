"""`fastcar demo`: the page, what it makes, and who may use it."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.demo.server import Maker, Server, empty_results, models
from fastcar_cli.errors import RequestError

PROMPT = "a red ball on the grass"
FORM = {"prompt": PROMPT, "model": "mini", "tau": "-2", "draft": "auto", "seed": "7"}


class _Stub:
    """Makes nothing, once it may."""

    def __init__(self) -> None:
        self.began, self.may_end = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.forms: list[dict[str, str]] = []

    def __call__(self, form: dict[str, str], on_step: Callable[[int, int], None]) -> tuple[dict[str, Any], bytes]:
        return self.make(form, on_step)

    def make(self, form: dict[str, str], on_step: Callable[[int, int], None]) -> tuple[dict[str, Any], bytes]:
        self.forms.append(form)
        on_step(1, 4)
        self.began.set()
        assert self.may_end.wait(60)
        if self.error is not None:
            raise self.error
        return empty_results() | {"form": form}, b""


@pytest.fixture
def stub() -> _Stub:
    return _Stub()


@pytest.fixture
def server(stub: _Stub) -> Iterator[Server]:
    server = Server(stub)
    threading.Thread(target=server.serve, daemon=True).start()
    yield server
    server.shutdown()


def _send(
    server: Server, method: str = "GET", path: str | None = None, body: object = None, **headers: str
) -> tuple[int, str]:
    """Status and text of a request; the path is that of the page if none is given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=300)
    path = f"/{server.secret}/{'make' if method == 'POST' else ''}" if path is None else path
    connection.request(method, path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_the_page_is_at_the_address(server: Server) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    status, page = _send(server)
    assert status == 200
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)
    assert data is not None
    assert json.loads(data[1])["models"][:3] == models()[:3] == ["mini", "table", "table-dense"]
    assert _send(server, Host=f"localhost:{server.server_port}")[0] == 200


def test_port_80_is_not_in_the_host(server: Server) -> None:
    assert _send(server, Host="127.0.0.1")[0] == _send(server, Host="localhost")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example:80", "192.168.0.9:80", "", "127.0.0.1:80:80"]
)
def test_another_host_is_refused(server: Server, stub: _Stub, host: str) -> None:
    assert _send(server, Host=host)[0] == 403
    assert _send(server, "POST", body=FORM, Host=host)[0] == 403
    assert stub.forms == []


@pytest.mark.slow
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:1", "http://127.0.0.1:1"])
def test_another_page_is_refused(server: Server, stub: _Stub, origin: str) -> None:
    assert _send(server, "POST", body=FORM, Origin=origin)[0] == 403
    assert stub.forms == []


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/", "/make", "/x/make", "//make", "/{secret}", "/{secret}x/make", "/{secret}/other"])
def test_without_the_secret_there_is_nothing(server: Server, stub: _Stub, path: str) -> None:
    assert _send(server, "POST", path.format(secret=server.secret), FORM)[0] == 404
    page = path == "/{secret}"
    assert _send(server, "GET", path.format(secret=server.secret))[0] == (200 if page else 404)
    assert stub.forms == []


def test_only_the_loopback_interface_is_listened_to(server: Server) -> None:
    assert server.server_address[0] == "127.0.0.1"


@pytest.mark.slow
@pytest.mark.parametrize("body", ["text", [1], {"prompt": 5}, {"prompt": {"a": "b"}}])
def test_what_is_no_form_is_refused(server: Server, body: object) -> None:
    assert _send(server, "POST", body=body)[0] == 400


def test_nested_json_is_refused(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=300)
    connection.request("POST", f"/{server.secret}/make", "[" * 60000)
    assert connection.getresponse().status == 400


def test_a_large_request_is_refused(server: Server) -> None:
    assert _send(server, "POST", body={"prompt": "x" * 70000})[0] == 413


def test_one_video_is_made_at_a_time(server: Server, stub: _Stub) -> None:
    answers: list[tuple[int, str]] = []
    first = threading.Thread(target=lambda: answers.append(_send(server, "POST", body=FORM)))
    first.start()
    assert stub.began.wait(60)
    assert _lines(_send(server, "POST", body=FORM)[1])[-1]["error"] == "another video is being made"
    stub.may_end.set()
    first.join()
    assert _lines(answers[0][1]) == [{"share": 0.25}, {"done": True}]
    assert _lines(_send(server, "POST", body=FORM)[1])[-1] == {"done": True}
    assert stub.forms == [FORM, FORM]


def _endless(stub: _Stub, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let videos never end but by cancelling; set when one has ended."""
    ended = threading.Event()

    def make(form: dict[str, str], on_step: Callable[[int, int], None]) -> tuple[dict[str, Any], bytes]:
        try:
            while True:
                on_step(1, 4)
                time.sleep(0.001)
        finally:
            ended.set()

    monkeypatch.setattr(stub, "make", make)
    return ended


def test_a_closed_page_cancels_its_video(
    server: Server, stub: _Stub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cancelled = _endless(stub, monkeypatch)
    body = json.dumps(FORM).encode()
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=300) as page:
        head = f"POST /{server.secret}/make HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
        page.sendall(head.encode() + body)
        assert page.recv(64)
        # As a browser closes it.
        page.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert cancelled.wait(300)
    stub.may_end.set()
    monkeypatch.undo()
    while "another video" in (answer := _send(server, "POST", body=FORM)[1]):
        time.sleep(0.01)
    assert _lines(answer)[-1] == {"done": True}
    assert capsys.readouterr().err == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RequestError("too many", key="replay.tau", value="x", allowed="less"), "tau x: too many"),
        (MemoryError(), "out of memory"),
        (ValueError("bad"), "unexpected ValueError: bad"),
    ],
)
def test_errors_are_a_sentence_and_the_next_video_is_made(
    server: Server, stub: _Stub, error: Exception, text: str
) -> None:
    stub.error = error
    stub.may_end.set()
    assert _lines(_send(server, "POST", body=FORM)[1])[-1]["error"] == text
    stub.error = None
    assert _lines(_send(server, "POST", body=FORM)[1])[-1] == {"done": True}


@pytest.fixture(scope="module")
def maker() -> Maker:
    return Maker()


def test_the_video_is_that_of_generate(maker: Maker, tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    results, video = maker(FORM, lambda done, total: steps.append((done, total)))
    (cell,) = results["cells"]
    file = tmp_path / "generated.mp4"
    arguments = ["generate", PROMPT, "--tau", "-2", "--seed", "7", "--scale", "4", "-o", str(file)]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert video == file.read_bytes()
    assert steps[-1] == (512, 512)
    assert [len(cell["replay"]["map"]), len(cell["drafts"]["map"])] == [8, 8]
    assert cell["replay"]["ratio"] > 0.1
    assert (cell["tau"], cell["draft"][:7], cell["seed"]) == (-2.0, "jacobi-", 7)


def test_an_empty_seed_is_drawn_and_the_form_stays(maker: Maker) -> None:
    results, _ = maker(FORM | {"seed": "", "tau": "off", "draft": "off"}, lambda done, total: None)
    (cell,) = results["cells"]
    assert results["form"]["seed"] == ""
    assert (cell["draft"], cell["tau"]) == ("off", None)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"prompt": " "}, "the prompt is empty"),
        ({"prompt": "zzz"}, "knows no word of"),
        ({"tau": "low"}, "tau"),
        ({"draft": "much"}, "draft.kind"),
        ({"seed": "-1"}, "the seed '-1' is not a whole number"),
        ({"seed": str(2**63)}, "is not a whole number"),
        ({"model": "/etc"}, "'/etc' is not a model of this page"),
        ({"model": "table-actions"}, "'table-actions' is not a model of this page"),
    ],
)
def test_bad_requests_are_refused(maker: Maker, change: dict[str, str], text: str) -> None:
    with pytest.raises(RequestError, match=re.escape(text)):
        maker(FORM | change, lambda done, total: None)


def test_a_taken_port_is_refused(server: Server) -> None:
    done = CliRunner().invoke(app, ["demo", "--no-browser", "--port", str(server.server_port)])
    assert isinstance(done.exception, RequestError)
    assert f"--port {server.server_port}" in str(done.exception)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
def test_it_prints_its_address_and_ctrl_c_ends_it() -> None:
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from fastcar_cli.cli.app import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "demo", "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    address = re.fullmatch(r"http://(127\.0\.0\.1:\d+)(/.*/)\n", process.stdout.readline())
    assert address is not None
    connection = http.client.HTTPConnection(address[1], timeout=300)
    connection.request("GET", address[2])
    assert connection.getresponse().status == 200
    process.send_signal(signal.SIGINT)
    stdout, stderr = process.communicate(timeout=300)
    assert (process.returncode, stdout) == (130, "")
    assert "the page is closed" in stderr
    assert "Traceback" not in stderr


@pytest.mark.parametrize("width", [pytest.param(1200, marks=pytest.mark.slow), 390])
def test_a_person_makes_a_video(browser: Any, width: int) -> None:
    server = Server(Maker())
    threading.Thread(target=server.serve, daemon=True).start()
    page = browser.new_page(viewport={"width": width, "height": 800}, reduced_motion="reduce")
    page.set_default_timeout(300_000)
    errors: list[str] = []
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(server.url)
    page.fill("[name=prompt]", "zzz qqq")
    page.click("#make")
    page.wait_for_selector("#error:not([hidden])")
    assert "knows no word of" in page.inner_text("#error")
    page.fill("[name=prompt]", PROMPT)
    page.click("#make")
    page.wait_for_selector("#watch:not([hidden])")
    end = time.monotonic() + 300  # Playwright's own way to wait needs eval, which the page forbids
    while not page.evaluate("[...document.querySelectorAll('video')].every(v => v.videoWidth === 256)"):
        assert time.monotonic() < end
        page.wait_for_timeout(20)
    assert page.input_value("[name=prompt]") == PROMPT
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.locator("#scrub").fill("3")
    pixels = (
        "(() => { const c = VIEW.heat; return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data] })()"
    )
    assert any(page.evaluate(pixels)), "the map is empty"
    page.fill("[name=tau]", "off")
    with page.expect_navigation():
        page.click("#make")
    # The square before the caption has the colour of the map: here of drafts.
    assert page.inner_text(".screen:nth-child(2) figcaption").startswith("Drafts, ")
    assert page.evaluate("VIEW.b.swatch.style.background") == "var(--dense)"
    page.close()
    server.shutdown()
    assert errors == []


def test_a_person_cancels_a_video(browser: Any, server: Server, stub: _Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    left = _endless(stub, monkeypatch)
    page = browser.new_page()
    page.set_default_timeout(300_000)
    page.goto(server.url)
    assert not page.is_visible("#cancel")
    page.click("#make")
    page.click("#cancel")
    page.wait_for_selector("#error:not([hidden])")
    assert page.inner_text("#error") == "cancelled"
    assert left.wait(300) and page.is_visible("#make") and not page.is_visible("#cancel")
    page.close()
