"""`fastcar lab bench`: decode passes timed side by side.

One run times, turn by turn: our engine dense and at forced replay ratios (rows together and alone), with
torch's and with native kernels, with int8 and int4 weights; transformers' LlamaModel on the same weights; and
a loop that computes every MLP and then selects. Options time other work, or more.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fastcar_cli.checkpoints.names import FROM_TEXT
from fastcar_cli.cli.options import Debug, Format, Json
from fastcar_cli.config import choices
from fastcar_cli.errors import RequestError

if TYPE_CHECKING:
    from rich.console import Console

    from fastcar_lab.bench.cases import Benchmark
    from fastcar_lab.bench.video import WholeVideo


def whole_command(count: int) -> dict[str, Any]:
    """Wall seconds of `fastcar generate` as a process, to the first frame on disk and to its end, and in turn with
    it those of a process that only imports torch.
    """
    first, total, bare = [], [], []
    for _ in range(count):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        bare.append(time.perf_counter() - began)
        with tempfile.TemporaryDirectory() as folder:
            began = time.perf_counter()
            command = [sys.executable, "-m", "fastcar_cli", "generate", "a red ball rolling to the right", "-o", "f"]
            process = subprocess.Popen(command, cwd=folder, stderr=subprocess.DEVNULL)
            while process.poll() is None and not list(Path(folder).glob("*f*/0000.png")):
                time.sleep(0.005)
            first.append(time.perf_counter() - began)
            if process.wait():
                raise SystemExit("fastcar generate failed")
            total.append(time.perf_counter() - began)
    middle = statistics.median
    return {
        "first_frame_s": middle(first),
        "total_s": middle(total),
        "import_torch_s": middle(bare),
        # By pairs, as the machine's speed changes from minute to minute.
        "first_frame_beyond_torch_s": middle(a - b for a, b in zip(first, bare, strict=True)),
        "total_beyond_torch_s": middle(a - b for a, b in zip(total, bare, strict=True)),
        "runs": count,
    }


def _print(out: Console, result: dict[str, Any]) -> None:
    from fastcar_cli.cli.render import columns
    from fastcar_lab.bench.render import print_whole

    machine = result["machine"]
    out.print(
        f"{machine['device']}, {machine['threads']} threads, torch {machine['torch']}; reads "
        f"{machine['read_gb_s']:.1f} GB/s, copies {machine['copy_gb_s']:.1f} GB/s; beside the passes "
        f"{result['bandwidth_gb_s']:.1f} GB/s, each share counts from what was read right after it"
    )
    table = columns(
        f"{result['shape']}, {result['layers']} layers, context {result['context']}, {result['rows']} rows: "
        f"median of {result['turns']} turns of {result['passes']} passes",
        *("", "ms a pass", "least to most", "tokens/s", "GB/s", "of bandwidth", "speed-up", "of its ceiling"),
    )
    for name, line in result["lines"].items():
        low, high = line["spread_ms"]
        cells = [name, f"{line['ms']:.3f}", f"{low:.3f} to {high:.3f}", f"{line['tokens_per_s']:,.0f}"]
        cells += [f"{line['gb_s']:.1f}", f"{line['of_bandwidth']:.0%}"] if "gb_s" in line else ["", ""]
        cells += [f"{line['speedup']:.2f}", f"{line['of_ceiling']:.1%}"] if "speedup" in line else ["", ""]
        table.add_row(*cells)
    print_whole(out, table)
    out.print("; ".join(f"{name} {version}" for name, version in result["rivals"].items()))
    for name, value in result["ratios"].items():
        out.print(f"{name:>34}  {value:.3f}")


def _document(results: list[dict[str, Any]]) -> dict[str, Any]:
    """One result as it is; of several, each, and the least of every ratio where they have some."""
    if len(results) == 1:
        return results[0]
    least = {name: min(r["ratios"][name] for r in results) for name in results[0].get("ratios", ())}
    return {"contexts": results} | ({"ratios": least} if least else {})


def _shares(text: str) -> list[float]:
    """Numbers from 0 to 1 with commas between them. Raises RequestError for anything else."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = [-1.0]
    if not all(0 <= share <= 1 for share in shares):
        raise RequestError("not probabilities", key="accept", value=text, allowed="0 to 1, such as 0.5,0.9")
    return shares


