"""The `fastcar` program: its commands and error handling."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from fastcar_cli._version import __version__
from fastcar_cli.cli.flags import Command, examples
from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.system import plugins
from fastcar_cli.system.limits import raise_open_files
from fastcar_cli.system.signals import status, stop_on_signals

COMMANDS = {
    "generate": ("generate:generate", "Generate videos from prompts, or continue input frames."),
    "convert": ("convert:convert", "Quantize a model and save it in a new folder; rerun to resume."),
    "profile": ("profile:profile", "Time each module of a decode step; --decode times a whole video."),
    "sweep": ("sweep:sweep", "Measure speed and quality of videos at several replay thresholds; rerun to resume."),
    "play": ("play:play", "Steer a video during decoding, on a local web page; fastcar saves the session."),
    "demo": ("demo:demo", "Serve a local web page that makes videos and shows where MLPs replay; Ctrl-C stops it."),
    "fpga": ("fpga:fpga", "Compute an emulated FPGA accelerator's decode time; `fastcar fpga rtl` writes its RTL."),
    "fpga rtl": ("", "Write the emulated accelerator's RTL, with input data and expected results."),
    "models": ("models:models", "List the models that fastcar knows by name, with input, output, size and source."),
    "models show": ("models:show", "Show a model's size, decoder, tokens per frame and licence; download no weights."),
    "pull": ("models:pull", "Download a model from the hub, so that later runs need no network."),
    "presets": ("config:presets", "List the bundled configurations and accelerators."),
    "config": ("config:config", "Print the settings that a run would use, as YAML."),
}
"""By command: module and function (empty if fastcar_lab has them), and summary."""

LABORATORY = {
    "train": "Train a bundled model from scratch; rerun to resume from the last checkpoint.",
    "lab": "Reproduce the bundled models and the published measurements.",
}


class Lazy(Command):
    """A command that fastcar imports only to run it or to show its help; importing all commands takes too long."""

    def __init__(self, name: str, load: Callable[[], Any], line: str) -> None:
        super().__init__(name, help=line)
        self._load = load

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """The context of the imported command, which then runs."""
        command = typer.main.get_command(self._load())
        return command.make_context(info_name, args, parent, **extra)


def _load(target: str) -> typer.Typer:
    module, _, name = target.partition(":")
    function = getattr(import_module(f"fastcar_cli.cli.{module}"), name) if target else plugins.of_fpga("rtl", "rtl")
    # Typer 0.19 applies no default here to a program of one command.
    program = typer.Typer(add_completion=False, rich_markup_mode="rich")
    program.command(cls=Command)(function)
    return program


class Commands(TyperGroup):
    """The commands of this package, with names of one or two words, and the commands of plug-ins."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: Lazy(name, partial(_load, target), line) for name, (target, line) in COMMANDS.items()}

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the words of a command's name; `help NAME` is `NAME --help`."""
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        name = " ".join(args[:2])
        return super().parse_args(ctx, [name, *args[2:]] if name in self.commands else args)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; a signal sets the exit status, unlike in typer, which handles only Ctrl-C ("Aborted!")."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as e:
            from fastcar_cli.cli.render import console, note

            note(console(), "the command did not finish", "stopped")
            raise typer.Exit(status(e)) from None

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, and examples below it."""
        super().format_help(ctx, formatter)
        typer.echo(examples(""), nl=False)

    def list_commands(self, ctx: Any) -> list[str]:
        """All names, those from plug-ins last."""
        return [*super().list_commands(ctx), *plugins.command_names()]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name. Raises RequestError if the command needs a package that is not installed."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        if (load := plugins.command(cmd_name)) is not None:
            line = LABORATORY.get(cmd_name)
            return typer.main.get_command(load()) if line is None else Lazy(cmd_name, load, line)
        if cmd_name in LABORATORY:
            said = f"fastcar {cmd_name} needs the package fastcar_lab, which is not installed"
            raise RequestError(said, hint="run pip install -e . in a checkout of fastcar")
        return None


app = typer.Typer(
    name="fastcar",
    cls=Commands,
    help="Generate video with auto-regressive models: speculative decoding, cache attentive replay, native kernels.",
    no_args_is_help=True,
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
        bool, typer.Option("-V", "--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Generate video with auto-regressive models, from text or from frames."""


def main() -> None:
    """Run fastcar; report every error in one short panel, and exit with its status."""
    # Weights in 2 MiB pages are read about a seventh faster. torch reads this before its first large allocation.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    # By default OpenMP's threads spin while they wait, which costs seconds if other processes need the cores or a quota
    # limits them. OpenMP reads this when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    # rich prints nothing with 0 columns, and runs out of memory with a billion.
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("[0-9]{2,4}", os.environ.get(name, "80")):
            del os.environ[name]
    # Pipes, files and logs get no escape sequences; rich and typer detect terminals themselves.
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "GITHUB_ACTIONS"):
        os.environ.pop(name, None)
    if sys.platform == "win32":  # pragma: no cover
        # Consoles there may not be UTF-8, but prompts may contain any character.
        sys.stderr.reconfigure(errors="replace")  # type: ignore[union-attr]
    debug = "--debug" in sys.argv
    if not debug and not sys.warnoptions:
        # Libraries' warnings show lines of their code; fastcar prints notes for the user instead.
        warnings.simplefilter("ignore")
    stop_on_signals()
    raise_open_files()
    try:
        _check_folder()
        app(prog_name="fastcar")
    except KeyboardInterrupt as e:
        _panel("stopped", None)
        sys.exit(status(e))
    except SystemExit as e:
        # While typer reads the arguments, it ends with 130 after any signal.
        stop = getattr(e.__context__, "__cause__", None)
        sys.exit(status(stop) if isinstance(stop, KeyboardInterrupt) else e.code)
    except Exception as e:
        if debug:
            raise
        if isinstance(e, FastcarError):
            _panel(str(e), e.hint)
        elif isinstance(e, ImportError):
            _panel(f"a package can't be loaded: {e}", "install fastcar again, or free memory; add --debug for details")
        else:
            _panel(f"unexpected {type(e).__name__}: {e}", "this is a fault of fastcar; add --debug for the traceback")
        sys.exit(getattr(e, "exit_code", 1))


def _check_folder() -> None:
    """Raise RequestError in a removed folder; a library would end the process without a message."""
    try:
        os.getcwd()
    except OSError as e:
        raise RequestError(f"the current folder can't be used: {e.strerror}", hint="change to another folder") from None


def _panel(message: str, hint: str | None) -> None:
    from rich.panel import Panel
    from rich.text import Text

    from fastcar_cli.cli.render import console, plain

    # A value from a file or an option may be of any length.
    message, way_out = (t if len(t) <= 1200 else f"{t[:600]} ... {t[-600:]}" for t in (message, hint or ""))
    text = Text(plain(message))
    if way_out:
        text.append(f"\n{plain(way_out)}", style="dim")
    console().print(Panel(text, title="Error", title_align="left", border_style="red"))
