"""Options that set keys of the configuration, made from its fields, and those that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

from fastcar_cli.cli.complete import Complete, accelerators, assignments, configurations, models, words
from fastcar_cli.config.run_config import Setting, settings

ConfigFile = Annotated[
    str | None,
    typer.Option("--config", help="Preset name or YAML file.", autocompletion=words(configurations)),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override one key: section.key=value.",
        autocompletion=words(assignments),
    ),
]
Accelerator = Annotated[
    str | None,
    typer.Option(
        help="Accelerator: a preset or a YAML file. [default: edge-small, or paper-u280 for larger weights]",
        autocompletion=words(accelerators),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]
Format = Annotated[
    str,
    typer.Option(
        "--format",
        help="How results are printed: table, json, csv or md.",
        autocompletion=words(("table", "json", "csv", "md")),
    ),
]
"""Of a parameter `form`; `Command` sees to it."""
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but errors.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Shard = Annotated[str | None, typer.Option(help="Do part k/n of the work only, such as 3/8.")]
EngineName = Annotated[
    str,
    typer.Option(help="local, or ray: the same work on a Ray cluster.", autocompletion=words(("local", "ray"))),
]
Address = Annotated[str | None, typer.Option(help="Address of a running Ray cluster. [default: Ray starts here]")]
Workers = Annotated[int | None, typer.Option(help="Workers on Ray at once. [default: as many as fit]", min=1)]

Flags = dict[str, Any]
"""Values of the options that were given, by the key of the configuration that each sets."""


def sentence(setting: Setting) -> str:
    """What a setting means and its default, as a help text."""
    return f"{setting.help[0].upper()}{setting.help[1:]}. [default: {setting.default}]"


def _values(setting: Setting) -> Complete | None:
    """What a shell completes for a setting."""
    named: dict[str, Callable[[], list[str]]] = {"model": models, "backend.preset": accelerators}
    if setting.key in named:
        return words(named[setting.key])
    return words(setting.values) if setting.values else None


def _option_of(setting: Setting, hidden: bool) -> Any:
    """The annotation of a parameter."""
    kind: Any = setting.kind | None
    return Annotated[
        kind, typer.Option(setting.flag, help=sentence(setting), autocompletion=_values(setting), hidden=hidden)
    ]


def options(*keys: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of these keys; by default for all that have a flag, of which help shows the
    common ones.

    They are where the command has its parameter `flags`, which gets the values given.
    """
    chosen = [settings()[key] for key in keys] or [s for s in settings().values() if s.flag is not None]
    named = {
        str(s.flag).strip("-").replace("-", "_"): (s.key, _option_of(s, hidden=not (keys or s.common))) for s in chosen
    }

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name != "flags":
                parameters.append(parameter.replace(annotation=hints[parameter.name]))
                continue
            for name, (_, annotation) in named.items():
                parameters.append(inspect.Parameter(name, parameter.kind, default=None, annotation=annotation))

        @wraps(command)
        def call(**given: Any) -> None:
            values = {name: given.pop(name) for name in named}
            command(flags={named[n][0]: value for n, value in values.items() if value is not None}, **given)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {p.name: p.annotation for p in parameters}
        return call

    return decorate