def _whole_video(plan: WholeVideo, threads: int | None, save: Path | None, as_json: bool) -> None:
    """Time it and print what it took."""
    from fastcar_cli.cli.render import Results, columns
    from fastcar_cli.config.run_config import RunConfig
    from fastcar_cli.pipeline.pipeline import VideoPipeline
    from fastcar_lab.bench.render import print_whole, watched
    from fastcar_lab.bench.video import whole_video

    config = RunConfig.from_dict({"model": plan.model, "runtime": {"threads": threads}})
    model = VideoPipeline.from_config(config).model
    result = watched("tokens", "video", partial(whole_video, model, plan, save))
    if as_json:
        typer.echo(json.dumps(result))
        return
    out = Results()
    lines = result["variants"]
    kept = f"{result['weights']}, keys and values {result['kv_dtype']}"
    table = columns(f"{result['model']}, {kept}, {result['frames']} frames, {result['cpu']}", "", *lines)
    rows = {
        "seconds": ("seconds", "{:.1f}"),
        "of them the prompt": ("prefill_s", "{:.1f}"),
        "decoding": ("decode_s", "{:.1f}"),
        "  ms a pass": ("ms_a_pass", "{:.1f}"),
        "  of it MLPs": ("mlp_s", "{:.1f}"),
        "  of it drawing codes": ("draw_s", "{:.1f}"),
        "pixels": ("vision_s", "{:.1f}"),
        "GB/s while decoding": ("gb_s", "{:.1f}"),
        "memory gave, GB/s": ("bandwidth_gb_s", "{:.1f}"),
        "of what memory gave": ("of_bandwidth", "{:.0%}"),
        "most memory, bytes": ("peak_bytes", "{:,}"),
        "published, U280": ("published_s", "{:.1f}"),
        "tokens a pass": ("tokens_per_pass", "{:.2f}"),
        "times as fast as dense": ("speedup", "{:.2f}"),
    }
    for name, (key, form) in rows.items():
        if all(line[key] is not None for line in lines.values()):
            table.add_row(name, *(form.format(line[key]) for line in lines.values()))
    print_whole(out, table)
    if result["decoded"] < result["tokens"]:
        out.print(f"decoded {result['decoded']} of {result['tokens']:,} tokens, from the middle; the rest is estimated")
    out.print(f"replay of {result['ratio']:.0%} of all MLPs: {result['speedup']:.2f} x")
    out.print(f"decoding alone: {result['of_ceiling']:.1%} of what the MLPs' share allows ({result['ceiling']:.2f} x)")
    if (share := result["prompt_of_arithmetic"]) is not None:
        out.print(f"the prompt: {share:.0%} of the multiply-adds that the cores make")
    for window, accept in result["drafts"]:
        out.print(f"drafts with window {window}, each right with probability {accept:g}")


