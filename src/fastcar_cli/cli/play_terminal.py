"""`fastcar play --terminal`: reads keys from the terminal, and shows frames as the preview does."""

from __future__ import annotations

import os
import re
import select
import sys
import time
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from fastcar_cli.cli.render import Preview, console, lacking
from fastcar_cli.errors import RequestError

if TYPE_CHECKING:
    from fastcar_cli.pipeline.session import PlaySession

ARROWS = {"\x1b[A": "w", "\x1b[B": "s", "\x1b[C": "d", "\x1b[D": "a"}
WAYS = {"w": (1, -1), "s": (1, 1), "a": (0, -1), "d": (0, 1)}  # index of the number to change, sign
KEY = re.compile(r"\x1b\[[A-D]|\x1bO[A-D]|.", re.S)


def check_terminal() -> None:
    """Raise RequestError if keys can't be read or frames can't be shown."""
    if sys.platform == "win32":
        raise RequestError("--terminal does not work on Windows", hint="run fastcar play without --terminal")
    why = "standard input is not a terminal" if not sys.stdin.isatty() else lacking(console())
    if why is not None:
        raise RequestError(f"--terminal: {why}", hint="run fastcar play without --terminal")


def play_here(session: PlaySession) -> None:
    """Play until the user presses `q`."""
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    preview, terminal = Preview(1), console()
    preview.add(session.newest[-1])
    reach, chosen = session.reach or 1.0, 0
    keys = "p pauses, . decodes one frame, r restarts, q ends"
    help_ = f"arrows or WASD steer, space stops, {keys}"
    if session.size != 2:
        help_ = f"1 to {session.size} select one of the action's numbers, arrows change it, space sets all to 0, {keys}"
    rest, words = session.steered.rest, session.steered.words
    help_ = f"{words}, space stops, {keys}" if words else help_
    action, paused, once, due = [*rest], False, False, time.monotonic()
    try:
        tty.setcbreak(descriptor)
        with Live(Group(preview, Text(help_)), console=terminal, auto_refresh=False, transient=True) as live:
            while True:
                if due > time.monotonic() and not paused:
                    session.ahead(action)
                wait = 0.2 if paused else max(0.0, due - time.monotonic())
                keys = ""
                if select.select([descriptor], [], [], wait)[0]:
                    keys = os.read(descriptor, 64).decode(errors="replace").replace("\x1bO", "\x1b[")
                for key in KEY.findall(keys):
                    key = ARROWS.get(key, key.lower())
                    if key == "q":
                        return
                    if key in ("p", "."):
                        paused, once = key == "." or not paused, key == "."
                    elif key == "r":
                        session.restart()
                        preview.add(session.newest[-1])
                    elif key == " ":
                        action = [*rest]
                    elif key in session.steered.keys:
                        at, to = session.steered.keys[key]
                        action = [to if i == at else number for i, number in enumerate(action)]
                    elif key.isdecimal() and 0 < int(key) <= session.size:
                        chosen = int(key) - 1
                    elif key in WAYS and session.size == 2:
                        at, sign = WAYS[key]
                        action = [sign * reach if i == at else 0.0 for i in range(2)]
                    elif key in WAYS:
                        by = reach / 4 * (1 if key in "wd" else -1)
                        action[chosen] = min(reach, max(-reach, action[chosen] + by))
                if once or (not paused and time.monotonic() >= due):
                    once = False
                    preview.add(session.step(action)[0])
                    due = max(due + 1 / session.pipe.fps, time.monotonic())
                    numbers = session.statistics()
                    said = f"frame {session.decoded}, {numbers['hit_share']:.0%} of all decoded ahead, action {action}"
                    live.update(Group(preview, Text(said), Text(help_)), refresh=True)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
