"""`fastcar lab speed`: the table of the README."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastcar_lab.commands.options import Debug


def speed(
    output: Annotated[Path, typer.Option("-o", "--output", help="JSON; the table has its name with .md.")],
    turns: Annotated[int, typer.Option(help="Turns, and seeds of the videos.", min=1)] = 5,
    models: Annotated[str, typer.Option(help="Bundled models, comma-separated.")] = "mini,table,table-dense",
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 2,
    llama_cpp: Annotated[bool, typer.Option("--llama-cpp", help="Also llama.cpp.")] = False,
    ik_llama_cpp: Annotated[bool, typer.Option("--ik-llama-cpp", help="Also ik_llama.cpp.")] = False,
    debug: Debug = False,
) -> None:
    """The README's speed table in one run: passes, rivals and whole videos with the kernels of each instruction set."""
    import json

    import torch

    from fastcar_cli.cli.flags import one_of
    from fastcar_cli.files import write_whole
    from fastcar_lab.bench.llama_cpp import RIVALS
    from fastcar_lab.bench.summary import PROMPTS, run, table

    names = models.split(",")
    for name in names:
        one_of("--models", name, tuple(PROMPTS))
    rivals = tuple(rival for rival, wanted in zip(RIVALS.values(), (llama_cpp, ik_llama_cpp), strict=True) if wanted)
    for rival in rivals:
        # Missing packages show before anything is timed.
        _ = rival.version
    torch.set_num_threads(threads)
    result = run(rivals, turns, names, lambda part: typer.echo(part, err=True))
    document = json.dumps(result, indent=1) + "\n"
    write_whole(output, document)
    text = table(json.loads(document))
    write_whole(output.with_suffix(".md"), text)
    typer.echo(text)
