"""What the check of a GPU has found, as a page, against what is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastcar_cli.weights.formats import PACKED

GPT_FAST = "gpt-fast, LLaMA-7B in bfloat16, one row, A100 80 GB: 104.9 tokens/s, 1,397 GB/s"
"""What its README reports (pytorch-labs/gpt-fast, Nov 2023): 68 % of the card's 2,039 GB/s."""


def bars(result: dict[str, Any]) -> list[tuple[str, float, bool]]:
    """What dense passes of two rows reach against what is wanted: a sentence, the value, and whether it is enough."""
    suffix, reached, one = ", passes of 2 rows", [], {}
    for part, outcome in result["parts"].items():
        if not part.endswith(suffix) or "lines" not in outcome:
            continue
        name, _, dtype = part.removesuffix(suffix).rpartition(" in ")
        dense = {line["window"]: line for line in outcome["lines"] if not line["replayed"]}
        one[name, dtype] = dense[1]["ms"]
        if dtype not in PACKED:
            share = dense[1]["of_bandwidth"]
            reached.append((f"{name} in {dtype}: share of the bandwidth, at least 0.6", share, share >= 0.6))
        else:
            floats = [ms for (other, form), ms in one.items() if other == name and form not in PACKED]
            times, least = sum(floats) / dense[1]["ms"], {"int4": 2.0}.get(dtype, 1.0)
            reached.append((f"{name}: {dtype} over floats, at least {least:g}", times, times >= least))
        if 16 in dense:
            times = dense[16]["times"]
            reached.append((f"{name} in {dtype}: 16 tokens over one, at most 1.3", times, times <= 1.3))
    return reached


def _drafts_table(lines: Sequence[dict[str, Any]]) -> list[str]:
    rows = [
        "| window | tokens a pass | ms a token | times as fast | videos equal | codes that differ |",
        "|---" * 6 + "|",
    ]
    for line in lines:
        cells = [str(line["window"]), f"{line['tokens_per_pass']:.2f}", f"{line['ms']:.3f}", f"{line['times']:.2f}"]
        cells += [str(line["equal"]), f"{line['differing']:.1%}"]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def page(result: dict[str, Any]) -> str:
    """The result as a page of Markdown."""
    machine, parts = result["machine"], result["parts"]
    lines = [
        f"# GPU check: {machine['device']}",
        "",
        f"torch {machine['torch']}, Python {machine['python']}, commit {result['commit'] or 'unknown'}; memory gives "
        f"{result['bandwidth_gb_s']:.0f} GB/s. To compare: {GPT_FAST}.",
        "",
        "| part | result | seconds |",
        "|---|---|---|",
    ]
    words = {True: "passed", False: "failed", None: "not run"}
    for name, outcome in parts.items():
        why = outcome.get("why") or outcome.get("summary")
        if "decode_s" in outcome:
            why = f"{outcome['tokens']} tokens of {outcome['layers']} layers in {outcome['decode_s']:.2f} s"
            why += f" and {outcome['passes']} passes"
            why += f", pixels in {outcome['pixels_s']:.2f} s"
        elif "ms" in outcome:
            why = f"{outcome['ms']:.3f} ms a pass of {outcome['layers']} layers"
        lines.append(f"| {name} | {words[outcome['ok']]}{': ' + why if why else ''} | {outcome['seconds']:.1f} |")
    if reached := bars(result):
        lines += ["", "| two rows | reached | |", "|---|---|---|"]
        lines += [f"| {text} | {value:.2f} | {'yes' if enough else 'no'} |" for text, value, enough in reached]
    for name, outcome in parts.items():
        if "videos" in outcome:
            lines += ["", f"## {name}, {outcome['videos']} videos", "", *_drafts_table(outcome["lines"])]
        if "layers" not in outcome or "lines" not in outcome:
            continue
        lines += [
            "",
            f"## {name}, {outcome['layers']} layers",
            "",
            "| tokens | | ms | times one token | GB/s | of bandwidth |",
            "|---|---|---|---|---|---|",
        ]
        for line in outcome["lines"]:
            cells = [str(line["window"]), "replayed" if line["replayed"] else "dense", f"{line['ms']:.3f}"]
            cells += [f"{line['times']:.2f}", f"{line['gb_s']:.0f}", f"{line['of_bandwidth']:.0%}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
