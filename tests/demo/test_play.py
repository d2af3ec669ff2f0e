"""`fastcar play`: the lines of its protocol, its files, its page, and who may use it."""

from __future__ import annotations

import base64
import functools
import http.client
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner, Result

from fastcar_cli import Pipeline
from fastcar_cli.cli.app import app
from fastcar_cli.demo.play import Player
from fastcar_cli.errors import RequestError
from fastcar_cli.media import read_recipe
from fastcar_cli.media.reader import frames_of
from fastcar_cli.pipeline.recipe import prompt_of
from fastcar_cli.pipeline.session import PlaySession

FRAME = np.full((128, 128, 3), 90, np.uint8)
KEYS = [[1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.5], [0.0, 0.0]]


def _csv(folder: Path, actions: list[list[float]]) -> Path:
    file = folder / "keys.csv"
    file.write_text("".join(",".join(map(str, action)) + "\n" for action in actions), encoding="utf-8")
    return file


def _play(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["play", *map(str, arguments)])


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def _frames(file: Path) -> Any:
    return np.stack([*frames_of(file)])


@pytest.mark.parametrize("count", [5, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.parametrize("tau", [pytest.param("off", marks=pytest.mark.slow), "-2"])
def test_generate_makes_the_session_again(tmp_path: Path, count: int, tau: str) -> None:
    """The context of `table-actions` rolls."""
    rng = np.random.default_rng(5)
    actions = (0.5 * rng.integers(-2, 3, (count, 2))).tolist()
    played = _play("--actions", _csv(tmp_path, actions), "--json", "--seed", 3, "--tau", tau, "-o", tmp_path / "s.mp4")
    assert played.exit_code == 0
    first, *frames, last = _lines(played.stdout)
    assert first["action"] == {"size": 2, "reach": 1.0}
    assert [line["frame"] for line in frames] == [*range(3, count + 3)]
    assert (last["steps"], last["video"]["frames"], last["hits"]) == (count, count + 3, 0)
    again = CliRunner().invoke(app, ["generate", "--from", str(tmp_path / "s.mp4"), "-o", str(tmp_path / "t.mp4")])
    assert again.exit_code == 0
    assert (tmp_path / "t.mp4").read_bytes() == (tmp_path / "s.mp4").read_bytes()
    once_more = _play("--actions", tmp_path / "s.csv", "--seed", 3, "--tau", tau, "-o", tmp_path / "u.mp4")
    assert once_more.exit_code == 0
    assert np.array_equal(_frames(tmp_path / "u.mp4"), _frames(tmp_path / "s.mp4"))


@pytest.mark.parametrize(
    ("frames", "keys"), [("none", set()), ("png", {"png"}), pytest.param("codes", {"codes"}, marks=pytest.mark.slow)]
)
def test_lines_hold_what_frames_says(tmp_path: Path, frames: str, keys: set[str]) -> None:
    done = _play("--actions", _csv(tmp_path, KEYS), "--json", "--seed", 1, "--frames", frames, "-o", tmp_path / "s.mp4")
    first, line, *_ = _lines(done.stdout)
    assert line.keys() == {"frame", "seconds", "hit", "passes"} | keys
    assert ("png" in first) == (frames == "png")
    if frames == "png":
        image = Image.open(io.BytesIO(base64.b64decode(line["png"])))
        assert image.size == (128, 128)
    if frames == "codes":
        assert np.array(line["codes"]).shape == (64, 1)


def _started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    pipe: Any = subprocess.PIPE
    command = [sys.executable, "-m", "fastcar_cli", "play", "-o", "s.mp4", "--seed", "1", *arguments]
    return subprocess.Popen(command, cwd=folder, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.mark.slow
def test_a_program_plays_through_pipes(tmp_path: Path) -> None:
    """Each action is answered before the next is sent, so frames are decoded ahead; the file is as without."""
    process = _started(tmp_path, "--actions", "-", "--json")
    assert process.stdin is not None and process.stdout is not None
    first = json.loads(process.stdout.readline())
    for number, action in enumerate(3 * KEYS, 1):
        process.stdin.write(json.dumps(action) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["frame"] == number + 2
        assert len((tmp_path / "s.csv").read_text(encoding="utf-8").splitlines()) == number
    # The same action, after longer and longer pauses, until a frame was decoded ahead.
    pause, hit, later = 0.05, False, 0
    while not hit:
        time.sleep(pause)
        process.stdin.write(json.dumps(KEYS[-1]) + "\n")
        process.stdin.flush()
        pause, hit, later = 2 * pause, json.loads(process.stdout.readline())["hit"], later + 1
    rest, errors = process.communicate(timeout=300)
    assert (process.returncode, errors, first["seed"]) == (0, "", 1)
    assert json.loads(rest)["hits"] >= 1
    actions = [*3 * KEYS, *later * KEYS[-1:]]
    assert _play("--actions", _csv(tmp_path, actions), "--seed", 1, "-o", tmp_path / "t.mp4").exit_code == 0
    assert (tmp_path / "s.mp4").read_bytes() == (tmp_path / "t.mp4").read_bytes()


@pytest.mark.slow
def test_a_session_of_a_thousand_keys(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    actions = np.repeat(1.0 * rng.integers(-1, 2, (250, 2)), 4, axis=0).tolist()
    process = _started(tmp_path, "--actions", "-", "--json", "--frames", "codes")
    output, errors = process.communicate("".join(json.dumps(action) + "\n" for action in actions), timeout=600)
    _, *lines, last = _lines(output)
    assert (process.returncode, errors, len(lines), last["steps"]) == (0, "", 1000, 1000)
    assert len((tmp_path / "s.csv").read_text(encoding="utf-8").splitlines()) == 1000
    pipe = Pipeline.from_pretrained("table-actions")
    recipe = read_recipe(tmp_path / "s.mp4")
    pipe = pipe.with_config(pipe.config.changed({"generation.frames": 1003, "generation.context_policy": "roll"}))
    pipe.run([prompt_of(recipe, "s.mp4")], [1])
    assert np.array_equal(pipe.codes[0], np.concatenate([line["codes"] for line in lines]))


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("[1]", "line 2: the action [1]"),
        ("[1, 2, 3]", "line 2: the action [1, 2, 3]"),
        ("[9, 0]", "line 2: the action [9, 0] is out of range"),
        ("[NaN, 0]", "line 2: the action [nan, 0]"),
        ('{"a": 1}', "line 2: the action {'a': 1}"),
        ("left", "line 2 is not JSON: 'left'"),
    ],
)
@pytest.mark.slow
def test_a_refused_line_ends_the_session_whole(tmp_path: Path, line: str, text: str) -> None:
    process = _started(tmp_path, "--actions", "-", "--json")
    _, errors = process.communicate(f"[1, 0]\n{line}\n[0, 0]\n", timeout=300)
    assert process.returncode == 2
    assert text in " ".join(errors.replace("│", " ").split())
    assert (len(_frames(tmp_path / "s.mp4")), (tmp_path / "s.csv").read_text(encoding="utf-8")) == (4, "1.0,0.0\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--model", "mini"), "the model 'mini' takes no actions"),
        (("--model", "mini-actions"), "the model 'table-actions' has replaced 'mini-actions'"),
        (("--input", "nothing.png"), "there is no such file"),
        (("--actions", "nothing.csv"), "nothing.csv"),
        (("--json",), "--json has no effect without --actions"),
        (("--actions", "x.csv", "--terminal"), "--terminal has no effect with --actions"),
        (("--terminal",), "--terminal: standard input is not a terminal"),
        (("-o", "video.mkv"), "-o video.mkv: the file of a session must end in .mp4 or .gif"),
        (("--frames", "jpg"), "--frames jpg: unknown"),
    ],
)
def test_bad_requests_are_a_sentence(arguments: tuple[str, ...], text: str) -> None:
    done = _play(*arguments)
    assert isinstance(done.exception, RequestError)
    assert text in str(done.exception)


