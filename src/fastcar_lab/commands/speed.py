"""`fastcar lab speed`: the table of the README."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fastcar_cli.cli.options import Debug


def speed(
    ctx: typer.Context,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="JSON file; the tables go into a .md file of this name.")
    ],
    turns: Annotated[int, typer.Option(help="Number of timed turns, and of seeds for the videos.", min=1)] = 5,
    models: Annotated[str, typer.Option(help="Bundled models to time, such as mini,table.")] = "mini,table,table-dense",
    threads: Annotated[int, typer.Option(help="CPU threads.", min=1)] = 2,
    llama_cpp: Annotated[bool, typer.Option("--llama-cpp", help="Also time llama.cpp.")] = False,
    ik_llama_cpp: Annotated[bool, typer.Option("--ik-llama-cpp", help="Also time ik_llama.cpp.")] = False,
    openvino: Annotated[bool, typer.Option("--openvino", help="Also time OpenVINO; only with --passes.")] = False,
    passes: Annotated[
        bool,
        typer.Option("--passes", help="Time passes of 1 to 32 tokens instead, only with this machine's best kernels."),
    ] = False,
    debug: Debug = False,
) -> None:
    """Measure the README's speed tables: time passes and videos with the best kernels and with AVX2."""
    import json
    from functools import partial

    import torch

    from fastcar_cli.cli.flags import one_of, refuse
    from fastcar_cli.system.files import write_whole
    from fastcar_lab.bench import passes as rows
    from fastcar_lab.bench.measure import chosen
    from fastcar_lab.bench.summary import PROMPTS, run, table

    if passes:
        refuse(ctx, ("models",), "with --passes", "leave it out")
    else:
        refuse(ctx, ("openvino",), "without --passes", "no option holds OpenVINO to AVX2")
    names = models.split(",")
    for name in names:
        one_of("--models", name, tuple(PROMPTS))
    rivals = chosen(llama_cpp, ik_llama_cpp, openvino)
    torch.set_num_threads(threads)
    report = partial(typer.echo, err=True)
    result = rows.run(rivals, turns, report) if passes else run(rivals, turns, names, report)
    document = json.dumps(result, indent=1) + "\n"
    write_whole(output, document)
    text = (rows.table if passes else table)(json.loads(document))
    write_whole(output.with_suffix(".md"), text)
    typer.echo(text)
