"""`fastcar train`: make the bundled model from nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fastcar_cli.errors import RequestError

STAGES = ("tokenizer", "base", "replay", "export")


def train(
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of checkpoints, logs and the model.")],
    stage: Annotated[
        list[str] | None,
        typer.Option(help="tokenizer, base, replay or export; repeat it. Default: all, in this order."),
    ] = None,
    tokenizer_minutes: Annotated[float, typer.Option(help="Wall time for the tokenizer.", min=0.01)] = 15.0,
    base_minutes: Annotated[float, typer.Option(help="Wall time for the base stage.", min=0.01)] = 70.0,
    replay_minutes: Annotated[float, typer.Option(help="Wall time for the replay stage.", min=0.01)] = 110.0,
    batch: Annotated[int, typer.Option(help="Videos a step.", min=1)] = 4,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.", min=0)] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    compile_: Annotated[
        bool, typer.Option("--compile", help="Fuse the training pass with torch.compile; needs a C++ compiler.")
    ] = False,
    threads: Annotated[int | None, typer.Option(help="CPU threads.", min=1)] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train the bundled model from nothing; started again, it goes on from its last checkpoint."""
    chosen = stage or list(STAGES)
    for name in chosen:
        if name not in STAGES:
            raise RequestError(f"--stage {name}: unknown", hint=f"allowed: {', '.join(STAGES)}")
    import torch

    from fastcar_cli.world import train_decoder, train_tokenizer
    from fastcar_cli.world.export import export

    if device not in ("cpu", "cuda"):
        raise RequestError(f"--device {device}: unknown", hint="allowed: cpu, cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise RequestError(f"--device {device}: no CUDA device here", hint="allowed: cpu")
    if threads is not None:
        torch.set_num_threads(threads)
    if not hasattr(torch.optim, "Muon"):
        raise RequestError(f"training needs torch 2.9 or newer for its optimiser, this is {torch.__version__}")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise RequestError(f"-o {output}: the folder can't be made: {e.strerror}") from None
    (output / "run.json").write_text(
        json.dumps({"torch": torch.__version__, "seed": seed, "batch": batch, "device": device}) + "\n",
        encoding="utf-8",
    )
    tokenizer_file = output / "tokenizer.safetensors"

    def log(line: str) -> None:
        typer.echo(line, err=True)

    if "tokenizer" in chosen and not tokenizer_file.exists():
        minutes = tokenizer_minutes * 60
        train_tokenizer.train(tokenizer_file, seconds=(0.3 * minutes, 0.7 * minutes), seed=seed, log=log)
    needed = {"base": tokenizer_file, "replay": output / "base" / "checkpoint.pt"}
    for name, minutes in (("base", base_minutes), ("replay", replay_minutes)):
        if name not in chosen:
            continue
        if not needed[name].exists():
            raise RequestError(f"--stage {name} needs {needed[name]}", hint="run the stage before it first")
        settings = train_decoder.stage_settings(
            name, seconds=minutes * 60, batch=batch, seed=seed, device=device, compile=compile_
        )
        start = needed["replay"] if name == "replay" else None
        train_decoder.train(output / name, tokenizer_file, settings, start=start, log=log)
    if "export" in chosen:
        checkpoint = next(
            (output / s / "checkpoint.pt" for s in ("replay", "base") if (output / s / "checkpoint.pt").exists()), None
        )
        if checkpoint is None or not tokenizer_file.exists():
            raise RequestError(f"--stage export finds no checkpoint in {output}", hint="run the stages before it first")
        export(output / "mini", checkpoint, tokenizer_file)
        typer.echo(f"{output / 'mini'}: use it with fastcar generate --model {output / 'mini'}", err=True)
