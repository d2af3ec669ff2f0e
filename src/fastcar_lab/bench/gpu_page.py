"""What the check of a GPU has found, as a page, against what is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastcar_cli.weights.formats import PACKED
from fastcar_lab.common import markdown

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
    names = ["window", "tokens a pass", "ms a token", "times as fast", "videos equal", "codes that differ"]
    return markdown(names, (
        (x["window"], f"{x['tokens_per_pass']:.2f}", f"{x['ms']:.3f}", f"{x['times']:.2f}", x["equal"],
         f"{x['differing']:.1%}")
        for x in lines
    ))  # fmt: skip


def page(result: dict[str, Any]) -> str:
    """The result as a page of Markdown."""
    machine, parts = result["machine"], result["parts"]
    lines = [
        f"# GPU check: {machine['device']}",
        "",
        f"torch {machine['torch']}, Python {machine['python']}, commit {result['commit'] or 'unknown'}; memory gives "
        f"{result['bandwidth_gb_s']:.0f} GB/s. To compare: {GPT_FAST}.",
        "",
    ]
    results = []
    words = {True: "passed", False: "failed", None: "not run"}
    for name, outcome in parts.items():
        why = outcome.get("why") or outcome.get("summary")
        if "decode_s" in outcome:
            why = f"{outcome['tokens']} tokens of {outcome['layers']} layers in {outcome['decode_s']:.2f} s"
            why += f" and {outcome['passes']} passes"
            why += f", pixels in {outcome['pixels_s']:.2f} s"
        elif "ms" in outcome:
            why = f"{outcome['ms']:.3f} ms a pass of {outcome['layers']} layers"
        results.append((name, f"{words[outcome['ok']]}{': ' + why if why else ''}", f"{outcome['seconds']:.1f}"))
    lines += markdown(["part", "result", "seconds"], results)
    if reached := bars(result):
        cells = ((text, f"{value:.2f}", "yes" if enough else "no") for text, value, enough in reached)
        lines += ["", *markdown(["two rows", "reached", ""], cells)]
    for name, outcome in parts.items():
        if "videos" in outcome:
            lines += ["", f"## {name}, {outcome['videos']} videos", "", *_drafts_table(outcome["lines"])]
        if "layers" not in outcome or "lines" not in outcome:
            continue
        passes = (
            (x["window"], "replayed" if x["replayed"] else "dense", f"{x['ms']:.3f}", f"{x['times']:.2f}",
             f"{x['gb_s']:.0f}", f"{x['of_bandwidth']:.0%}")
            for x in outcome["lines"]
        )  # fmt: skip
        names = ["tokens", "", "ms", "times one token", "GB/s", "of bandwidth"]
        lines += ["", f"## {name}, {outcome['layers']} layers", "", *markdown(names, passes)]
    return "\n".join(lines) + "\n"
