"""`fastcar train`: make the bundled model from nothing."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from fastcar_cli.cli.flags import Command, one_of
from fastcar_cli.cli.options import Debug
from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import locked
from fastcar_lab import worlds

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")

STAGES = ("tokenizer", "base", "replay", "export")


@app.command("train", cls=Command)
def train(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of checkpoints, logs and the model.")],
    stage: Annotated[
        list[str] | None,
        typer.Option(help="Stage: tokenizer, base, replay or export; repeat for more. [default: all, in this order]"),
    ] = None,
    world: Annotated[str, typer.Option(help="Model to train: mini, table or table-actions.")] = "mini",
    tokenizer: Annotated[
        Path | None, typer.Option(help="Use this tokenizer.safetensors instead of training one.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Start from the tokenizer and weights of this model: a bundled name or a folder.")
    ] = None,
    tokenizer_steps: Annotated[
        int | None,
        typer.Option(help="Steps of stage tokenizer. [default: 12000; table: 2 x 7000; table-actions: 6400]", min=1),
    ] = None,
    base_steps: Annotated[
        int | None, typer.Option(help="Steps of stage base. [default: 6000; table: 10600; table-actions: 4000]", min=1)
    ] = None,
    replay_steps: Annotated[
        int | None, typer.Option(help="Steps of stage replay. [default: 8500; table: 2600; table-actions: 3000]", min=1)
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Save a checkpoint and stop after this many minutes; rerun to resume.", min=0.0)
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Videos per step. [default: 4; table: 16 short clips; table-actions: 32]", min=1)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.", min=0, max=2**63 - 1)] = 0,
    device: Annotated[str, typer.Option(help="Device: cpu or cuda.")] = "cpu",
    dtype: Annotated[
        str, typer.Option(help="Number format: bfloat16, or float32 (faster on processors without bfloat16 units).")
    ] = "bfloat16",
    rate: Annotated[float, typer.Option(help="Learning-rate factor; use about 0.3 with --model.", min=0.001)] = 1.0,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile training steps with torch.compile; needs a C++ compiler.")
    ] = False,
    workers: Annotated[
        int, typer.Option(help="Processes that prepare table's batches; no effect on results.", min=0, max=1024)
    ] = 0,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1, max=1024)] = None,
    debug: Debug = False,
) -> None:
    """Train a bundled model from scratch; rerun to resume from the last checkpoint."""
    one_of("--world", world, worlds.names())
    given = [flag for flag, value in (("--tokenizer", tokenizer), ("--model", model)) if value is not None]
    chosen = stage or [name for name in STAGES if not given or name != "tokenizer"]
    for name in chosen:
        one_of("--stage", name, STAGES)
    sources = [*given, *(["--stage tokenizer"] if "tokenizer" in chosen else [])]
    if len(sources) > 1:
        raise RequestError(f"{sources[0]} replaces {sources[1]}", hint="leave one of them out")
    import torch

    from fastcar_lab.training import stages
    from fastcar_lab.training.loop import OutOfTime, Watch

    one_of("--device", device, ("cpu", "cuda"))
    one_of("--dtype", dtype, ("bfloat16", "float32"))
    if device == "cuda" and not torch.cuda.is_available():
        raise RequestError(f"--device {device}: no CUDA device here", allowed="cpu")
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RequestError(f"-o {output}: the folder can't be made: {e.strerror}") from None
    deadline = None if minutes is None else time.monotonic() + 60 * minutes

    def log(line: str) -> None:
        typer.echo(line, err=True)

    chosen_world = worlds.world(world)
    training = chosen_world.training
    tokens, first, second = (
        given or own for given, own in zip((tokenizer_steps, base_steps, replay_steps), training.steps, strict=True)
    )
    base = training.settings(first, seed=seed, device=device, bfloat16=dtype == "bfloat16", compile=compile_, rate=rate)
    base = replace(base, workers=workers)
    base = base if batch is None else replace(base, batch=batch)
    busy = RequestError(f"-o {output}: another run trains there", hint="wait until it ends, or choose another folder")
    try:
        with locked(output / ".lock", busy):
            folder = stages.run(
                world,
                chosen_world.spec,
                training,
                output,
                chosen,
                tokenizer=tokenizer,
                model=model,
                tokenizer_steps=tokens,
                base=base,
                replay_steps=second,
                watch=Watch(log, deadline),
            )
    except OutOfTime as e:
        log(f"{e}: the same command resumes")
        return
    if folder is not None:
        log(f"{folder}: use it with fastcar generate --model {folder}")
