"""Options that commands of the laboratory share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Plot = Annotated[Path, typer.Option("-o", "--output", help="File for the plot.")]
Seed = Annotated[int, typer.Option(help="Seed of the random choices.", min=0)]
