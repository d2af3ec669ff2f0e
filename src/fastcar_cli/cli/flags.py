"""What all commands share: options that would be ignored are refused, and errors speak of flags."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from fastcar_cli.errors import FastcarError, RequestError
from fastcar_cli.files import read_text
from fastcar_cli.signals import status

MODELS = (
    "mini, table, table-dense, mini-actions, a name of the hub (vila-u-7b, ivideogpt-...; NAME@REVISION), "
    "or a model folder."
)
"""What --model may be, for help texts."""

FLAGS = {
    "replay.ratio": ("--replay-ratio",),
    "ratio": ("--replay-ratio", "--replay"),
    "replay.max_age": ("--max-replay-age",),
    "max_age": ("--max-replay-age",),
    "backend.name": ("--backend",),
    "backend.preset": ("--fpga",),
    "overrides": ("--set",),
}
"""Flags that are not called like the last part of their parameter; the first one that a command has is meant."""


def flag_of(parameter: str, flags: Collection[str]) -> str | None:
    """The flag of a command with these flags for a parameter of the library; `--set KEY` where it has none."""
    last = parameter.split(".")[-1].replace("_", "-")
    for flag in FLAGS.get(parameter, (f"--{last}", f"-{last}")):
        if flag in flags:
            return flag
    from fastcar_cli.config import allowed_keys

    keys = [key for key in allowed_keys() if key == parameter or key.endswith(f".{parameter}")]
    return f"--set {keys[0]}" if len(keys) == 1 and "--set" in flags else None


def configured(ctx: typer.Context) -> dict[str, Any]:
    """What was given of the options that are called like keys of the configuration, by dotted key."""
    from fastcar_cli.config import allowed_keys

    names = {flag: p.name for p in ctx.command.params if p.name for flag in p.opts}
    values = {key: ctx.params.get(names.get(flag_of(key, names) or "", "")) for key in allowed_keys()}
    values["runtime.executor"] = values["runtime.executor"] or ctx.params.get("kernels")
    return {key: value for key, value in values.items() if value is not None}


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
    found = [line.strip() for line in lines if line.strip()]
    if not found:
        raise RequestError(f"{option} {file}: holds no prompt", hint="one prompt a line")
    return found


class Command(TyperCommand):
    """A command that refuses empty values, names flags in the library's errors, and ends as it was stopped."""

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


class Group(TyperGroup):
    """`fastcar NAME [options]` is the first command itself; only a first word that names another is one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the first command before what names none."""
        if not args or args[0] not in self.commands:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command, without its name where that is the group's own."""
        name, command, rest = super().resolve_command(ctx, args)
        return ("" if name == next(iter(self.commands)) else name), command, rest


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
