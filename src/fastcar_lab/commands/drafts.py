"""`fastcar lab drafts`: how many tokens a pass with drafts makes final, by model, kind and window."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer

from fastcar_cli.checkpoints.names import FROM_TEXT
from fastcar_cli.cli.options import Debug, Format, Json, Overrides
from fastcar_cli.errors import RequestError

Models = Annotated[list[str] | None, typer.Option(help=f"Model; repeat for more. [default: {', '.join(FROM_TEXT)}]")]


def _show(
    results: list[dict[str, Any]],
    as_json: bool,
    title: str,
    names: list[str],
    row: Callable[[dict[str, Any]], list[str]],
) -> None:
    """Print what was measured of models as JSON or a table."""
    from fastcar_cli.cli.render import Results, columns
    from fastcar_cli.profile.machine import processor
    from fastcar_lab.bench.render import print_whole
    from fastcar_lab.common import commit

    if as_json:
        typer.echo(json.dumps({"machine": processor(), "commit": commit() or "unknown", "models": results}))
        return
    table = columns(title, "", *names)
    for result in results:
        table.add_row(*row(result))
    print_whole(Results(), table)


def drafts(
    model: Models = None,
    prompts: Annotated[int, typer.Option(help="Number of videos of held-out captions or clips.", min=1)] = 30,
    leave_out: Annotated[
        str | None, typer.Option(help="Leave out the captions that contain this text, such as pan.")
    ] = None,
    windows: Annotated[str, typer.Option(help="Draft lengths.")] = "4,8,16,32",
    kinds: Annotated[str, typer.Option(help="Kinds of drafts to decode with.")] = "frame,jacobi",
    against: Annotated[
        str | None,
        typer.Option(help="Also decode with other papers' rules, such as sjd,relaxed:0.5, or all lossless ones (all)."),
    ] = None,
    temperature: Annotated[str, typer.Option(help="Sampling temperatures; shipped is the model's own.")] = "shipped,1",
    set_: Overrides = None,
    as_json: Json = False,
    form: Format = "table",
    debug: Debug = False,
) -> None:
    """Count tokens per pass for each kind and length of drafts, and predict these counts from videos' codes."""
    from fastcar_cli.profile.profiler import parse_lengths
    from fastcar_cli.sweep.grid import parse_names
    from fastcar_lab.bench.render import watched
    from fastcar_lab.claims.prompts import prompts_or_clips
    from fastcar_lab.common import pipeline_of
    from fastcar_lab.couplings import LOSSLESS, Rule
    from fastcar_lab.drafting import KINDS, tokens_a_pass

    names = LOSSLESS if against == "all" else against.split(",") if against else ()
    rules = [Rule.parse(name.strip()) for name in names]
    wanted, decoded = parse_lengths(windows, "windows"), parse_names("kinds", kinds, KINDS)
    try:
        temperatures = [None if t == "shipped" else float(t) for t in map(str.strip, temperature.split(","))]
    except ValueError:
        raise RequestError("not numbers", key="temperature", value=temperature, allowed="shipped, or numbers") from None
    results: list[dict[str, Any]] = []
    for name in model or FROM_TEXT:
        base = pipeline_of(name, set_ or ())
        captions, before = list(prompts_or_clips(base, prompts)), len(results)
        if leave_out is not None:
            captions = [text for text in captions if leave_out not in str(text)]
        if not captions:
            raise RequestError("no caption is left", key="leave_out", value=leave_out)
        for degree in temperatures:
            pipe = base
            if degree is not None:
                pipe = base.with_config(base.config.changed({"sampling.temperature": degree}))
            warmth = pipe.settings.sampling.temperature
            if not any(r["temperature"] == warmth for r in results[before:]):
                work = partial(tokens_a_pass, pipe, captions, wanted, kinds=decoded, against=rules)
                results.append(watched("decodes", f"{name}, temperature {warmth:g}", work))
    without = "" if leave_out is None else f" without those with {leave_out!r}"
    title = f"tokens a pass after the first frame (first frame), speedup by processor time, {prompts} prompts{without}"

    def row(r: dict[str, Any]) -> list[str]:
        cells = [f"{r['model']}, temperature {r['temperature']:g}", f"{r['same_as_aligned']:.1%}"]
        cells += [f"{x['counted']:.2f}" for x in r["windows"]]
        parts = [x[kind] for kind in drafters for x in r["windows"]]
        return cells + [
            f"{part['later_frames']:.2f} ({part['first_frame']:.2f}), {part['speedup']:.2f} x" for part in parts
        ]

    drafters = [*decoded, *(rule.text for rule in rules)]
    columns = [f"{kind} {w}" for kind in ("counted", *drafters) for w in wanted]
    _show(results, as_json, title, ["as aligned", *columns], row)


def draft_cost(
    model: Models = None,
    prompts: Annotated[int, typer.Option(help="Number of videos; the command decodes each four times.", min=1)] = 20,
    set_: Overrides = None,
    as_json: Json = False,
    form: Format = "table",
    debug: Debug = False,
) -> None:
    """Measure how much `--draft auto` slows the first token and a whole video if every draft is rejected."""
    from fastcar_lab.bench.draft_cost import measure
    from fastcar_lab.bench.render import watched
    from fastcar_lab.claims.prompts import prompts_for
    from fastcar_lab.common import pipeline_of

    results: list[dict[str, Any]] = []
    for name in model or FROM_TEXT:
        pipe = pipeline_of(name, set_ or (), draft__kind="auto")
        measured = watched("decodes", name, partial(measure, pipe, prompts_for(pipe, prompts)))
        results.append({"model": name, "videos": prompts} | measured)

    def row(r: dict[str, Any]) -> list[str]:
        of_parts = [(r[part]["pairs"], r[part]["sums"], r[part]["off_median_ms"]) for part in ("decode", "first_token")]
        return [r["model"], *(f"{x:.3f}" if i < 2 else f"{x:.1f}" for part in of_parts for i, x in enumerate(part))]

    title = f"`auto` over `off`, no draft right, {prompts} videos twice: median of pairs, sums; off in ms, median"
    _show(results, as_json, title, ["decode, pairs", "sums", "off", "first token, pairs", "sums", "off"], row)
