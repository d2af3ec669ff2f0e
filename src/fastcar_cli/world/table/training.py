"""The whole training of `table`, from nothing to a model folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fastcar_cli.errors import RequestError
from fastcar_cli.world.table import train_decoder, train_tokenizer
from fastcar_cli.world.table.recipe import export
from fastcar_cli.world.table.train_decoder import TableSettings
from fastcar_cli.world.table.train_tokenizer import TokenizerSettings


def run(
    output: Path,
    stages: Sequence[str],
    *,
    tokenizer: TokenizerSettings,
    base: TableSettings,
    replay_steps: int,
    deadline: float | None,
    log: Callable[[str], None],
) -> Path | None:
    """Train the stages in folder `output` and return the model folder, if `export` is one of them.

    Raises RequestError where a stage before is missing, OutOfTime at `deadline`.
    """
    file = output / "tokenizer.safetensors"
    if "tokenizer" in stages:
        train_tokenizer.train(output, "codes", tokenizer, deadline=deadline, log=log)
        pixels = replace(tokenizer, steps=-(-tokenizer.steps // 4))
        train_tokenizer.train(output, "pixels", pixels, deadline=deadline, log=log)
    # The decoder reads codes only, and those are final before the tokenizer has learned to draw them well.
    codes = output / "codes.safetensors"
    before = {"base": codes, "replay": output / "base" / "checkpoint.pt"}
    for name, settings in (("base", base), ("replay", replace(base, steps=replay_steps).replay_stage())):
        if name in stages:
            if not before[name].exists():
                raise RequestError(f"--stage {name} needs {before[name]}", hint="run the stage before it first")
            start = before["replay"] if name == "replay" else None
            train_decoder.train(output / name, codes, settings, start=start, deadline=deadline, log=log)
    if "export" not in stages:
        return None
    checkpoint = next(
        (output / s / "checkpoint.pt" for s in ("replay", "base") if (output / s / "checkpoint.pt").exists()), None
    )
    if checkpoint is None or not file.exists():
        raise RequestError(f"--stage export finds no checkpoint in {output}", hint="run the stages before it first")
    export(output / "table", checkpoint, file)
    return output / "table"
