"""Files about a run on an accelerator: CSVs, a timeline for Perfetto, charts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.errors import RunError
from fastcar_cli.system.extras import pyplot
from fastcar_cli.system.files import csv_of, make_folder, write_whole
from fastcar_fpga.summary import Comparison, energy_of
from fastcar_fpga.timing import spans


def write_report(folder: Path, comparison: Comparison) -> list[Path]:
    """Write compute.csv, bandwidth.csv, energy.csv, timeline.json and two charts; returns their paths.

    Raises RunError where a file can't be written.
    """
    make_folder(folder)
    try:
        files = [
            _csv(folder / "compute.csv", *_compute(comparison)),
            _csv(folder / "bandwidth.csv", *_bandwidth(comparison)),
            _csv(folder / "energy.csv", *_energy(comparison)),
            _timeline(folder / "timeline.json", comparison),
        ]
        return files + _charts(folder, comparison)
    except OSError as e:
        raise RunError(f"{e.filename or folder} could not be written: {e.strerror}") from None


def _csv(file: Path, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> Path:
    write_whole(file, csv_of(header, rows))
    return file


def _compute(comparison: Comparison) -> tuple[list[str], list[list[Any]]]:
    seconds = comparison.emulator.preset.seconds_per_cycle
    rows = []
    for name, result in comparison.results():
        for component, t in result.components.items():
            rows.append([name, component, round(t.cycles), t.cycles * seconds, round(t.macs), round(t.vector_elements)])
    return ["scheduler", "component", "cycles", "time_s", "macs", "vector_elements"], rows


def _bandwidth(comparison: Comparison) -> tuple[list[str], list[list[Any]]]:
    preset, result = comparison.emulator.preset, comparison.drs
    reached = result.layer_bytes / (result.layer_cycles * preset.seconds_per_cycle) / 1e9
    rows = [
        [i, round(float(b)), round(float(c)), float(g), float(g) / preset.peak]
        for i, (b, c, g) in enumerate(zip(result.layer_bytes, result.layer_cycles, reached, strict=True))
    ]
    return ["layer", "hbm_bytes", "cycles", "hbm_GB_per_s", "share_of_peak_1"], rows


def _energy(comparison: Comparison) -> tuple[list[str], list[list[Any]]]:
    rows: list[list[Any]] = []
    for name, result in comparison.results():
        energy = energy_of(result, comparison.emulator.preset)
        rows += [[name, "activity", "component", k, v] for k, v in energy.by_component.items()]
        rows += [[name, "activity", "level", k, v] for k, v in energy.by_level.items()]
        rows.append([name, "constant", "all", "board", energy.constant])
    return ["scheduler", "model", "kind", "name", "energy_J"], rows


def _timeline(file: Path, comparison: Comparison) -> Path:
    """Chrome trace events (microseconds): one step of all layers by row, and layer 0's MLP by instruction."""
    emulator, preset = comparison.emulator, comparison.emulator.preset
    work, c = emulator.work, preset.cores
    micro = preset.seconds_per_cycle * 1e6
    # The step whose number of computing rows varies most between layers.
    step = int(comparison.computing.sum(1).std(0).argmax())
    tokens = comparison.tokens[:, step : step + 1]
    slots = int((tokens >= 0).sum())
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"{preset.name}: step {step}, all layers"}},
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": f"step {step}, layer 0, MLP by instruction"}},
    ]
    events += [
        {"ph": "M", "pid": 0, "tid": core, "name": "thread_name", "args": {"name": f"core {core}"}} for core in range(c)
    ]

    def span(pid: int, tid: int, name: str, begin: float, length: float, **arguments: Any) -> None:
        event = {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": begin * micro, "dur": length * micro}
        events.append({**event, "args": arguments})

    projections = emulator.all_rows(emulator.projections, slots)
    attention = float(emulator.attention(np.where(tokens < 0, 0, work.contexts(tokens)))[0])
    now = 0.0
    for layer in range(work.layers):
        for core in range(min(c, slots)):
            span(0, core, "projections", now, projections, layer=layer)
            span(0, core, "attention", now + projections, attention, layer=layer)
        now += projections + attention
        rows, length = emulator.accelerator.layer(_word(comparison.computing[layer, :, step]), slots)
        for row in rows:
            what = "drop" if row.core is None else "dispatch"
            span(0, c, f"{what} row {row.row}", now + row.first, row.last - row.first, layer=layer, row=row.row)
            if row.core is not None and row.begin is not None and row.end is not None:
                span(0, row.core, f"MLP row {row.row}", now + row.begin, row.end - row.begin, layer=layer, row=row.row)
        now += length
    events.append({"ph": "M", "pid": 0, "tid": c, "name": "thread_name", "args": {"name": "DRS"}})
    units = {"memory": 0, "mac": 1, "vector": 2}
    for row in emulator.accelerator.layer(_word(comparison.computing[0, :, step]), slots)[0]:
        if row.core is not None and row.begin is not None:
            for s in spans(emulator.mlp, emulator.rates):
                span(1, 3 * row.core + units[s.unit], s.op, row.begin + s.begin, s.end - s.begin, row=row.row)
    for core in range(c):
        for unit, i in units.items():
            name = {"name": f"core {core} {unit}"}
            events.append({"ph": "M", "pid": 1, "tid": 3 * core + i, "name": "thread_name", "args": name})
    file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}), encoding="utf-8")
    return file


