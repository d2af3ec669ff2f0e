"""The `fastcar` program: its commands, and how every error ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from fastcar_cli._version import __version__
from fastcar_cli.cli import config_cmd, convert_cmd, fpga_cmd, generate, profile_cmd, sweep_cmd, train_cmd
from fastcar_cli.cli.flags import Command
from fastcar_cli.errors import FastcarError
from fastcar_cli.signals import status, stop_on_sigterm

app = typer.Typer(
    name="fastcar",
    help="Video from text with auto-regressive models, decoded fast with cache attentive replay.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fastcar {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Video from text with auto-regressive models, decoded fast with cache attentive replay."""


app.command("generate", cls=Command)(generate.generate)
app.command("convert", cls=Command)(convert_cmd.convert)
app.command("profile", cls=Command)(profile_cmd.profile)
app.add_typer(sweep_cmd.app, name="sweep", help="Speed against quality over thresholds, prompts and seeds.")
app.add_typer(fpga_cmd.app, name="fpga", help="The emulated accelerator on saved or drawn decisions.")
app.command("config", cls=Command)(config_cmd.config)
app.command("train", cls=Command)(train_cmd.train)


def main(program: Callable[[], object] = app) -> None:
    """Run a program; every error ends in one short panel and its exit status."""
    # Weights in 2 MiB pages are read about a seventh faster. torch reads this before its first large allocation.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    debug = "--debug" in sys.argv
    stop_on_sigterm()
    try:
        program()
    except FastcarError as e:
        if debug:
            raise
        _panel(str(e), e.hint)
        sys.exit(e.exit_code)
    except KeyboardInterrupt as e:
        _panel("stopped", None)
        sys.exit(status(e))
    except BrokenPipeError:
        sys.exit(1)
    except Exception as e:
        if debug:
            raise
        _panel(f"unexpected {type(e).__name__}: {e}", "this is a fault of fastcar; --debug shows where")
        sys.exit(1)


def _panel(message: str, hint: str | None) -> None:
    from rich.panel import Panel
    from rich.text import Text

    from fastcar_cli.cli.render import console

    text = Text(message)
    if hint:
        text.append(f"\n{hint}", style="dim")
    console().print(Panel(text, title="Error", title_align="left", border_style="red"))