def test_a_prompt_is_refused() -> None:
    done = _play("a red ball")
    assert (done.exit_code, "unexpected extra argument" in done.output) == (2, True)


class _Page:
    """What a page asks of a player."""

    def __init__(self, player: Player) -> None:
        self.player = player

    def post(self, name: str, **form: Any) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.player.server_port, timeout=60)
        connection.request("POST", f"/{self.player.secret}/{name}", json.dumps(form))
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer

    def until(self, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first line of which this holds."""
        line: dict[str, Any] = {}
        end = time.monotonic() + 120
        while not line or not holds(line):
            assert time.monotonic() < end
            line |= self.post("frame", after=line.get("number"))
        return line


@pytest.fixture(scope="module")
def pipe() -> Any:
    return Pipeline.from_pretrained("table-actions")


@pytest.fixture
def player(pipe: Any, tmp_path: Path) -> Iterator[Player]:
    player = Player(PlaySession(pipe, FRAME, 1, tmp_path / "s.mp4"), 20)
    thread = threading.Thread(target=player.serve)
    thread.start()
    yield player
    player.playing = False
    player.newest(None)
    thread.join()


def test_two_pages_see_and_steer_one_session(player: Player) -> None:
    one, two = _Page(player), _Page(player)
    one.until(lambda line: line["steps"] > 2)
    assert two.post("input", action=[1, 0], key="mine") == {}
    line = one.until(lambda line: line.get("key") == "mine")
    assert two.until(lambda other: other["steps"] >= line["steps"])["file"] == line["file"]
    assert one.post("input", order="pause") == {}
    assert two.until(lambda line: line["paused"])["steps"] == one.until(lambda line: line["paused"])["steps"]
    before = player.session.decoded
    assert one.post("input", order="step") == {}
    two.until(lambda line: line["steps"] == before + 1)


def test_a_closed_page_leaves_a_whole_file(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    """The session waits and is saved when no page asks; the next page continues it."""
    monkeypatch.setattr("fastcar_cli.demo.play.AWAY", 0.3)
    page = _Page(player)
    page.until(lambda line: line["steps"] > 2)
    session, end = player.session, time.monotonic() + 120

    def saved() -> bool:
        # A slow machine also saves while the page waits for an answer; such a file soon lacks frames.
        if not (session.path.exists() and session.actions_path.exists()):
            return False
        rows = session.actions_path.read_text(encoding="utf-8").splitlines()
        return len(_frames(session.path)) - 3 == len(rows) == session.decoded

    while not saved():
        assert time.monotonic() < end
        time.sleep(0.05)
    steps = session.decoded
    time.sleep(0.5)
    assert session.decoded == steps
    page.until(lambda line: line["steps"] > steps)


def test_a_slow_page_misses_frames(player: Player) -> None:
    fast, slow = _Page(player), _Page(player)
    late = slow.until(lambda line: line["steps"] > 0)["steps"]
    fast.until(lambda line: line["steps"] > late + 5)
    assert slow.post("frame", after=0)["steps"] > late + 4


def test_a_key_brings_the_next_frame_forward(pipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By half the time between frames, which is a second here; the frames after it are shown when they were due."""
    clock = 0.0
    monkeypatch.setattr("fastcar_cli.demo.play.time", SimpleNamespace(monotonic=lambda: clock))
    player = Player(PlaySession(pipe, FRAME, 1, tmp_path / "s.mp4"), 1)
    try:
        shown = []
        for at, key in ((0.0, False), (0.49, True), (0.5, False), (1.4, False), (1.5, False)):
            clock = at
            player.newest(None)
            if key:
                player.take({"action": [1, 0], "key": "right"})
            player.turn()
            shown.append(player.session.decoded)
        # At 0.5 and 1.4 s nothing but the key makes a frame due.
        assert shown == [1, 1, 2, 2, 3]
        assert player.report()["key_to_frame"]["p50"] == pytest.approx(0.01)
    finally:
        player.server_close()


def test_another_tau_begins_a_session_from_the_current_frame(player: Player) -> None:
    page = _Page(player)
    page.until(lambda line: line["steps"] > 2)
    assert page.post("input", order="change", tau="low")["error"].startswith("configuration: replay.tau")
    page.post("input", order="pause")
    first, spec = player.session.path, player.session.world.spec
    assert page.post("input", order="change", tau="-2", draft="off") == {}
    assert first.exists() and player.session.decoded == 0
    assert player.session.world.spec is spec
    page.post("input", order="play")
    line = page.until(lambda line: line["steps"] > 2)
    assert (line["tau"], line["draft"], line["seed"], Path(line["file"]).name) == ("-2", "off", 1, "s-2.mp4")
    assert page.post("input", order="reset", seed=7) == {}
    assert player.session.world.seed == 7


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"action": [1]}, "the action [1]"),
        ({"action": [99, 0]}, "out of range"),
        ({"action": "left"}, "the action left"),
        ({"order": "dance"}, "unknown order"),
        ({"order": "reset", "seed": -1}, "the seed '-1' is not a whole number"),
        ({"order": "reset", "seed": "x"}, "the seed 'x' is not a whole number"),
    ],
)
def test_bad_input_of_a_page_is_a_sentence(player: Player, form: dict[str, Any], text: str) -> None:
    assert text in _Page(player).post("input", **form)["error"]


