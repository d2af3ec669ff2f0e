"""`fastcar lab gpu-check`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fastcar_cli.cli.options import Debug


def gpu_check(
    output: Annotated[
        Path, typer.Option("-o", "--output", help="JSON file; a Markdown page of this name is beside it.")
    ] = Path("gpu-check.json"),
    device: Annotated[
        str, typer.Option(help="Device: cuda, cuda:N, or cpu (interprets the kernels on a tiny model).")
    ] = "cuda",
    seconds: Annotated[float, typer.Option(help="Start no part after this many seconds.")] = 480.0,
    only: Annotated[str, typer.Option(help="Run only parts whose name matches this pattern.")] = "",
    debug: Debug = False,
) -> None:
    """Test and time decoding on a GPU in one run, and write the results as JSON and as a Markdown page."""
    toy = device == "cpu"
    if toy:
        # Triton reads it when it is imported.
        os.environ["TRITON_INTERPRET"] = "1"
    import json

    from fastcar_cli.checkpoints.architectures import published
    from fastcar_cli.checkpoints.names import BUNDLED, FROM_TEXT
    from fastcar_cli.checkpoints.open import open_model
    from fastcar_cli.errors import RequestError
    from fastcar_cli.kernels.gpu import installed
    from fastcar_cli.pipeline.resolve import resolve_device
    from fastcar_cli.system.files import write_whole
    from fastcar_lab.bench.gpu import TOY, Plan, check
    from fastcar_lab.bench.gpu_page import page

    place = resolve_device(device)
    if not installed():
        raise RequestError("the GPU's kernels need triton", hint="run pip install triton")
    if toy:
        plan = Plan(
            device=place, models=[], dtypes=["float32"], shapes={"toy": TOY}, layers=2, context=20, windows=[1, 2],
            video=8, repeats=1, tests=False, tokens=2, only=only,
        )  # fmt: skip
    else:
        names = "vila-u-7b", "cosmos-predict1-4b"
        shapes = {name: (published(name) or open_model(name)).spec for name in names}
        plan = Plan(
            device=place, models=BUNDLED, dtypes=["float32", "bfloat16", "int8", "int4"], shapes=shapes, layers=4,
            context=1084, windows=[1, 2, 8, 16], video=1024, repeats=5, tests=True,
            workers=max(1, min(12, (os.cpu_count() or 1) - 2)), seconds=seconds, only=only,
            drafted={name: _captions(name) for name in FROM_TEXT},
        )  # fmt: skip

    def write(name: str, result: dict[str, Any]) -> None:
        """Keep what is known, so that a run that is cut off has not been for nothing."""
        typer.echo(name, err=True)
        write_whole(output, json.dumps(result, indent=1) + "\n")
        write_whole(output.with_suffix(".md"), page(result))

    result = check(plan, write)
    typer.echo(page(result))
    if any(outcome["ok"] is False for outcome in result["parts"].values()):
        raise typer.Exit(1)


def _captions(model: str) -> Sequence[str]:
    """Three that training of a bundled model left out."""
    from fastcar_lab.claims.prompts import prompts_for
    from fastcar_lab.common import pipeline_of

    return prompts_for(pipeline_of(model), 3)
