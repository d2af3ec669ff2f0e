"""`fastcar profile`: where decode time goes, and what replay can buy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import typer

from fastcar_cli.cli.flags import check_file, refuse
from fastcar_cli.cli.options import Accelerator, Flags, Json, options
from fastcar_cli.config import choices
from fastcar_cli.config.run_config import RunConfig, load_config, surroundings
from fastcar_cli.errors import RequestError
from fastcar_cli.system.files import read_text, write_whole


@options("model", "runtime.device", "runtime.threads", "runtime.executor")
def profile(
    ctx: typer.Context,
    seq: str | None = typer.Option(None, help="Context lengths, such as 2k,8192. [default: 2k,4k,8k]"),
    rows: int | None = typer.Option(None, help="Rows; a guided video is two. [default: one video's]", min=1, max=256),
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = typer.Option(
        "auto", help="auto, float32, bfloat16 or float16."
    ),
    *,
    flags: Flags,
    repeats: int = typer.Option(5, help="Timed steps a length and kind.", min=1, max=10**6),
    replay_ratio: float = typer.Option(0.8, help="Replay that drafts are held against.", min=0, max=1),
    backend: choices.Backend = typer.Option("torch", help="torch, or fpga-sim: cycles of the emulated accelerator."),
    fpga: Accelerator = None,
    decode: str | None = typer.Option(None, metavar="PROMPT", help="Profile a real run of this prompt."),
    tau: str = typer.Option("-2", help="Threshold of --decode."),
    seed: int = typer.Option(0, help="Seed of --decode.", min=0, max=2**63 - 1),
    save: Path | None = typer.Option(None, help="File to keep the result in (JSON)."),
    compare: Path | None = typer.Option(None, help="Earlier result to print ratios against."),
    as_json: Json = False,
) -> None:
    """Measure one decode step by context length, or a real run with --decode.

    A published model such as vila-u-7b stands for its shapes, with random weights and without a download.
    """
    from fastcar_cli.checkpoints.open import spec_of
    from fastcar_cli.profile.profile_report import emulated_lengths, ratios
    from fastcar_cli.profile.profiler import parse_lengths

    run = load_config(None, (), flags, surroundings())
    model = run.model
    _refuse(ctx, backend, decode, seq, model)
    spec = spec_of(model)
    # A model whose prompt is frames is measured at all the positions that it has.
    usual = "2k,4k,8k" if spec.layout.prefix is None else str(spec.decoder.max_positions)
    lengths = [] if decode is not None and seq is None else parse_lengths(seq or usual)
    earlier = _read(compare) if compare is not None else None
    check_file("--save", save)
    if backend == "fpga-sim":
        document = emulated_lengths(spec, model, lengths, rows or (2 if spec.layout.guided else 1), fpga)
    else:
        measured = run.changed({"runtime.dtype": dtype})
        document = _measured(measured, lengths, rows, repeats, replay_ratio)
    if decode is not None:
        document["decode"] = _decoded(model, decode, tau, seed, run.runtime.device, dtype)
    if save is not None:
        write_whole(save, json.dumps(document, indent=1) + "\n")
    if earlier is not None:
        document["compared"] = ratios(document, earlier)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        from fastcar_cli.cli.profile_render import show

        show(document)


def _refuse(ctx: typer.Context, backend: str, decode: str | None, seq: str | None, model: str) -> None:
    """Refuse options without effect. Raises RequestError."""
    from fastcar_cli.checkpoints.architectures import published

    if decode is None:
        refuse(ctx, ("tau", "seed"), "without a run", "it needs --decode PROMPT")
    elif seq is None:
        measured = ("rows", "repeats", "replay_ratio", "compare")
        refuse(ctx, measured, "with --decode alone", "it needs --seq, which measures steps beside the run")
    if backend == "torch":
        refuse(ctx, ("fpga",), "with the backend torch", "it needs --backend fpga-sim")
    else:
        of_torch = ("dtype", "device", "threads", "executor", "repeats", "replay_ratio", "decode")
        refuse(ctx, of_torch, "with an emulated accelerator", "leave it out, or leave out --backend fpga-sim")
    if decode is not None and published(model) is not None:
        raise RequestError(
            f"--decode needs weights; --model {model} stands for shapes here", hint="--model mini or a folder"
        )


def _measured(run: RunConfig, lengths: list[int], rows: int | None, repeats: int, ratio: float) -> dict[str, Any]:
    from fastcar_cli.cli.render import console, progress
    from fastcar_cli.profile.profile_report import profile_steps

    if not lengths:
        return profile_steps(run, lengths, rows, repeats, ratio, lambda: None)
    with progress(console(), "lengths") as bar:
        task = bar.add_task("measuring", total=len(lengths))
        return profile_steps(run, lengths, rows, repeats, ratio, lambda: bar.advance(task))


def _decoded(model: str, prompt: str, tau: str, seed: int, device: str, dtype: str) -> dict[str, Any]:
    from fastcar_cli.pipeline.pipeline import VideoPipeline
    from fastcar_cli.profile.profile_report import profile_decode

    flags = {"model": model, "replay.tau": tau, "draft.kind": "off", "runtime.device": device, "runtime.dtype": dtype}
    pipe = VideoPipeline.from_config(load_config(None, (), flags))
    pipe.notices([prompt])
    return profile_decode(pipe, prompt, seed)


def _read(file: Path) -> dict[str, Any]:
    from fastcar_cli.system.plain_data import parse_json

    text = read_text(file, f"--compare {file}")
    try:
        data = parse_json(text, finite=True)
        for length in data["lengths"]:
            seq, step, modules = int(length["seq"]), float(length["step_ms"]), length["modules"].values()
            if seq < 1 or step <= 0 or min((float(m["ms"]) for m in modules), default=0) < 0:
                raise ValueError(f"times of seq {seq} are no times")
        return data
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise RequestError(f"--compare {file} is not a saved profile: {type(e).__name__} {e}") from None
