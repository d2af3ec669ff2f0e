"""`fastcar config`: the effective configuration."""

from __future__ import annotations

from typing import Annotated

import typer

from fastcar_cli.cli.flags import refuse_all_but


def config(
    ctx: typer.Context,
    config: Annotated[str | None, typer.Option("--config", help="Preset name or YAML file.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="Override one key: section.key=value.")] = None,
    keys: Annotated[bool, typer.Option("--keys", help="List every key with what it means instead.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Print the effective configuration as YAML."""
    from fastcar_cli.config import allowed_keys, load_config

    if keys:
        refuse_all_but(ctx, ("keys",), "with --keys")
        for key, meaning in allowed_keys().items():
            typer.echo(f"{key:<30} {meaning}")
        return
    typer.echo(load_config(config, set_ or []).to_yaml(), nl=False)
