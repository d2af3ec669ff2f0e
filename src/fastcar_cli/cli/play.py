"""`fastcar play`: a video that is steered while it is decoded, on a page, in the terminal, or by lines of actions."""

from __future__ import annotations

import json
import os
import queue
import secrets
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from fastcar_cli.checkpoints.names import BUNDLED
from fastcar_cli.cli.flags import given, one_of, refuse
from fastcar_cli.cli.inputs import BUNDLED_EXAMPLES
from fastcar_cli.cli.options import Flags, Json, Quiet, a_model, options
from fastcar_cli.cli.render import Results, console, facts, note, plain
from fastcar_cli.errors import RequestError
from fastcar_cli.system.signals import status

if TYPE_CHECKING:
    from fastcar_cli.pipeline.session import PlaySession

DEFAULT_MODEL = "table-actions"
FRAMES = ("none", "png", "codes")


@options("replay.tau", "draft.kind", "generation.seed", "video.fps")
def play(
    ctx: typer.Context,
    flags: Flags,
    model: str = typer.Option(DEFAULT_MODEL, help="Model that takes actions.", autocompletion=a_model),
    inputs: Path | None = typer.Option(
        None, "--input", metavar="FILE", help="Start from this image or video. [default: the model's example]"
    ),
    steps: str | None = typer.Option(
        None, "--actions", metavar="FILE", help="Read actions from this file, or from standard input (-)."
    ),
    frames: str = typer.Option("none", "--frames", help="Frames in the output of --json: none, png or codes."),
    terminal: bool = typer.Option(False, "--terminal", help="Play in the terminal."),
    output: str | None = typer.Option(
        None, "-o", "--output", help="File (.mp4, .gif) for the session's video. [default: named after the model]"
    ),
    port: int = typer.Option(0, min=0, max=65535, help="Port of the page; 0 selects a free one."),
    no_browser: bool = typer.Option(False, "--no-browser", help="Print the address without opening a browser."),
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Steer a video during decoding, on a local web page; fastcar saves the session."""
    from fastcar_cli.demo.play import Player

    one_of("--frames", frames, FRAMES)
    if steps is None:
        refuse(ctx, ("as_json", "frames"), "without --actions", "it needs --actions FILE or --actions -")
    else:
        refuse(ctx, ("port", "no_browser", "terminal"), "with --actions", "leave one of them out")
    if terminal:
        from fastcar_cli.cli.play_terminal import check_terminal, play_here

        refuse(ctx, ("port", "no_browser"), "with --terminal", "leave one of them out")
        check_terminal()
    session = _session(model, flags, inputs, output, quiet)
    player: Player | None = None
    ends: KeyboardInterrupt | None = None
    try:
        if steps is not None:
            _by_lines(session, steps, frames if as_json else None, session.pipe.fps if "fps" in given(ctx) else None)
        elif terminal:
            play_here(session)
        else:
            player = Player(session, session.pipe.fps, port)
            typer.echo(player.url)
            sys.stdout.flush()
            shown = sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
            if not no_browser and shown:
                webbrowser.open(player.url)
            player.serve()
    except KeyboardInterrupt as e:
        ends = e
    finally:
        session.save()
    report = session.report() if player is None else player.report()
    if as_json:
        typer.echo(json.dumps(report))
    elif not quiet:
        _summary(report)
    if ends is not None:
        note(console(quiet), "the session is saved" if session.decoded else "no frame was decoded", "stopped")
        raise typer.Exit(status(ends))


def _session(model: str, flags: Flags, file: Path | None, output: str | None, quiet: bool) -> PlaySession:
    """A new session. Raises RequestError before it reads weights."""
    from fastcar_cli.checkpoints.open import checkpoint_of, folder_of
    from fastcar_cli.cli import writing
    from fastcar_cli.config.run_config import load_sources, surroundings
    from fastcar_cli.inputs.clip import Wanted, read_clip
    from fastcar_cli.media import check_target
    from fastcar_cli.media.writer import SUFFIXES
    from fastcar_cli.pipeline.clips import ClipFiles
    from fastcar_cli.pipeline.session import PlaySession

    path = Path(f"play-{Path(model).name}.mp4" if output is None else output)
    if path.suffix.lower() not in SUFFIXES:
        raise RequestError(f"-o {path}: the file of a session must end in {' or '.join(SUFFIXES)}")
    check_target(path)
    run, _ = load_sources(None, [], flags | {"model": model}, surroundings())
    checkpoint = checkpoint_of(model, run.runtime.tokenizer)
    spec = checkpoint.spec
    if not spec.conditions:
        raise RequestError(f"the model {model!r} takes no actions", hint=f"use another model, such as {DEFAULT_MODEL}")
    if file is None and (model not in BUNDLED or model not in BUNDLED_EXAMPLES):
        raise RequestError(f"no input given: the model {model!r} needs a frame as input", hint="give --input FILE")
    file = folder_of(model) / BUNDLED_EXAMPLES[model] if file is None else file
    files = ClipFiles((file,))
    files.check()
    context = 1 if files.single() else spec.frames_of(spec.layout.context)
    height, width = spec.frame_spec.size
    clip = read_clip(file, Wanted(model=model, frames=context, context=context, height=height, width=width))
    pipe = writing.load(run, 1, console(quiet), checkpoint)
    seed = run.generation.seed
    return PlaySession(pipe, clip.frames, secrets.randbelow(2**31) if seed is None else seed, path)


def _by_lines(session: PlaySession, source: str, frames: str | None, fps: int | None) -> None:
    """Play the actions of a file or of standard input. With `frames` (none, png, codes) print a JSON line per frame."""

    def put(line: dict[str, Any]) -> None:
        if frames is not None:
            typer.echo(json.dumps(line))
            sys.stdout.flush()

    def pixels(images: Any) -> dict[str, Any]:
        from fastcar_cli.demo.play import png

        return {"png": [png(image) for image in images]} if frames == "png" else {}

    size = {"height": session.pipe.height, "width": session.pipe.width, "fps": session.pipe.fps}
    action = {"size": session.size, "reach": session.reach}
    put({"model": session.pipe.name, "seed": session.world.seed, "action": action, **size, **pixels(session.newest)})
    due = time.monotonic()
    for where, given_action in _actions(session, source):
        if fps is not None and (due := max(due + 1 / fps, time.monotonic())) > time.monotonic():
            session.ahead(given_action)
            time.sleep(max(0.0, due - time.monotonic()))
        try:
            image, info = session.step(given_action)
        except RequestError as e:
            e.where = where
            raise
        line: dict[str, Any] = {"frame": len(session.world.context) + session.decoded - 1}
        line |= {key: info[key] for key in ("seconds", "hit", "passes")}
        if frames == "codes":
            line["codes"] = info["codes"].tolist()
        put(line | {key: value[0] for key, value in pixels([image]).items()})


def _actions(session: PlaySession, source: str) -> Iterator[tuple[str, Any]]:
    """Actions with their sources for errors. Decodes ahead while standard input has no line. Raises RequestError."""
    from fastcar_cli.inputs.actions import read_actions
    from fastcar_cli.system.files import spooled

    if source != "-":
        rows = read_actions(spooled(Path(os.path.expanduser(source))), session.size, parts=session.steered.parts)
        for number, row in enumerate(rows.tolist()):
            yield f"--actions {source}: row {number}", row
        return
    lines = queue.Queue[str](maxsize=256)
    # A separate file object, because the thread may still be reading from it when the interpreter exits.
    reader = open(os.dup(0), encoding="utf-8", errors="replace")  # noqa: SIM115
    threading.Thread(target=_read, args=(reader, lines), daemon=True).start()
    number = 0
    while True:
        if lines.empty():
            session.world.ahead()
        if not (line := lines.get()):
            return
        number += 1
        if line.strip():
            try:
                yield f"--actions -: line {number}", json.loads(line)
            except (ValueError, RecursionError):
                said = f"--actions -: line {number} is not JSON: {line.strip()[:40]!r}"
                raise RequestError(said, hint="write a list of numbers, such as [1, 0]") from None


def _read(reader: TextIO, lines: queue.Queue[str]) -> None:
    """Queue all lines, then an empty one."""
    for line in reader:
        lines.put(line)
    lines.put("")


def _summary(report: dict[str, Any]) -> None:
    def seconds(of: dict[str, float | None]) -> str:
        return ", ".join(f"{name} {1000 * value:.0f} ms" for name, value in of.items() if value is not None)

    table = facts(f"{report['model']}, seed {report['seed']}")
    table.add_row("frames", f"{report['steps']} decoded, {report['hit_share']:.0%} of them before the action was known")
    if report["steps"]:
        table.add_row("per step", f"{seconds(report['seconds'])}, {report['tokens_per_pass']:.1f} tokens per pass")
    if waits := seconds(report.get("key_to_frame", {})):
        table.add_row("key press to frame", waits)
    results = Results()
    results.print(table)
    if report["steps"]:
        results.fact("file", plain(report["video"]["path"]))
        results.fact("actions", plain(report["actions"]))
