"""The speed table of the README: one run, on one machine, with the kernels of every instruction set it has."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any

import torch

from fastcar_cli import Pipeline
from fastcar_cli.kernels import native
from fastcar_lab.bench import measure, window
from fastcar_lab.bench.cases import Benchmark
from fastcar_lab.bench.rival import Rival
from fastcar_lab.common import commit, markdown

VARIABLE = "FASTCAR_KERNELS_ISA"
SETS = {
    "avx2+fma": "AVX2",
    "avx2+vnni": "AVX2 VNNI",
    "avx512": "AVX-512",
    "avx512vnni": "AVX-512 VNNI",
    "zen5": "AVX-512 VNNI",
    "neon": "NEON",
}
PROMPTS = {
    "mini": "a red ball rolling to the right on the grass",
    "table": "a red ball rolls to the right",
    "table-dense": "a red ball rolls to the right",
}
WINDOWS = (1, 8)


@contextmanager
def _instructions(name: str) -> Iterator[None]:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        os.environ.pop(VARIABLE) if before is None else os.environ.update({VARIABLE: before})


def sets() -> list[str]:
    """The instruction sets of this processor that the table has: the best one, and AVX2."""
    names = native.instruction_sets()
    return [*names[:1], *(name for name in ("avx2+fma",) if name in names[1:])]


def _videos(models: Sequence[str], seeds: int) -> dict[str, dict[str, Any]]:
    """Of each model: seconds to decode a video densely, and how much faster drafts, replay at tau -2 and both are, the
    median of pairs with one seed.
    """
    ways: dict[str, dict[str, Any]] = {
        "dense": {"draft": "off"},
        "drafts": {"draft": "auto"},
        "replay": {"draft": "off", "tau": "-2"},
        "both": {"draft": "auto", "tau": "-2"},
    }
    by_model = {}
    for model in models:
        pipes = {way: Pipeline.from_pretrained(model, **options) for way, options in ways.items()}
        times: dict[str, list[float]] = {way: [] for way in ways}
        for seed in range(seeds):
            for way, pipe in pipes.items():
                times[way].append(pipe(PROMPTS[model], seed).report["timing"]["decode_s"])
        ratios = {
            way: statistics.median(dense / other for dense, other in zip(times["dense"], times[way], strict=True))
            for way in ways
            if way != "dense"
        }
        by_model[model] = {"dense_s": statistics.median(times["dense"]), "faster": ratios}
    return by_model


def run(
    rivals: tuple[Rival, ...], turns: int, models: Sequence[str], on_part: Callable[[str], None] = lambda name: None
) -> dict[str, Any]:
    """Time everything with each of `sets`. Returns machine, commit, date, and by instruction set the documents of
    `measure` (of `mini`) and `window` (two layers of VILA-U 7B, one row), and `videos`.
    """
    by_set: dict[str, Any] = {}
    for name in sets():
        with _instructions(name):
            on_part(f"{name}: passes of mini")
            mini = Benchmark("mini", 6, 300, 1, 48, turns, compiled=False)
            one = measure.measure(mini)
            on_part(f"{name}: passes of layers of VILA-U 7B")
            layers = Benchmark("vila-u-7b", 2, 512, 1, 3, turns, compiled=False, rivals=rivals)
            several = window.measure(layers, WINDOWS)
            on_part(f"{name}: videos")
            by_set[name] = {"mini": one, "layers": several, "videos": _videos(models, turns)}
    machine = next(iter(by_set.values()))["mini"]["machine"]
    return {"machine": machine, "threads": torch.get_num_threads(), "commit": commit(), "date": f"{date.today()}"} | {
        "sets": by_set
    }


def table(result: dict[str, Any]) -> str:
    """A result as JSON has it, as two Markdown tables: passes by instruction set, and videos."""
    sets = result["sets"]
    names = [f"on {result['threads']} CPU cores", *(SETS.get(name, name) for name in sets)]
    rows: dict[str, list[str]] = {}
    videos = []

    def cell(row: str, text: str) -> None:
        rows.setdefault(row, []).append(text)

    for title, measured in zip(names[1:], sets.values(), strict=True):
        by = measured["mini"]["lines"]
        theirs, ours = by["float32/transformers eager"]["ms"], by["float32/native/dense"]["ms"]
        cell("pass of `mini` in float32, transformers' `LlamaModel`", f"{theirs:.2f} ms")
        cell("pass of `mini` in float32, fastcar", f"{ours:.2f} ms ({theirs / ours:.1f} x)")
        cell("pass of `mini` in float32, fastcar, all MLPs replayed", f"{by['float32/native/joint 1']['ms']:.2f} ms")
        passes = measured["layers"]["lines"]
        for tokens in WINDOWS:
            part = f"{tokens} token{'s' * (tokens > 1)} through two int4 layers of VILA-U 7B"
            own = passes["int4"][str(tokens)]["ms"]
            rivals = {name: by[str(tokens)]["ms"] for name, by in passes.items() if name.endswith(("Q4_0", "IQ4_XS"))}
            text = f"{own:.1f} ms"
            if rivals:
                best = min(rivals, key=lambda name: rivals[name])
                cell(f"{part}, fastest rival", f"{best}: {rivals[best]:.1f} ms")
                text += f" ({rivals[best] / own:.2f} x)"
            cell(f"{part}, fastcar", text)
        for model, video in measured["videos"].items():
            faster = (f"{video['faster'][way]:.2f} x" for way in ("drafts", "replay", "both"))
            videos.append([f"`{model}`, {title}", f"{video['dense_s']:.2f} s", *faster])
    ways = ["one video of", "dense decoding", "speedup with drafts", "with replay at tau -2", "with both"]
    tables = markdown(names, ([row, *cells] for row, cells in rows.items())), markdown(ways, videos)
    return "\n\n".join("\n".join(lines) for lines in tables) + "\n"
