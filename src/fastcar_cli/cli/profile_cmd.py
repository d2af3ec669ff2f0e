"""`fastcar profile`: where decode time goes, and what replay can buy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastcar_cli.cli.flags import check_file, check_made, one_of, refuse
from fastcar_cli.errors import RequestError
from fastcar_cli.extras import pyplot
from fastcar_cli.files import read_text, write_whole
from fastcar_cli.models.plain_data import parse_json

if TYPE_CHECKING:
    from fastcar_cli.analysis.profiler import Shape


def profile(
    ctx: typer.Context,
    seq: Annotated[
        str | None, typer.Option(help="Context lengths with commas between them, such as 2k,4k,8192.")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="mini, a published name such as vila-u-7b (its shapes with random weights, no download), or a folder."
        ),
    ] = "mini",
    rows: Annotated[int | None, typer.Option(help="Rows of the batch; a guided video is two.", min=1, max=256)] = None,
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads; default all.", min=1, max=1024)] = None,
    repeats: Annotated[int, typer.Option(help="Timed steps a length and kind.", min=1, max=10**6)] = 5,
    backend: Annotated[str, typer.Option(help="torch, or fpga-sim: cycles of the emulated accelerator.")] = "torch",
    fpga: Annotated[str, typer.Option(help="Accelerator of fpga-sim: a preset or a YAML file.")] = "paper-u280",
    decode: Annotated[str | None, typer.Option(metavar="PROMPT", help="Profile a real run of this prompt.")] = None,
    tau: Annotated[str, typer.Option(help="Threshold of --decode.")] = "-2",
    seed: Annotated[int, typer.Option(help="Seed of --decode.", min=0, max=2**63 - 1)] = 0,
    plots: Annotated[Path | None, typer.Option(help="Folder for plots (PNG and SVG).")] = None,
    timeline: Annotated[Path | None, typer.Option(help="File for a timeline of one step, for Perfetto.")] = None,
    save: Annotated[Path | None, typer.Option(help="File to keep the result in (JSON).")] = None,
    compare: Annotated[Path | None, typer.Option(help="Earlier result to print ratios against.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Measure one decode step by context length, or a real run with --decode."""
    from fastcar_cli.analysis.profiler import parse_lengths
    from fastcar_cli.models.published import published_spec

    one_of("--backend", backend, ("torch", "fpga-sim"))
    one_of("--dtype", dtype, ("auto", "float32", "bfloat16", "float16"))
    if decode is None:
        refuse(ctx, ("tau", "seed"), "without a run", "it needs --decode PROMPT")
    elif seq is None:
        measured = ("rows", "repeats", "timeline", "compare")
        refuse(ctx, measured, "with --decode alone", "it needs --seq, which measures steps beside the run")
    if backend == "torch":
        refuse(ctx, ("fpga",), "with the backend torch", "it needs --backend fpga-sim")
    else:
        refuse(
            ctx, ("dtype", "device", "threads", "repeats", "timeline", "decode"), "with an emulated accelerator",
            "leave it out, or leave out --backend fpga-sim",
        )  # fmt: skip
    lengths = [] if decode is not None and seq is None else parse_lengths(seq or _lengths(model))
    if plots is not None:
        pyplot("--plots")
    earlier = _read(compare) if compare is not None else None
    check_file("--save", save)
    check_file("--timeline", timeline)
    check_made("--plots", plots)
    if decode is not None and published_spec(model) is not None:
        raise RequestError(
            f"--decode needs weights; --model {model} stands for shapes here", hint="--model mini or a folder"
        )
    if backend == "fpga-sim":
        document = _emulated(model, lengths, rows, fpga)
    else:
        document = _measured(model, lengths, rows, dtype, device, threads, repeats, timeline)
    found = None
    if decode is not None:
        found = _decoded(model, decode, tau, seed, device, dtype)
        document["decode"] = found.to_dict()
    if plots is not None:
        from fastcar_cli.analysis.plots import write_plots

        write_plots(plots, document["lengths"], found, "ms" if backend == "torch" else "emulated ms")
    if save is not None:
        write_whole(save, json.dumps(document, indent=1) + "\n")
    if earlier is not None:
        document["compared"] = _ratios(document, earlier)
    if as_json:
        typer.echo(json.dumps(document))
    else:
        from fastcar_cli.cli.profile_render import show

        show(document)


def _lengths(model: str) -> str:
    """The lengths where nobody says: of a model whose prompt is frames, all the positions that it has."""
    from fastcar_cli.models.registry import spec_of

    spec = spec_of(model)
    return "2k,4k,8k" if spec.layout.lead is None else str(spec.decoder.max_positions)


