"""`fastcar lab drafts`: how many tokens a pass with drafts makes final, by model, kind and window."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from fastcar_cli.checkpoints.names import FROM_TEXT
from fastcar_cli.cli.options import Format
from fastcar_lab.commands.options import Debug, Overrides


def drafts(
    model: Annotated[
        list[str] | None, typer.Option(help=f"Name or folder; repeat it. [default: {', '.join(FROM_TEXT)}]")
    ] = None,
    prompts: Annotated[int, typer.Option(help="Videos, of captions that training left out.", min=1)] = 30,
    leave_out: Annotated[
        str | None, typer.Option(help="Without the captions among them that hold this text, such as pan.")
    ] = None,
    windows: Annotated[str, typer.Option(help="Windows with commas between them.")] = "4,8,16,32",
    kinds: Annotated[str, typer.Option(help="Kinds that are decoded, beside the count from codes.")] = "frame,jacobi",
    temperature: Annotated[
        str, typer.Option(help="Temperatures with commas between them; shipped: the model's own.")
    ] = "shipped,1",
    set_: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    form: Format = "table",
    debug: Debug = False,
) -> None:
    """Tokens a pass with drafts of every kind and window, and what the codes of dense videos alone promise."""
    from fastcar_cli.cli.render import Results, columns, console, progress
    from fastcar_cli.config.run_config import load_config
    from fastcar_cli.errors import RequestError
    from fastcar_cli.pipeline.pipeline import VideoPipeline
    from fastcar_cli.profile.machine import processor
    from fastcar_cli.profile.profiler import parse_lengths
    from fastcar_cli.sweep.grid import parse_names
    from fastcar_lab.bench.render import print_whole
    from fastcar_lab.checkout import commit
    from fastcar_lab.claims.prompts import prompts_for
    from fastcar_lab.drafting import KINDS, tokens_a_pass

    wanted, decoded = parse_lengths(windows, "windows"), parse_names("kinds", kinds, KINDS)
    temperatures = [None if (t := text.strip()) == "shipped" else _number(t) for text in temperature.split(",")]
    results: list[dict[str, Any]] = []
    with progress(console(), "decodes") as bar:
        for name in model or FROM_TEXT:
            base = VideoPipeline.from_config(load_config(None, set_ or (), {"model": name}))
            captions, before = list(prompts_for(base, prompts)), len(results)
            if leave_out is not None:
                captions = [text for text in captions if leave_out not in text]
            if not captions:
                raise RequestError("no caption is left", key="leave_out", value=leave_out)
            for degree in temperatures:
                pipe = base
                if degree is not None:
                    pipe = base.with_config(base.config.changed({"sampling.temperature": degree}))
                warmth = pipe.settings.sampling.temperature
                if any(r["temperature"] == warmth for r in results[before:]):
                    continue
                task = bar.add_task(f"{name}, temperature {warmth:g}", total=None)

                def on_video(done: int, total: int, task: Any = task) -> None:
                    bar.update(task, completed=done, total=total)

                results.append(tokens_a_pass(pipe, captions, wanted, on_video, decoded))
    document = {"machine": processor(), "commit": commit() or "unknown", "models": results}
    if as_json:
        typer.echo(json.dumps(document))
        return
    names = [f"{kind} {w}" for kind in ("counted", *decoded) for w in wanted]
    without = "" if leave_out is None else f" without those with {leave_out!r}"
    title = f"tokens a pass after the first frame (first frame), {prompts} captions{without}"
    table = columns(title, "", "as aligned", *names)
    for r in results:
        cells = [f"{x['counted']:.2f}" for x in r["windows"]]
        cells += [
            f"{x[kind]['later_frames']:.2f} ({x[kind]['first_frame']:.2f})" for kind in decoded for x in r["windows"]
        ]
        table.add_row(f"{r['model']}, temperature {r['temperature']:g}", f"{r['same_as_aligned']:.1%}", *cells)
    print_whole(Results(), table)


def _number(text: str) -> float:
    """A temperature. Raises RequestError."""
    from fastcar_cli.errors import RequestError

    try:
        return float(text)
    except ValueError:
        raise RequestError("no number", key="temperature", value=text, allowed="shipped, or numbers") from None


def draft_cost(
    model: Annotated[
        list[str] | None, typer.Option(help=f"Name or folder; repeat it. [default: {', '.join(FROM_TEXT)}]")
    ] = None,
    prompts: Annotated[int, typer.Option(help="Videos, each decoded four times.", min=1)] = 20,
    set_: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
    form: Format = "table",
    debug: Debug = False,
) -> None:
    """What drafts by `auto` cost where none is right, and until the first token, beside decodes without drafts."""
    from fastcar_cli.cli.render import Results, columns, console, progress
    from fastcar_cli.config.run_config import load_config
    from fastcar_cli.pipeline.pipeline import VideoPipeline
    from fastcar_cli.profile.machine import processor
    from fastcar_lab.bench.draft_cost import measure
    from fastcar_lab.bench.render import print_whole
    from fastcar_lab.checkout import commit
    from fastcar_lab.claims.prompts import prompts_for

    results: list[dict[str, Any]] = []
    with progress(console(), "decodes") as bar:
        for name in model or FROM_TEXT:
            pipe = VideoPipeline.from_config(load_config(None, set_ or (), {"model": name, "draft.kind": "auto"}))
            task = bar.add_task(name, total=None)

            def on_decode(done: int, total: int, task: Any = task) -> None:
                bar.update(task, completed=done, total=total)

            results.append({"model": name, "videos": prompts} | measure(pipe, prompts_for(pipe, prompts), on_decode))
    document = {"machine": processor(), "commit": commit() or "unknown", "models": results}
    if as_json:
        typer.echo(json.dumps(document))
        return
    title = f"`auto` over `off`, no draft right, {prompts} videos twice: median of pairs, sums; off in ms, median"
    table = columns(title, "", "decode, pairs", "sums", "off", "first token, pairs", "sums", "off")
    for r in results:
        of_parts = [(r[part]["pairs"], r[part]["sums"], r[part]["off_median_ms"]) for part in ("decode", "first_token")]
        cells = [f"{x:.3f}" if i < 2 else f"{x:.1f}" for part in of_parts for i, x in enumerate(part)]
        table.add_row(r["model"], *cells)
    print_whole(Results(), table)