def test_the_page_of_a_player_is_as_guarded_as_that_of_the_demo(player: Player) -> None:
    for path, headers, status in (
        ("/x/frame", {}, 404),
        (f"/{player.secret}/other", {}, 404),
        (f"/{player.secret}/frame", {"Host": "evil.example"}, 403),
        (f"/{player.secret}/input", {"Origin": "http://evil.example"}, 403),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", player.server_port, timeout=60)
        connection.request("POST", path, "{}", headers)
        assert connection.getresponse().status == status


def test_a_taken_port_is_refused(player: Player, tmp_path: Path) -> None:
    done = _play("--no-browser", "--port", player.server_port, "-o", tmp_path / "t.mp4")
    assert isinstance(done.exception, RequestError)
    assert f"--port {player.server_port}" in str(done.exception)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs POSIX signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_the_session(tmp_path: Path, number: int) -> None:
    process = _started(tmp_path, "--no-browser")
    assert process.stdout is not None
    address = re.fullmatch(r"http://(127\.0\.0\.1:\d+)/(.*)/\n", process.stdout.readline())
    assert address is not None
    steps = 0
    while steps < 3:
        connection = http.client.HTTPConnection(address[1], timeout=60)
        connection.request("POST", f"/{address[2]}/frame", "{}")
        steps = json.loads(connection.getresponse().read())["steps"]
    process.send_signal(number)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 128 + number
    assert "the session is saved" in errors and "Traceback" not in errors
    rows = len((tmp_path / "s.csv").read_text(encoding="utf-8").splitlines())
    assert len(_frames(tmp_path / "s.mp4")) == rows + 3 >= 6


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="needs a POSIX terminal")
def test_keys_of_a_terminal_steer(tmp_path: Path) -> None:
    import pty

    main, side = pty.openpty()
    command = [sys.executable, "-m", "fastcar_cli", "play", "--terminal", "-o", "s.mp4", "--seed", "1"]
    environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "80", "LINES": "40"}
    environment.pop("NO_COLOR", None)
    process = subprocess.Popen(command, cwd=tmp_path, stdin=side, stdout=side, stderr=side, env=environment)
    os.close(side)
    shown = b""

    def read_until(text: bytes) -> None:
        nonlocal shown
        end = time.monotonic() + 120
        while text not in shown:
            assert time.monotonic() < end and select.select([main], [], [], 120)[0], shown[-2000:]
            shown += os.read(main, 65536)

    read_until(b"frame 1,")
    os.write(main, b"\x1b[C")
    read_until(b"action [1.0, 0.0]")
    os.write(main, b"rw")
    read_until(b"action [0.0, -1.0]")
    os.write(main, b"q")
    read_until(b"actions:")
    assert process.wait(60) == 0
    assert "▀".encode() in shown
    assert {file.name for file in tmp_path.iterdir()} == {"s.mp4", "s.csv", "s-2.mp4", "s-2.csv"}


