"""`fastcar demo`: a page in the browser that makes videos."""

from __future__ import annotations

import os
import sys
import webbrowser

import typer

from fastcar_cli.cli.options import options
from fastcar_cli.cli.render import console, note
from fastcar_cli.system.signals import status


@options()
def demo(
    port: int = typer.Option(0, min=0, max=65535, help="Port of the page; 0 selects a free one."),
    no_browser: bool = typer.Option(False, "--no-browser", help="Print the address without opening a browser."),
) -> None:
    """Serve a local web page that makes videos and shows where MLPs replay; Ctrl-C stops it."""
    from fastcar_cli.demo.server import Maker, Server

    server = Server(Maker(), port)
    typer.echo(server.url)
    # Without a display the browser may be a text browser, which would take over the terminal.
    if not no_browser and (sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()):
        webbrowser.open(server.url)
    try:
        server.serve()
    except KeyboardInterrupt as e:
        note(console(), "the page is closed", "stopped")
        raise typer.Exit(status(e)) from None
