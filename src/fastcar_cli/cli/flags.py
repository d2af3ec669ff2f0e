"""What all commands share: options that would be ignored are refused, and errors speak of flags."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.files import read_text
from fastcar_cli.signals import status

OTHERS = {"overrides": "--set", "ratio": "--replay"}
"""Flags of parameters that are no keys of the configuration and called otherwise."""


def flag_of(parameter: str, flags: Collection[str]) -> str | None:
    """The flag of a command with these flags for a parameter of the library; `--set KEY` where it has none."""
    from fastcar_cli.config import settings

    named = [s for s in settings().values() if s.key == parameter or s.key.endswith(f".{parameter}")]
    last = parameter.rpartition(".")[2].replace("_", "-")
    for flag in (*(s.flag for s in named), f"--{last}", f"-{last}", OTHERS.get(parameter)):
        if flag in flags:
            return flag
    return f"--set {named[0].key}" if len(named) == 1 and "--set" in flags else None


def one_of(option: str, value: str | None, allowed: Collection[str]) -> None:
    """Refuse a value that is given and none of these: raises RequestError."""
    if value is not None and value not in allowed:
        raise RequestError(f"{option} {value}: unknown", hint=f"allowed: {', '.join(allowed)}")


def check_file(option: str, file: Path | None) -> None:
    """Refuse the name of a file that can't be written: raises RequestError."""
    if file is not None and not file.parent.is_dir():
        raise RequestError(f"{option} {file}: the folder {file.parent} does not exist")
    if file is not None and file.is_dir():
        raise RequestError(f"{option} {file}: is a folder, needed: a file")


def check_made(option: str, folder: Path | None) -> None:
    """Refuse the name of a folder to make where a file has it: raises RequestError."""
    if folder is not None and folder.exists() and not folder.is_dir():
        raise RequestError(f"{option} {folder}: is a file, needed: a folder")


def prompts_of(file: Path, option: str) -> list[str]:
    """The prompts of a file, one a line. Raises RequestError that names the option."""
    lines = read_text(file, f"{option} {file}", "utf-8-sig").splitlines()
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise RequestError(f"{option} {file}: holds no prompt", hint="one prompt a line")
    return prompts


class Command(TyperCommand):
    """A command that refuses empty values, names flags in the library's errors, and ends as it was stopped.

    Typer alone takes `-o ""` as the current folder, knows no `replay.tau` by its --tau, and calls Ctrl-C "Aborted!".
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option whose value is empty: as a path it would be the current folder."""
        valued = {opt for p in self.params if not getattr(p, "is_flag", True) for opt in p.opts}
        for before, value in zip(["", *args], args, strict=False):
            name, equals, rest = value.partition("=")
            if (value == "" and before in valued) or (name in valued and equals and rest == ""):
                raise RequestError(f"{before or name}: is empty", hint="give a value, or leave the option out")
        if "" in args:
            raise RequestError("an argument is empty", hint="give a value, or leave it out")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run it; errors of the library call parameters by the flags of this command."""
        try:
            return super().invoke(ctx)
        except FastcarError as e:
            flags = {opt for p in self.params for opt in p.opts}
            e.name_of = lambda parameter: flag_of(parameter, flags) or f"`{parameter}`"
            raise
        except KeyboardInterrupt as e:
            from fastcar_cli.cli.render import console, note

            note(console(), "nothing more was done", "stopped")
            raise typer.Exit(status(e)) from None


def given(ctx: typer.Context) -> dict[str, str]:
    """Flags of the options that the user gave, by the name of their parameter."""
    return {
        p.name: p.opts[-1]
        for p in ctx.command.params
        if p.name and (source := ctx.get_parameter_source(p.name)) is not None and source.name == "COMMANDLINE"
    }


def refuse(ctx: typer.Context, parameters: Collection[str], why: str, hint: str) -> None:
    """Refuse what was given of these options, which would be ignored: raises RequestError."""
    for name, flag in given(ctx).items():
        if name in parameters:
            raise RequestError(f"{flag} has no effect {why}", hint=hint)


def refuse_all_but(ctx: typer.Context, parameters: Collection[str], why: str) -> None:
    """Refuse every option that was given beside these and --debug: raises RequestError that says what is allowed."""
    allowed = [p.opts[-1] for p in ctx.command.params if p.name in parameters and p.opts[-1].startswith("-")]
    others = {p.name for p in ctx.command.params if p.name} - {*parameters, "debug"}
    refuse(ctx, others, why, f"allowed: {', '.join(allowed)}")
