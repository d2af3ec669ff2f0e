"""`fastcar config` and `fastcar presets`: the effective configuration, all keys, and the bundled presets."""

from __future__ import annotations

import json
from typing import Any

import typer

from fastcar_cli.cli.flags import refuse_all_but
from fastcar_cli.cli.options import ConfigFile, Json, Overrides, options
from fastcar_cli.config.presets import fpga_presets, preset_folder
from fastcar_cli.config.presets import presets as configurations
from fastcar_cli.config.run_config import flat, load_sources, settings, surroundings
from fastcar_cli.errors import RequestError


@options()
def config(
    ctx: typer.Context,
    config: ConfigFile = None,
    set_: Overrides = None,
    where: bool = typer.Option(False, "--where", help="List every key with its value and where the value comes from."),
    keys: bool = typer.Option(False, "--keys", help="List all keys with default, allowed values and meaning."),
    as_json: Json = False,
) -> None:
    """Print the settings that a run would use, as YAML.

    Precedence, highest first: options, --set, --config, environment variables such as FASTCAR_REPLAY_TAU, fastcar.yaml
    in the current folder, defaults. `generate --from` ignores environment variables and fastcar.yaml.
    """
    if keys:
        refuse_all_but(ctx, ("keys", "as_json"), "with --keys")
        names = ("key", "default", "allowed", "meaning")
        _print("settings", [{name: getattr(s, name) for name in names} for s in settings().values()], as_json)
        return
    run, sources = load_sources(config, set_ or [], below=surroundings())
    if where:
        defaults = {key: "the model" if s.by_model else "default" for key, s in settings().items()}
        rows = [{"key": k, "value": v, "from": sources.get(k, defaults[k])} for k, v in flat(run.to_dict()).items()]
        _print("settings", rows, as_json, kernels=_kernels())
    elif as_json:
        typer.echo(json.dumps(run.to_dict()))
    elif (form := ctx.params["form"]) != "table":
        raise RequestError(f"--format {form}: the configuration is YAML, not a table", hint="add --where or --keys")
    else:
        typer.echo(run.to_yaml(), nl=False)


@options()
def presets(as_json: Json = False) -> None:
    """List the bundled configurations and accelerators."""
    from fastcar_fpga import load_preset

    rows = []
    for name in configurations():
        comment = (preset_folder() / f"{name}.yaml").read_text("utf-8").partition("\n")[0]
        rows.append({"option": "--config", "name": name, "about": comment.lstrip("# ").removesuffix(".")})
    rows += [{"option": "--fpga", "name": name, "about": load_preset(name).title} for name in fpga_presets()]
    _print("presets", rows, as_json)


def _kernels() -> dict[str, Any]:
    """Kernels on this machine's CPU: executor, instruction set, supported sets; if none run, the reason `why`."""
    from fastcar_cli.kernels import native

    why, used = native.unavailable(), None
    executor: str | None = "torch"
    if why is None:
        try:
            used, executor = native.instruction_set(), "native"
        except RequestError as e:  # other commands raise for an unsupported set
            why, executor = str(e), None
    return {
        "executor": executor,
        "instruction_set": used,
        "instruction_sets": native.instruction_sets(),
        "why": why,
    }


def _print(what: str, rows: list[dict[str, Any]], as_json: bool, *, kernels: dict[str, Any] | None = None) -> None:
    """Print a table with a column per key of the rows, and `kernels` on standard error."""
    if as_json:
        typer.echo(json.dumps({what: rows, **({} if kernels is None else {"kernels": kernels})}))
        return
    from fastcar_cli.cli.render import Results, columns

    shown = columns("", *rows[0], left=len(rows[0]))
    for row in rows:
        shown.add_row(*("-" if cell is None else str(cell) for cell in row.values()))
    Results().print(shown)
    if kernels is not None:
        used, others = kernels["instruction_set"], ", ".join(kernels["instruction_sets"])
        instead = "plain torch" if kernels["executor"] else "refused"
        said = f"{instead}: {kernels['why']}" if used is None else f"native kernels ({used}); supported: {others}"
        typer.echo(f"on a CPU: {said}", err=True)
