"""`fastcar convert`: quantizes a model into a folder of packed, memory-mapped weights."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fastcar_cli.cli.options import Flags, Json, Quiet, a_model, options
from fastcar_cli.cli.render import Results, console, note, progress, reported
from fastcar_cli.config.keys import MODELS
from fastcar_cli.config.run_config import load_config, surroundings
from fastcar_cli.errors import RequestError
from fastcar_cli.system.limits import cores


@options("runtime.threads")
def convert(
    model: Annotated[str, typer.Argument(help=f"{MODELS[0].upper()}{MODELS[1:]}.", autocompletion=a_model)],
    output: Annotated[Path, typer.Option("-o", "--output", help="New folder for the converted model.")],
    dtype: Literal["int4", "int8", "bfloat16"] = typer.Option("int4", help="Weight format: int4, int8 or bfloat16."),
    depth_dtype: Literal["int8", "int4"] | None = typer.Option(
        None,
        help="Depth transformer's format with --dtype int4. [default: int8 if its width is below 1,024, else int4]",
    ),
    calibrate: Path | None = typer.Option(
        None, metavar="PROMPTS", help="Calibrate the rounding with GPTQ on this file's prompts (at most 32)."
    ),
    *,
    flags: Flags,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Quantize a model and save it in a new folder; rerun to resume."""
    from fastcar_cli.checkpoints.memory_plan import gib
    from fastcar_cli.convert.calibrate import Calibration
    from fastcar_cli.convert.convert import Conversion, Source, check_folder, padded, target_format

    if depth_dtype is not None and dtype != "int4":
        raise RequestError(f"--depth-dtype has no effect with --dtype {dtype}", hint="use --dtype int4")
    if calibrate is not None and dtype == "bfloat16":
        raise RequestError("--calibrate has no effect with --dtype bfloat16", hint="use --dtype int4 or int8")
    calibration = None
    if calibrate is not None:
        from fastcar_cli.inputs.prompt import prompts_in

        calibration = Calibration(tuple(prompts_in(calibrate, f"--calibrate {calibrate}").prompts.values()))
    check_folder(output)
    import torch

    threads = load_config(None, (), flags, surroundings()).runtime.threads
    torch.set_num_threads(threads or min(torch.get_num_threads(), cores()))
    terminal = console(quiet)
    source = Source(model)
    spec = padded(source.spec, dtype)
    if spec != source.spec:
        before, after = source.spec.decoder.mlp_width, spec.decoder.mlp_width
        note(terminal, f"padding MLPs of width {before} with zeros to {after}, a multiple of 32; outputs stay the same")
    form = target_format(source, spec, dtype, depth_dtype)
    if dtype == "int4" and form.depth == "int8" and depth_dtype is None:
        note(terminal, "the narrow depth transformer uses int8; --depth-dtype int4 makes it smaller and less accurate")
    conversion = Conversion(source, output, form, spec, calibration)
    with contextlib.ExitStack() as bars:
        shown: dict[str, Callable[[str, int, int], None]] = {}

        def on_progress(what: str, done: int, total: int) -> None:
            if what not in shown:
                bars.close()  # One display at a time.
                unit = "videos" if what.startswith("sampling") else "bytes"
                shown[what] = reported(bars.enter_context(progress(terminal, unit)))
            shown[what](what, done, total)

        result = conversion.run(on_progress)
    if as_json:
        document: dict[str, Any] = {"folder": str(result.folder), "source": dict(source.identity), "dtype": dtype}
        document |= {"depth_dtype": form.depth or dtype, "source_bytes": result.before, "weights_bytes": result.after}
        document["needed_bytes"] = conversion.needed()
        typer.echo(json.dumps(document | {"shards_kept": result.kept, "seconds": result.seconds}))
        return
    out, there = Results(quiet), f", {result.kept} shards from an earlier run" if result.kept else ""
    sizes = f"{gib(result.after)} of weights in {dtype}, {gib(result.before)} in the original"
    out.print(f"{result.folder}: {sizes} ({result.seconds:.0f} s{there})", soft_wrap=True)
    out.print(f"use it with fastcar generate --model {result.folder}", soft_wrap=True)
