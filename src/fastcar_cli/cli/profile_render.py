"""Tables of a profile that a person reads at a glance."""

from __future__ import annotations

from typing import Any

from rich.table import Table
from rich.text import Text

from fastcar_cli.cli.render import Results, columns, console, note


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def show(document: dict[str, Any]) -> None:
    """Print everything the document holds."""
    out = Results()
    machine = document["machine"]
    threads = f", {machine['threads']} threads" if "threads" in machine else ""
    out.print(Text.assemble((machine["device"], "bold"), threads))
    if "copy_gb_s" in machine:
        out.print(
            f"measured: copy {machine['copy_gb_s']:.1f} GB/s (read + written), read {machine['read_gb_s']:.1f} GB/s, "
            f"{machine['dtype']} matrices {machine['matrix_gflop_s']:,.0f} GFLOP/s; torch {machine['torch']}, "
            f"clock {machine['clock']}"
        )
    if "executor" in document:
        out.print(f"steps in {document['executor']['why']}")
    layers = document.get("layers")
    if layers and layers["measured"] != layers["scaled_to"]:
        out.print(
            f"measured with {layers['measured']} layers of true width and random weights; attention, MLP and "
            f"TAS are scaled to {layers['scaled_to']} layers, the rest is as measured",
            style="yellow",
        )
    for length in document["lengths"]:
        out.print(_length(document["model"], length))
        method = length.get("method")
        if method:
            out.print(
                f"  {method['rows']} rows, median of {method['repeats']} steps after warm-up, "
                f"spread {method['spread']:.0%}; "
                f"parts add up to {method['sum_over_whole']:.1%} of the step timed whole "
                f"({method['whole_step_ms']:.2f} ms with {method['layers_run']} layers)"
            )
    for replay in document["replay"].get("lengths", []):
        out.print(_replay(replay, document["replay"]["rows"]))
    for drafts in document.get("drafts", []):
        out.print(_drafts(drafts))
    if "decode" in document:
        _decode(document["decode"])
    if "compared" in document:
        table = columns("against the earlier result (above 1: slower now)", "line", "context", "ratio")
        for row in document["compared"]:
            table.add_row(row["name"], f"{row['seq']:,}", f"{row['ratio']:.2f}")
        out.print(table)


def _length(model: str, length: dict[str, Any]) -> Table:
    cycles = "step_cycles" in length
    names = ["module", "ms", "share"] + (["Mcycles"] if cycles else ["MB", "GB/s", "GFLOP/s", "floor ms"])
    table = columns(f"{model}, one step at {length['seq']:,} tokens of context: {length['step_ms']:.2f} ms", *names)
    for name, module in length["modules"].items():
        row = [name.replace("_", " "), _number(module["ms"], 3), f"{module['share']:.1%}"]
        if cycles:
            row.append(_number(module["cycles"] / 1e6, 3))
        else:
            size = module.get("bytes")
            row += [
                _number(None if size is None else size / 1e6),
                _number(module.get("gb_s")),
                _number(module.get("gflop_s")),
                _number(module.get("floor_ms"), 3),
            ]
        table.add_row(*row, style="bold")
        if len(module["parts"]) > 1:
            for part, ms in sorted(module["parts"].items(), key=lambda p: -p[1]):
                table.add_row(
                    f"  {part.replace('_', ' ')}", _number(ms, 3), f"{ms / length['step_ms']:.1%}", style="dim"
                )
    return table


def _replay(replay: dict[str, Any], rows: int) -> Table:
    measured = f"measured with every row replaying: {replay['measured_all_replayed']:.2f}x"
    table = columns(
        f"replay at {replay['seq']:,}: MLP {replay['mlp_share']:.0%} of a step, ceiling "
        f"{replay['ceiling']:.2f}x; TAS {replay['tas_ms']:.3f} ms",
        *("replayed", "rows alone", "in pairs", "together"),
        caption=f"expected for {rows} rows; {measured}",
    )
    for row in replay["expected"]:
        table.add_row(f"{row['ratio']:.1%}", *(f"{row[k]:.2f}x" for k in ("rows_alone", "in_pairs", "together")))
    return table


def _drafts(drafts: dict[str, Any]) -> Table:
    table = columns(
        f"drafts at {drafts['seq']:,}: passes of W tokens of a video, {drafts['kernels']}",
        *("W", "ms", "times one", "pay from", "beat replay from"),
        caption=f"share of right drafts; replay of {drafts['replay_ratio']:.0%}: {drafts['replay_speedup']:.2f}x",
    )
    for line in drafts["windows"]:
        shares = ["" if line["window"] == 1 else "never" if (a := line[k]) is None else f"{a:.0%}"
                  for k in ("pays_from", "beats_replay_from")]  # fmt: skip
        table.add_row(str(line["window"]), f"{line['ms']:.3f}", f"{line['cost']:.2f}", *shares)
    return table


def _decode(profile: dict[str, Any]) -> None:
    out = Results()
    replay = profile["replay"]
    table = columns(
        f"{profile['prompt']!r}, seed {profile['seed']}, tau {profile['tau']} (TAS: {profile['tas']}): "
        f"{replay['eligible_ratio']:.1%} of eligible MLPs replayed",
        *("layer", "replayed", "TAS 5 %", "median", "95 %", "above tau", "similarity"),
        caption="replayed: of all passes; TAS and similarity (cosine of MLP outputs a frame apart): of a dense run",
    )
    for i, percentiles in enumerate(profile["tas_percentiles"]):
        above = "" if profile["above_tau"] is None else f"{profile['above_tau'][i]:.0%}"
        similarity = profile["mlp_similarity"][i]
        table.add_row(
            str(i),
            f"{replay['by_layer'][i]:.1%}",
            *(f"{percentiles[k]:.2f}" for k in ("p5", "p50", "p95")),
            above,
            "" if similarity is None else f"{similarity:.3f}",
        )
    out.print(table)
    times = profile["times"]
    line = f"  decoding, a token a pass ({times['executor']}): {times['dense_s']:.2f} s dense"
    if "tau_s" in times:
        line += f", {times['tau_s']:.2f} s at tau {profile['tau']}, {times['speedup']:.2f} times as fast"
    out.print(line)
    out.print("  by frame: " + "  ".join(f"{i}: {r:.1%}" for i, r in enumerate(replay["by_frame"])))
    if profile["warning"]:
        note(console(), profile["warning"], "warning")
