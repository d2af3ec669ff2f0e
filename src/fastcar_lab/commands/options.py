"""Options that commands of the laboratory share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one key: section.key=value.")
]
Plot = Annotated[Path, typer.Option("-o", "--output", help="File of the plot.")]
Seed = Annotated[int, typer.Option(help="Seed of what is drawn.", min=0)]