@settings(max_examples=3, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize(("tau", "draft"), [pytest.param("off", "auto", marks=pytest.mark.slow), ("-2", "jacobi")])
def test_frames_decoded_ahead_change_no_code(data: st.DataObject, tau: str, draft: str) -> None:
    """Random actions of which some repeat the last one, each with or without a frame decoded ahead."""
    plain = _world(tau, draft)
    steps = data.draw(st.lists(st.tuples(st.sampled_from([0, 0, 1, 2]), st.booleans()), min_size=2, max_size=24))
    ahead, action = _world(tau, draft), [0.0, 0.0]
    for change, early in steps:
        action = [action, [1.0, 0.0], [0.0, -0.5]][change]
        if early:
            ahead.ahead()
        pixels, _ = ahead.step(action)
        expected, _ = plain.step(action)
        assert np.array_equal(pixels, expected)
    assert np.array_equal(ahead.codes, plain.codes)
    assert plain.hits == 0


@functools.cache
def _pipe(tau: str, draft: str) -> Any:
    return Pipeline.from_pretrained("table-actions", tau=tau, draft=draft)


def _world(tau: str, draft: str) -> Any:
    return _pipe(tau, draft).play(FRAME, seed=2)


@pytest.mark.parametrize("width", [1200, pytest.param(390, marks=pytest.mark.slow)])
def test_a_person_plays(browser: Any, player: Player, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.set_default_timeout(300_000)
    errors: list[str] = []
    page.on("pageerror", lambda e: errors.append(str(e)))
    page.goto(player.url)
    _wait(page, lambda: player.session.decoded > 3)
    page.keyboard.down("ArrowRight")
    _wait(page, lambda: player.session.world.actions[-1].tolist() == [1, 0])
    page.keyboard.down("w")
    _wait(page, lambda: player.session.world.actions[-1].tolist() == [1, -1])
    page.keyboard.up("w")
    page.keyboard.up("ArrowRight")
    _wait(page, lambda: player.session.world.actions[-1].tolist() == [0, 0])
    _wait(page, lambda: "ms" in page.inner_text("#numbers dd:nth-of-type(4)"))
    page.mouse.move(*_place(page, 0.1, 0.5))
    page.mouse.down()
    _wait(page, lambda: player.session.world.actions[-1].tolist() == [-1, 0])
    page.mouse.up()
    page.click("#pause")
    _wait(page, lambda: page.inner_text("#pause") == "Play")
    steps = player.session.decoded
    page.click("#step")
    _wait(page, lambda: player.session.decoded == steps + 1)
    page.fill("#tau", "-2")
    page.click("#change button")
    page.click("#pause")
    _wait(page, lambda: "s-2.mp4" in page.inner_text("#file"))
    page.fill("#seed", "x")
    page.click("#new-seed")
    _wait(page, lambda: "not a whole number" in page.inner_text("#error"))
    assert page.evaluate("document.documentElement.scrollWidth") == width
    pixels = "[...at('frame').getContext('2d').getImageData(0, 0, 128, 128).data].some((x, i) => i % 4 < 3 && x)"
    assert page.evaluate(pixels), "the frame is black"
    page.close()
    assert errors == []


def _place(page: Any, x: float, y: float) -> tuple[float, float]:
    box = page.locator("#screen").bounding_box()
    return box["x"] + x * box["width"], box["y"] + y * box["height"]


def _wait(page: Any, holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < end
        page.wait_for_timeout(20)
