"""`fastcar presets`: configurations and accelerators that come with the package."""

from __future__ import annotations

import json

import typer

from fastcar_cli.cli.options import Debug, Format, Json


def presets(as_json: Json = False, form: Format = "table", debug: Debug = False) -> None:
    """List the configurations and accelerators that come with the package."""
    from fastcar_cli.config.presets import fpga_presets, preset_folder
    from fastcar_cli.config.presets import presets as configurations
    from fastcar_fpga import load_preset

    folder = preset_folder()
    rows = [("--config", name, _comment((folder / f"{name}.yaml").read_text("utf-8"))) for name in configurations()]
    rows += [("--fpga", name, load_preset(name).title) for name in fpga_presets()]
    if as_json:
        typer.echo(json.dumps({"presets": [dict(zip(("option", "name", "about"), row, strict=True)) for row in rows]}))
        return
    from fastcar_cli.cli.render import Results, columns

    shown = columns("", "option", "name", "about", left=3)
    for row in rows:
        shown.add_row(*row)
    Results().print(shown)


def _comment(text: str) -> str:
    """The first line of a file, which says what it is."""
    return text.partition("\n")[0].lstrip("# ").removesuffix(".")