def _word(computing: NDArray[np.bool_]) -> int:
    """The Index Register for these rows [rows]."""
    return sum(1 << int(row) for row in np.flatnonzero(computing))


def _charts(folder: Path, comparison: Comparison) -> list[Path]:
    plt = pyplot("a report")

    preset, work = comparison.emulator.preset, comparison.emulator.work
    milliseconds = preset.seconds_per_cycle * 1e3
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    computing = comparison.computing.sum(1)
    per_core = (computing[..., None] - np.arange(preset.cores) + preset.cores - 1) // preset.cores
    busy = per_core.sum(0) * comparison.emulator.mlp.macs / comparison.emulator.rates.macs * milliseconds
    window = max(1, len(busy) // 200)
    for core in range(preset.cores):
        smooth = np.convolve(busy[:, core], np.ones(window) / window, "valid")
        axes.plot(np.arange(len(smooth)) + window / 2, smooth, label=f"core {core}", linewidth=1)
    for frame in range(1, work.frames):
        begin = np.searchsorted(comparison.tokens[0], frame * work.tokens_per_frame)
        axes.axvline(begin, color="0.85", linewidth=0.8, zorder=0)
    axes.set(xlabel="decode pass (lines: frames)", ylabel="MLP time of a core (ms a pass)", ylim=(0, None))
    # A name is not mathematics, whatever dollars it holds.
    axes.set_title(f"{preset.name}: MLP work by core, {comparison.drs.replay_ratio:.1%} replayed", parse_math=False)
    axes.legend(frameon=False, ncols=4)
    cores = folder / "cores.png"
    figure.savefig(cores, dpi=120)
    plt.close(figure)
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    bottom = np.zeros(3)
    results = (comparison.dense, comparison.static, comparison.drs)
    energies = [energy_of(r, preset).by_component for r in results]
    for name in energies[0]:
        values = np.array([e[name] for e in energies])
        axes.bar(["dense", "replay, static", "replay, DRS"], values, bottom=bottom, label=name, width=0.6)
        bottom += values
    axes.set_ylabel("energy by activity (J)")
    axes.set_title(f"{preset.name}: energy by component", parse_math=False)
    axes.legend(frameon=False)
    energy = folder / "energy.png"
    figure.savefig(energy, dpi=120)
    plt.close(figure)
    return [cores, energy]