def _measured(
    model: str, lengths: list[int], rows: int | None, dtype: str, device: str, threads: int | None, repeats: int,
    timeline: Path | None,
) -> dict[str, Any]:  # fmt: skip
    import torch

    from fastcar_cli.analysis.machine import measure_machine
    from fastcar_cli.analysis.profiler import profile_length, replay_table, vision_seconds
    from fastcar_cli.cli.render import console, progress
    from fastcar_cli.models.checkpoint import DTYPES
    from fastcar_cli.models.plan import default_dtype
    from fastcar_cli.resolve import resolve_device

    device = resolve_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = _own_dtype(model, default_dtype(device)) if dtype == "auto" else dtype
    machine = measure_machine(torch.device(device), DTYPES[chosen])
    document: dict[str, Any] = {
        "machine": machine.to_dict(),
        "model": model,
        "backend": "torch",
        "lengths": [],
        "replay": {},
    }
    if not lengths:
        return document
    shape, count = _shape(model, chosen, device, rows, max(lengths))
    layout = shape.spec.layout
    least = 0 if layout.lead is None else layout.lead + layout.stride + 2
    if min(lengths) < least:
        raise RequestError(
            f"--seq {min(lengths)}: the prompt of {model} takes {layout.lead} tokens, the first frame {layout.stride}",
            hint=f"allowed: {least} or more",
        )
    vision = vision_seconds(shape.network, max(1, count // 2) if layout.guided else count)
    with progress(console(), "lengths") as bar:
        task = bar.add_task("measuring", total=len(lengths))
        for length in lengths:
            document["lengths"].append(profile_length(shape, machine, count, length, repeats=repeats, vision=vision))
            bar.advance(task)
    document["replay"] = {"rows": count, "lengths": [replay_table(x, count) for x in document["lengths"]]}
    document["layers"] = {
        "measured": shape.layers,
        "scaled_to": shape.spec.decoder.layers,
        "random_weights": shape.random,
    }
    if timeline is not None:
        from fastcar_cli.analysis.timeline import write_timeline

        write_timeline(timeline, shape, count, lengths[-1])
    return document


def _own_dtype(model: str, default: str) -> str:
    """What a model is timed in where nobody says. Raises RequestError for a converted one that is not in floats."""
    from fastcar_cli.models.checkpoint import DTYPES
    from fastcar_cli.models.published import published_spec
    from fastcar_cli.models.registry import folder_of, shapes_of

    formats = [] if published_spec(model) is not None else list(shapes_of(folder_of(model)).formats)
    if len(formats) != 1:
        return default
    if formats[0] not in DTYPES:
        raise RequestError(
            f"--model {model}: its weights are {formats[0]}, the modules that are timed are in floats",
            hint="profile the model it was converted from, or a run: --decode",
        )
    return formats[0]


def _shape(model: str, dtype: str, device: str, rows: int | None, longest: int) -> tuple[Shape, int]:
    from fastcar_cli.analysis.profiler import Shape, random_shape
    from fastcar_cli.models.published import published_spec
    from fastcar_cli.models.registry import load

    if (published := published_spec(model)) is not None:
        count = rows or (2 if published.layout.guided else 1)
        return random_shape(published, dtype, device, count, longest), count
    loaded = load(model, dtype, device)
    count = rows or (1 if loaded.defaults.cfg == 1.0 else 2)
    spec = loaded.network.spec
    return Shape(loaded.network, spec, spec.decoder.layers, False), count


def _emulated(model: str, lengths: list[int], rows: int | None, fpga: str) -> dict[str, Any]:
    from fastcar_cli.analysis.emulated import emulated_lengths
    from fastcar_cli.models.registry import spec_of

    spec = spec_of(model)
    return emulated_lengths(spec, model, lengths, rows or (2 if spec.layout.guided else 1), fpga)


def _decoded(model: str, prompt: str, tau: str, seed: int, device: str, dtype: str) -> Any:
    from fastcar_cli.analysis.decode_profile import profile_decode
    from fastcar_cli.config import load_config
    from fastcar_cli.pipeline import TextToVideo

    flags = {"model": model, "replay.tau": tau, "runtime.device": device, "runtime.dtype": dtype}
    pipe = TextToVideo.from_config(load_config(None, (), flags))
    pipe.notices([prompt])
    return profile_decode(pipe, prompt, seed)


def _read(file: Path) -> dict[str, Any]:
    text = read_text(file, f"--compare {file}")
    try:
        data = parse_json(text)
        for length in data["lengths"]:
            seq, step, modules = int(length["seq"]), float(length["step_ms"]), length["modules"].values()
            if seq < 1 or step <= 0 or min((float(m["ms"]) for m in modules), default=0) < 0:
                raise ValueError(f"times of seq {seq} are no times")
        return data
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise RequestError(f"--compare {file} is no saved profile: {type(e).__name__} {e}") from None


def _ratios(now: dict[str, Any], before: dict[str, Any]) -> list[dict[str, Any]]:
    """Time of a new result over that of an earlier one, line by line, for the lengths that both have."""
    known = {x["seq"]: x for x in before["lengths"]}
    rows = []
    for length in now["lengths"]:
        old = known.get(length["seq"])
        if old is None:
            continue
        rows.append({"seq": length["seq"], "name": "step", "ratio": length["step_ms"] / old["step_ms"]})
        for name, module in length["modules"].items():
            other = old["modules"].get(name)
            if other is not None and other["ms"]:
                rows.append({"seq": length["seq"], "name": name, "ratio": module["ms"] / other["ms"]})
    return rows
