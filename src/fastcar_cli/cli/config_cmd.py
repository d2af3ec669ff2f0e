"""`fastcar config`: the effective configuration, or what every key means."""

from __future__ import annotations

from typing import Annotated

import typer

from fastcar_cli.cli.flags import refuse_all_but
from fastcar_cli.cli.options import ConfigFile, Debug, Overrides
from fastcar_cli.config import load_config, settings


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
        for key, setting in settings().items():
            typer.echo(f"{key:<30} {setting.help}")
        return
    typer.echo(load_config(config, set_ or []).to_yaml(), nl=False)
