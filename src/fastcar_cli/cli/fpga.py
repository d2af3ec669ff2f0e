"""`fastcar fpga`: the emulated accelerator without a model, on saved or random decisions."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import typer

from fastcar_cli.cli.flags import check_made, given, refuse, refuse_all_but
from fastcar_cli.cli.options import Accelerator, Flags, Json, a_model, options
from fastcar_cli.cli.render import Results, columns
from fastcar_cli.config.keys import MODELS
from fastcar_cli.config.lists import each_of
from fastcar_cli.config.run_config import load_config
from fastcar_cli.errors import RequestError
from fastcar_cli.system import plugins


@options("attention.window", "attention.sinks")
def fpga(
    ctx: typer.Context,
    trace: Path | None = typer.Argument(None, metavar="[FILE]", help="File that `generate --trace` saved."),
    preset: Accelerator = None,
    model: str = typer.Option("vila-u-7b", help=f"Model to emulate without FILE: {MODELS}.", autocompletion=a_model),
    rows: int = typer.Option(16, help="Number of rows (sequences) in the batch, at most 32.", min=1, max=32),
    frames: int = typer.Option(8, help="Number of frames of the video.", min=1, max=4096),
    prompt_tokens: int = typer.Option(100, help="Number of tokens of the prompt.", min=1, max=2**20),
    replay: str = typer.Option("0,0.2,0.5,0.8", help="Without FILE: replay ratios, as shares of all MLPs."),
    *,
    flags: Flags,
    spread: Literal["eligible", "all"] = typer.Option(
        "eligible", help="Passes in which random MLPs replay: eligible (those after the first frame), or all."
    ),
    pair_correlation: float = typer.Option(0.0, help="Probability that a video's rows replay alike.", min=0, max=1),
    profile: Literal["flat", "valley"] = typer.Option(
        "flat", help="How the replay ratio varies over the layers: flat (constant), or valley (lowest in the middle)."
    ),
    seed: int = typer.Option(0, help="Without FILE: seed to select the MLPs that replay.", min=0, max=2**63 - 1),
    table: bool = typer.Option(False, "--table", help="Compare emulated results with the FastCar paper's."),
    drafts: bool = typer.Option(
        False, "--drafts", help="Print the emulated speedup from drafts for VILA-U 7B; the default of --rows is then 2."
    ),
    explain: bool = typer.Option(False, "--explain", help="Print the calculation of one layer's cycles and joules."),
    report: Path | None = typer.Option(None, help="Folder for CSV files of cycles, bandwidth and energy."),
    as_json: Json = False,
) -> None:
    """Compute an emulated FPGA accelerator's decode time; `fastcar fpga rtl` writes its RTL."""
    import fastcar_fpga
    from fastcar_cli.checkpoints.open import spec_of

    for asked, others, why in (
        (table, "table preset as_json", "with --table, which emulates the published runs"),
        (drafts, "drafts preset rows as_json", "with --drafts, which always emulates VILA-U 7B"),
        (trace, "trace preset window sinks explain report as_json", "with FILE, which fixes the model and the replay"),
    ):
        if asked:
            refuse_all_but(ctx, tuple(others.split()), why)
    attention = load_config(None, (), flags).attention
    if attention.window is None:
        refuse(ctx, ("sinks",), "with full attention", "it needs --window with a number of tokens")
    check_made("--report", report)
    if table or drafts:
        name, own = ("table", ()) if table else ("drafts", (rows if "rows" in given(ctx) else 2,))
        plugins.of_fpga(name, f"--{name}")(fastcar_fpga.load_preset(preset or "paper-u280"), *own, as_json)
        return
    if trace is not None:
        saved = fastcar_fpga.read(trace)
        if "attention.window" in flags:
            saved = replace(saved, window=attention.window, sinks=attention.sinks)
        comparisons = [fastcar_fpga.emulate(fastcar_fpga.preset_for(preset, saved.spec), saved)]
    else:
        ratios = each_of("replay", replay, _ratio, "not a ratio", "0 to 1, such as 0,0.2,0.5,0.8")
        if pair_correlation and rows % 2:
            said = f"--pair-correlation with --rows {rows}: an odd number of rows has no pairs"
            raise RequestError(said, hint="use an even number of rows")
        spec, shape = spec_of(model), dict[str, Any](rows=rows, frames=frames, prompt=prompt_tokens)
        work = fastcar_fpga.workload_of(spec, **shape, window=attention.window, sinks=attention.sinks)
        emulator = fastcar_fpga.Emulator(fastcar_fpga.preset_for(preset, spec), work)
        drawn = (fastcar_fpga.draw(work, r, seed, spread, pair_correlation, profile) for r in ratios)
        comparisons = [fastcar_fpga.compare(emulator, decisions) for decisions in drawn]
    if report is not None:
        fastcar_fpga.write_csvs(report, comparisons[-1])
    documents = [f.to_dict() for f in comparisons]
    lines = fastcar_fpga.explain(comparisons[-1]) if explain else []
    if as_json:
        documents[-1] |= {"explain": lines} if explain else {}
        typer.echo(json.dumps({"runs": documents}))
    elif explain:
        typer.echo("\n".join(lines))
    else:
        _summary(documents, comparisons[0].emulator.work)


def _ratio(text: str) -> float:
    if not 0 <= (value := float(text)) <= 1:
        raise ValueError(text)
    return value


def _short(value: float) -> str:
    """Three or four digits with a unit prefix."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.4g}{letter}"
    return f"{value:.3g}"


def _summary(documents: list[dict[str, Any]], work: Any) -> None:
    first = documents[0]
    shown = columns(
        f"{first['preset']} (emulated): {work.name}, {work.rows} rows on {first['cores']} cores, "
        f"{first['passes']} passes",
        *("replay", "cycles", "s", "J", "J act.", "dense", "static", "ideal", "busy", "DRS"),
        left=0,
        caption="J: board power x time. J act.: energy, added up over operations. dense: speedup over decoding without "
        "replay and DRS (dynamic resource scheduling). static: speedup over replay without DRS. ideal: value of dense "
        "if all cores had equal work. busy: mean share of cycles in which MACs work. DRS: share of cycles DRS adds.",
    )
    for d in documents:
        cost = (_short(d["cycles"]), f"{d['latency_s']:.4g}", _short(d["energy_j"]), _short(d["energy_activity_j"]))
        gain = (f"{d[k]:.2f}" for k in ("speedup_vs_dense", "speedup_vs_static", "ideal_speedup_vs_dense"))
        shown.add_row(f"{d['replay_ratio']:.1%}", *cost, *gain, f"{d['utilisation']:.0%}", f"{d['drs_share']:.2%}")
    Results().print(shown)
    if first["window"] == 1:
        return
    shown = columns(
        f"cost of one new token in every video; a pass of the file yields {work.steps / first['passes']:.2f}",
        *("", "cycles", "ms", "mJ", "mJ act.", "against dense"),
        left=0,
        caption="dense and replay: one token per pass. drafts (without replay) and both (drafts with replay): the "
        "passes in the file. against dense: speedup over dense.",
    )
    costs = first["per_token"]
    for kind, cost in costs.items():
        ms = first["latency_s"] / first["cycles"] * cost["cycles"] * 1e3
        mj = (f"{cost[key] * 1e3:.4g}" for key in ("energy_j", "energy_activity_j"))
        shown.add_row(kind, _short(n := cost["cycles"]), f"{ms:.4g}", *mj, f"{costs['dense']['cycles'] / n:.2f}")
    Results().print(shown)
