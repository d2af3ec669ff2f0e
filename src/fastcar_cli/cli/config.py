"""`fastcar config`: the effective configuration, where it comes from, or what every key means."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from fastcar_cli.cli.flags import refuse_all_but
from fastcar_cli.cli.options import ConfigFile, Debug, Format, Json, Overrides
from fastcar_cli.config.run_config import flat, load_sources, settings, surroundings
from fastcar_cli.errors import RequestError


def config(
    ctx: typer.Context,
    config: ConfigFile = None,
    set_: Overrides = None,
    where: Annotated[
        bool, typer.Option("--where", help="List every key with its value and where that is from.")
    ] = False,
    keys: Annotated[bool, typer.Option("--keys", help="List keys, defaults, allowed values and meanings.")] = False,
    as_json: Json = False,
    form: Format = "table",
    debug: Debug = False,
) -> None:
    """Print the effective configuration as YAML.

    Options win over --set, that over --config, that over variables such as FASTCAR_REPLAY_TAU, these over fastcar.yaml
    in the current folder, and that over the defaults. `generate --from` takes a recipe instead of the last three.
    """
    if keys:
        refuse_all_but(ctx, ("keys", "as_json"), "with --keys")
        rows = [
            {"key": s.key, "default": s.default, "allowed": s.allowed, "meaning": s.meaning}
            for s in settings().values()
        ]
        _print(rows, as_json)
        return
    run, sources = load_sources(config, set_ or [], below=surroundings())
    if where:
        defaults = {key: "the model" if s.by_model else "default" for key, s in settings().items()}
        values = flat(run.to_dict())
        _print([{"key": key, "value": values[key], "from": sources.get(key, defaults[key])} for key in values], as_json)
    elif as_json:
        typer.echo(json.dumps(run.to_dict()))
    elif form != "table":
        raise RequestError(f"--format {form}: the configuration is not a table", hint="--where or --keys prints one")
    else:
        typer.echo(run.to_yaml(), nl=False)


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    """Rows of texts, as a table whose columns are their keys."""
    if as_json:
        typer.echo(json.dumps({"settings": rows}))
        return
    from fastcar_cli.cli.render import Results, columns

    shown = columns("", *rows[0], left=len(rows[0]))
    for row in rows:
        shown.add_row(*("-" if cell is None else str(cell) for cell in row.values()))
    Results().print(shown)