def _each(
    plans: list[Benchmark],
    as_json: bool,
    things: str,
    work: Callable[[Benchmark, Callable[[int, int], None]], dict[str, Any]],
    table: Callable[[Console, dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """What `work(plan, on_progress)` measures at each context; prints each as a table, unless JSON is wanted."""
    from fastcar_cli.cli.render import Results
    from fastcar_lab.bench.render import watched

    results = []
    for plan in plans:
        results.append(watched(things, f"context {plan.context:,}", partial(work, plan)))
        if not as_json:
            table(Results(), results[-1])
    return results


def bench(
    ctx: typer.Context,
    shape: Annotated[
        str, typer.Option(help="Model: mini, table, table-dense, vila-u-7b or a cosmos-predict1-... model.")
    ] = "mini",
    layers: Annotated[int, typer.Option(help="Number of layers to time of vila-u-7b or Cosmos.", min=1)] = 2,
    context: Annotated[
        str | None, typer.Option(help="Context lengths in tokens, such as 512,2k. [default: by model]")
    ] = None,
    rows: Annotated[int | None, typer.Option(help="Rows of the batch. [default: 1; vila-u-7b: 2]", min=1)] = None,
    passes: Annotated[int | None, typer.Option(help="Passes per turn. [default: 48; large models: 6]", min=1)] = None,
    turns: Annotated[int, typer.Option(help="Number of timed turns; one untimed turn precedes them.", min=1)] = 9,
    threads: Annotated[
        int | None, typer.Option(help="CPU threads. [default: all; two at most for bundled models]", min=1)
    ] = None,
    device: Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:N or auto.")] = "cpu",
    llama_cpp: Annotated[
        bool,
        typer.Option("--llama-cpp", help="Also time llama.cpp on layers of this shape; needs the extra llama-cpp."),
    ] = False,
    ik_llama_cpp: Annotated[
        bool, typer.Option("--ik-llama-cpp", help="Also time ik_llama.cpp, repacked; needs the extra ik-llama-cpp.")
    ] = False,
    openvino: Annotated[
        bool, typer.Option("--openvino", help="Also time OpenVINO with paged attention; needs the extra openvino.")
    ] = False,
    compiled: Annotated[
        bool, typer.Option("--compiled", help="Also time transformers with torch.compile; needs a C++ compiler.")
    ] = False,
    video: Annotated[
        str | None, typer.Option(help="Time a whole video of this model (name or folder) instead of passes.")
    ] = None,
    clip: Annotated[
        str | None,
        typer.Option(help="Time a clip instead: small or medium (iVideoGPT), rt1-single or rt1-multi (RLVR-World)."),
    ] = None,
    frames: Annotated[
        int | None, typer.Option(help="Frames of --video or --clip. [default: the model's]", min=2)
    ] = None,
    replay_ratio: Annotated[
        float, typer.Option(help="Replay ratio of the run with replay, for --video or --clip.", min=0, max=1)
    ] = 0.8,
    tokens: Annotated[
        int | None, typer.Option(help="Decode only this many tokens of --video, in the middle; extrapolate.", min=2)
    ] = None,
    save: Annotated[
        Path | None, typer.Option(help="File for the progress of --video; rerun to resume after its last frame.")
    ] = None,
    kv_dtype: Annotated[
        str, typer.Option(help="Format of the KV cache for --video, --window or --draft: auto (the model's) or int8.")
    ] = "auto",
    draft: Annotated[
        str | None,
        typer.Option(help="Draft lengths, such as 4,8: time passes (or --video) with drafts."),
    ] = None,
    accept: Annotated[
        str, typer.Option(help="Probability of accepting a draft; with --video one for each length of --draft.")
    ] = "0.9",
    generate: Annotated[int, typer.Option(help="Also time this many runs of `fastcar generate`.", min=0)] = 0,
    busy: Annotated[
        int,
        typer.Option(
            help="Time dense passes with one and with --threads threads beside this many busy processes.", min=0
        ),
    ] = 0,
    window: Annotated[
        str | None,
        typer.Option(help="Time passes with these numbers of tokens per row, such as 1,4,16, and print the limits."),
    ] = None,
    as_json: Json = False,
    form: Format = "table",
    debug: Debug = False,
) -> None:
    """Time decode passes of fastcar and other engines by weight format, without replay and at four replay ratios."""
    import torch

    from fastcar_cli.cli.flags import given, one_of, refuse
    from fastcar_cli.cli.render import Results
    from fastcar_cli.pipeline.resolve import resolve_device
    from fastcar_cli.profile.profiler import parse_lengths
    from fastcar_lab.bench import neighbour
    from fastcar_lab.bench import window as several
    from fastcar_lab.bench.cases import SHAPES as LARGE
    from fastcar_lab.bench.cases import Benchmark, check
    from fastcar_lab.bench.measure import RIVALS, chosen, measure
    from fastcar_lab.bench.render import clip_table, neighbour_table, watched, window_table

    one_of("--shape", shape, (*FROM_TEXT, *LARGE))
    one_of("--clip", clip, ("small", "medium", "rt1-single", "rt1-multi"))
    one_of("--kv-dtype", kv_dtype, choices.values(choices.KVDtype))
    drafts, accepted = parse_lengths(draft, "draft") if draft is not None else [], _shares(accept)
    if not drafts:
        refuse(ctx, ("accept",), "without --draft", "it needs --draft W")
    elif window is not None:
        raise RequestError("--draft and --window can't be used together", hint="--draft times passes of one token too")
    if video is not None:
        from fastcar_cli.checkpoints.open import spec_of
        from fastcar_lab.bench.video import WholeVideo

        of_video = {"video", "frames", "replay_ratio", "tokens", "save", "kv_dtype", "threads", "as_json", "form"}
        of_video |= {"draft", "accept"}
        refuse(ctx, given(ctx).keys() - of_video, "with --video", "leave it out")
        if len(drafts) != len(accepted) and drafts:
            raise RequestError("one is needed for each window", key="accept", value=accept, allowed="0.5,0.9")
        pairs = tuple(zip(drafts, accepted, strict=True)) if drafts else ()
        whole = WholeVideo(video, frames or spec_of(video).frames, replay_ratio, tokens, kv_dtype, pairs)
        _whole_video(whole, threads, save, as_json)
        return
    if clip is not None:
        from fastcar_lab.bench.prediction import SHAPES, PredictedClip
        from fastcar_lab.bench.prediction import measure as predict

        of_clip = {"clip", "frames", "replay_ratio", "turns", "threads", "as_json", "form"}
        refuse(ctx, given(ctx).keys() - of_clip, "with --clip", "leave it out")
        torch.set_num_threads(threads or torch.get_num_threads())
        predicted = PredictedClip(SHAPES[clip], frames=frames or SHAPES[clip].frames, ratio=replay_ratio, turns=turns)
        result = watched("clips", "clips", partial(predict, predicted))
        if as_json:
            typer.echo(json.dumps(result))
        else:
            clip_table(Results(), result)
        return
    refuse(ctx, ("frames", "replay_ratio", "tokens", "save"), "without --video", "it needs --video MODEL")
    if window is None and not drafts:
        refuse(ctx, ("kv_dtype",), "without --video, --window or --draft", "leave it out")
    bundled = shape in FROM_TEXT
    place = resolve_device(device)
    # Nothing else runs beside a benchmark, so a small model gets more than `generate` gives it.
    most = torch.get_num_threads()
    torch.set_num_threads(threads or (min(2, most) if bundled else most))
    rivals = chosen(llama_cpp, ik_llama_cpp, openvino)
    plans = [
        Benchmark(
            shape=shape,
            layers=layers,
            context=tokens,
            rows=rows or (2 if shape == "vila-u-7b" else 1),
            passes=passes or (48 if bundled else 6),
            turns=turns,
            compiled=compiled,
            device=place,
            rivals=rivals,
            kv_dtype=kv_dtype,
        )
        for tokens in parse_lengths(
            context or ("300" if bundled else "512,2k,8k" if shape == "vila-u-7b" else "5k,12k"), "context"
        )
    ]
    for plan in plans:
        check(plan)
    work: Callable[..., dict[str, Any]] = measure
    things, table = "turns", window_table
    if busy:
        refuse(ctx, ("device", *RIVALS, "compiled", "generate"), "with --busy", "leave it out")
        work, table = partial(neighbour.measure, busy=busy, threads=torch.get_num_threads()), neighbour_table
    elif window is not None or drafts:
        refuse(ctx, ("device", "compiled", "generate"), "with --window or --draft", "leave it out")
        if drafts:
            refuse(ctx, tuple(RIVALS), "with --draft", "leave it out")
            work = partial(several.measure_drafts, windows=drafts, accept=accepted[0])
        else:
            work = partial(several.measure, windows=parse_lengths(window or "", "window"))
    else:
        things, table = "runs", _print
    results = _each(plans, as_json, things, lambda plan, on_progress: work(plan, on_progress=on_progress), table)
    document = _document(results)
    if generate:
        document["generate"] = whole_command(generate)
        if not as_json:
            typer.echo(document["generate"])
    if as_json:
        typer.echo(json.dumps(document))
