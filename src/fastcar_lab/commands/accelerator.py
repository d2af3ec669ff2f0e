"""Commands about the emulated accelerator: `accelerators`, `broadcast`, `fit-table`, `readings`, `rtl-decoded`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastcar_cli.cli.options import Debug


def broadcast(
    presets: Annotated[
        list[str] | None, typer.Argument(help="Presets or YAML files. [default: those with more than one core]")
    ] = None,
    debug: Debug = False,
) -> None:
    """Compare emulated cores that share one stream of weights with cores that each read their own stream."""
    from fastcar_lab.accelerator.broadcast import tables

    for line in tables(presets or ()):
        typer.echo(line)


def fit_table(debug: Debug = False) -> None:
    """Fit the two free constants of the preset paper-u280 to the latencies in the FastCar paper."""
    from fastcar_fpga.preset import load_preset
    from fastcar_lab.accelerator.published import fit

    utilisation, per_step = fit(load_preset("paper-u280"))
    typer.echo(f"core.utilisation {utilisation:.4f}, rest.seconds_per_step {per_step:.5f}")


def accelerators(
    folder: Annotated[Path, typer.Argument(help="Folder for accelerators.md and accelerators.csv.")],
    debug: Debug = False,
) -> None:
    """Predict the speed of published accelerators from their data sheets, and write accelerators.md."""
    from fastcar_lab.accelerator.points import write

    for file in write(folder):
        typer.echo(file)


def readings(
    limit: Annotated[float, typer.Option(help="Largest relative error in a listed fit.", min=0, max=1)] = 0.015,
    debug: Debug = False,
) -> None:
    """List the numbers of cores and batch rows that best explain the latencies in the FastCar paper."""
    from fastcar_lab.accelerator.readings import lines

    for line in lines(limit):
        typer.echo(line)


def rtl_decoded(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the SystemVerilog; written if new.")],
    model: Annotated[str, typer.Option(help="Model to decode with.")] = "mini",
    preset: Annotated[str, typer.Option(help="Accelerator preset with the format int8-exact.")] = "edge-int8",
    every: Annotated[int, typer.Option(help="Compare every n-th pass.", min=1)] = 16,
    seed: Annotated[int, typer.Option(help="Seed of the random codes.", min=0)] = 0,
    debug: Debug = False,
) -> None:
    """Run the MLPs of a decode in SystemVerilog, and check that all numbers equal those of the decode."""
    from fastcar_fpga.preset import load_preset
    from fastcar_lab.accelerator.decoded import hold

    counts, layers, no_layers = hold(folder, model, load_preset(preset), every, seed)
    if no_layers:
        typer.echo(f"layers were not run: {no_layers}", err=True)
    typer.echo(f"{counts.pop('MLPs')} MLPs: " + ", ".join(f"{n:,} {what}" for what, n in counts.items()) + " are equal")
    if layers:
        typer.echo(layers)
