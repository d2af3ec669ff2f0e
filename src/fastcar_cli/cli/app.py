"""The `fastcar` program: its commands, and how every error ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fastcar_cli import plugins
from fastcar_cli._version import __version__
from fastcar_cli.cli import convert_cmd, fpga_cmd, fpga_rtl_cmd, generate, profile_cmd, sweep_cmd
from fastcar_cli.cli.flags import Command, refuse_all_but
from fastcar_cli.cli.options import ConfigFile, Debug, Overrides
from fastcar_cli.config import allowed_keys, load_config
from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.signals import status, stop_on_sigterm

LABORATORY = ("train", "lab")
"""Commands that the package fastcar_lab adds."""


class Commands(TyperGroup):
    """The commands of this package and those that others add, which are looked for only when they are needed.

    A command may have a name of two words: `fastcar fpga rtl` beside `fastcar fpga`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the words of a command's name."""
        name = " ".join(args[:2])
        return super().parse_args(ctx, [name, *args[2:]] if name in self.commands else args)

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, the added ones last."""
        return [*super().list_commands(ctx), *plugins.command_names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name. Raises RequestError for one that a missing package has."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        if (program := plugins.command(cmd_name)) is not None:
            return typer.main.get_command(program)
        if cmd_name in LABORATORY:
            raise RequestError(f"fastcar {cmd_name} is of the package fastcar_lab, which is not installed")
        return None


app = typer.Typer(
    name="fastcar",
    cls=Commands,
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
app.command("sweep", cls=Command)(sweep_cmd.sweep)
app.command("sweep vbench-score", cls=Command)(sweep_cmd.vbench_score)
app.command("fpga", cls=Command)(fpga_cmd.fpga)
app.command("fpga rtl", cls=Command)(fpga_rtl_cmd.rtl)


@app.command("config", cls=Command)
def config(
    ctx: typer.Context,
    config: ConfigFile = None,
    set_: Overrides = None,
    keys: Annotated[bool, typer.Option("--keys", help="List every key with what it means instead.")] = False,
    debug: Debug = False,
) -> None:
    """Print the effective configuration as YAML."""
    if keys:
        refuse_all_but(ctx, ("keys",), "with --keys")
        for key, meaning in allowed_keys().items():
            typer.echo(f"{key:<30} {meaning}")
        return
    typer.echo(load_config(config, set_ or []).to_yaml(), nl=False)


def main(program: Callable[[], object] = app) -> None:
    """Run a program; every error ends in one short panel and its exit status."""
    # Weights in 2 MiB pages are read about a seventh faster. torch reads this before its first large allocation.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if sys.platform == "win32":  # pragma: no cover
        # Consoles there may not be UTF-8; prompts may hold anything.
        sys.stderr.reconfigure(errors="replace")  # type: ignore[union-attr]
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

    from fastcar_cli.cli.render import console, plain

    text = Text(plain(message))
    if hint:
        text.append(f"\n{plain(hint)}", style="dim")
    console().print(Panel(text, title="Error", title_align="left", border_style="red"))
