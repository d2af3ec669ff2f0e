"""Decisions of a study's runs on the emulated accelerator, at the size of the 7B model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.models.vila_u.checkpoint import full_spec
from fastcar_fpga.decisions import Decisions
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.layer import INDEX_BITS
from fastcar_fpga.preset import load_preset
from fastcar_fpga.summary import compare
from fastcar_fpga.workload import Workload, workload_of
from fastcar_lab.claims.study import MAIN, Study

PRESETS = ("paper-u280", "u280-int8")
BATCH_PRESETS = ("paper-u280", "u55c-int8")  # the same with room for the keys of ROWS rows
ROWS = 12  # rows of a batch at least, so that the cores of these presets have rows to share
PROMPT = 12  # tokens before the first visual one
Bits = NDArray[np.bool_]


def workload(study: Study, rows: int, window: int | None) -> Workload:
    """The 7B model with this model's frames and tokens a frame, which its decisions are of."""
    work = workload_of(full_spec(), rows=rows, frames=study.pipe.frames, prompt=PROMPT, window=window)
    return replace(work, tokens_per_frame=study.frame)


def stretched(bits: Bits, layers: int) -> Bits:
    """Decisions of a model with fewer layers for `layers` of them: each stands for as many in its place."""
    return bits[np.arange(layers) * len(bits) // layers]


def per_token(study: Study, decided: Decisions) -> dict[str, dict[str, dict[str, float]]]:
    """What a final token costs at the 7B model's size, by preset: see `Comparison.per_token`."""
    work, windows = workload(study, decided.replayed.shape[1], None), decided.fitting().windows
    if windows is not None:
        windows = replace(windows, replayed=stretched(windows.replayed, work.layers))
    bits = stretched(decided.replayed, work.layers)
    return {p: compare(Emulator(load_preset(p), work), bits, windows).per_token() for p in PRESETS}


def batches(study: Study, cells: Sequence[dict[str, Any]], folder: str = MAIN) -> dict[str, Bits]:
    """Decisions [layers, rows, passes] of videos decoded side by side, by the prompts that share a batch. Videos join
    in their order until a batch has ROWS rows; what is left joins the last one. Guided rows keep their pairs:
    conditional rows first.
    """
    groups: list[list[tuple[str, Bits]]] = [[]]
    for cell in cells:
        bits = study.tokens(cell, folder)["replayed"]
        if sum(b.shape[1] for _, b in groups[-1]) >= ROWS:
            groups.append([])
        groups[-1].append((cell["prompt"], bits))
    if len(groups) > 1 and sum(b.shape[1] for _, b in groups[-1]) < ROWS:
        last = groups.pop()
        if sum(b.shape[1] for _, b in groups[-1] + last) <= INDEX_BITS:
            groups[-1] += last
    joined = {}
    for group in groups:
        halves = [np.array_split(bits, 2, axis=1) if bits.shape[1] == 2 else [bits] for _, bits in group]
        rows = [h[part] for part in range(len(halves[0])) for h in halves]
        joined[" | ".join(dict.fromkeys(p for p, _ in group))] = np.concatenate(rows, 1)
    return joined


def latency(study: Study, preset: str, bits: Bits, window: int | None = None, *, dense: bool = False) -> float:
    """Seconds under dynamic scheduling, or with every row computed (static mapping)."""
    chosen, work = load_preset(preset), workload(study, bits.shape[1], window)
    emulator, bits = Emulator(chosen, work), stretched(bits, work.layers)
    result = emulator.run(bits, "static", dense=True) if dense else emulator.run(bits, "drs")
    return float(result.cycles * chosen.seconds_per_cycle)


def independent(bits: Bits, frame: int, seed: int = 0) -> Bits:
    """Decisions drawn at the same ratio in every layer and frame, rows and places independent."""
    rng, drawn = np.random.default_rng(seed), np.zeros_like(bits)
    for begin in range(frame, bits.shape[2], frame):
        part = bits[:, :, begin : begin + frame]
        rate = part.mean((1, 2), keepdims=True)
        drawn[:, :, begin : begin + frame] = rng.random(part.shape) < rate
    return drawn
