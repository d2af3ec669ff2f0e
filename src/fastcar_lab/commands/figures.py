"""Commands that draw figures of the docs: `curves`, `replay-plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastcar_cli.errors import RequestError
from fastcar_lab.commands.options import Debug, Plot


def curves(
    sweeps: Annotated[list[Path], typer.Argument(help="Folders of finished sweeps.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of tables and plot.")],
    debug: Debug = False,
) -> None:
    """Quality over the replay ratio of several sweeps, with spread: tables and a plot."""
    from fastcar_lab.figures.curves import compare

    table, plot = compare(sweeps, output)
    typer.echo(table)
    typer.echo(f"{plot}", err=True)


def replay_plot(
    before: Annotated[Path, typer.Argument(help="What evaluate printed for a model before the replay stage.")],
    after: Annotated[Path, typer.Argument(help="The same after it.")],
    output: Plot,
    debug: Debug = False,
) -> None:
    """Draw what training for replay buys: fidelity and PSNR over the replay ratio."""
    from fastcar_cli.system.plain_data import parse_json
    from fastcar_lab.figures.replay_plot import draw_plot

    documents = []
    for file in (before, after):
        try:
            documents.append(parse_json(file.read_text(encoding="utf-8")))
        except (OSError, ValueError) as e:
            raise RequestError(f"{file}: {e}", hint="fastcar lab evaluate prints such a file") from None
    draw_plot(output, *documents)
