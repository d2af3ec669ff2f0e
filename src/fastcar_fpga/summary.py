"""The report of a run on an accelerator: compared with dense decoding, static mapping and the ideal, and its energy.

Energy is `constant` (board power times time), or `activity` (operations and bytes times their energy, and idle power).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.system.files import csv_of, make_folder, write_whole
from fastcar_fpga.decisions import Decisions, Windows
from fastcar_fpga.device import constants, share
from fastcar_fpga.emulator import Emulator, RunResult
from fastcar_fpga.layer import START, Registers, Row
from fastcar_fpga.preset import Preset
from fastcar_fpga.workload import workload_of


@dataclass(frozen=True)
class EnergyReport:
    """Joules. by_component sums the activity of each component and the background; by_level the memories."""

    constant: float
    activity: float
    by_component: dict[str, float]
    by_level: dict[str, float]


def energy_of(result: RunResult, preset: Preset) -> EnergyReport:
    """Energy of a run under both models."""
    energy, byte, power = preset.energy, 8 * preset.bank.energy.value, preset.card.power
    seconds = result.cycles * preset.seconds_per_cycle
    prices = {"hbm_weights": byte, "hbm_kv": byte, "buffer": energy.buffer.value}
    prices |= {"mac": energy.mac.value, "vector": energy.vector.value}
    levels, components = dict.fromkeys(prices, 0.0), {}
    for name, t in result.components.items():
        counts = (t.weight_bytes, t.kv_bytes, t.buffer_bytes, t.macs, t.vector_elements)
        parts = {level: count * prices[level] * 1e-12 for level, count in zip(prices, counts, strict=True)}
        components[name] = sum(parts.values())
        levels = {level: joules + parts[level] for level, joules in levels.items()}
    components["background"] = levels["background"] = power.idle.value * seconds
    return EnergyReport(power.board.value * seconds, sum(components.values()), components, levels)


@dataclass(frozen=True)
class Comparison:
    """The same decisions under DRS, static mapping and the ideal schedule, and other runs to compare them with."""

    emulator: Emulator
    computing: NDArray[np.bool_]  # [layers, slots, passes], the slots that compute
    tokens: NDArray[np.int64]  # the input tokens there [slots, passes], -1 in empty slots
    drs: RunResult
    static: RunResult
    ideal: RunResult
    dense: RunResult  # every row computed, one token per pass (static)
    replay: RunResult  # the decisions with one token per pass (DRS)
    drafts: RunResult  # every row computed in the passes that ran (static)

    def per_token(self) -> dict[str, dict[str, float]]:
        """The cost of a final token of every video, with one token per pass and in the passes that ran."""
        kinds = {"dense": self.dense, "replay": self.replay, "drafts": self.drafts, "both": self.drs}
        steps, costs = self.emulator.work.steps, {}
        for kind, result in kinds.items():
            energy = energy_of(result, self.emulator.preset)
            whole = {"cycles": result.cycles, "energy_j": energy.constant, "energy_activity_j": energy.activity}
            costs[kind] = {name: value / steps for name, value in whole.items()}
        return costs

    def to_dict(self) -> dict[str, Any]:
        """The `backend` part of a report (docs/json.md), with more keys."""
        preset, work, result = self.emulator.preset, self.emulator.work, self.drs
        seconds = result.cycles * preset.seconds_per_cycle
        energy = energy_of(result, preset)
        by_core = [float(b) / result.cycles for b in result.by_core]
        drs = result.components["drs"].cycles
        return {
            "name": "fpga-sim",
            "preset": preset.name,
            "cycles": result.cycles,
            "latency_s": seconds,
            "first_token_s": self.emulator.prefill() * preset.seconds_per_cycle,
            "energy_j": energy.constant,
            "energy_activity_j": energy.activity,
            "energy_per_token_j": energy.constant / work.steps,
            "power_w": energy.constant / seconds,
            "power_activity_w": energy.activity / seconds,
            "cores": preset.cores,
            "rows": work.rows,
            "passes": self.tokens.shape[1],
            "window": len(self.tokens) // work.rows,
            "per_token": self.per_token(),
            "utilisation": sum(by_core) / len(by_core),
            "utilisation_by_core": by_core,
            "drs_cycles": round(drs),
            "drs_share": drs / result.cycles,
            "speedup_vs_dense": self.dense.cycles / result.cycles,
            "speedup_vs_static": self.static.cycles / result.cycles,
            "ideal_speedup_vs_dense": self.dense.cycles / self.ideal.cycles,
            "replay_ratio": result.replay_ratio,
            "cycles_by_component": {k: round(t.cycles) for k, t in result.components.items()},
            "energy": {f"{name}_j": joules for name, joules in asdict(energy).items()},
        }


def compare(emulator: Emulator, replayed: NDArray[np.bool_], windows: Windows | None = None) -> Comparison:
    """Emulate decisions [layers, rows, T*N - 1] under every scheduler, in passes of one token or in `windows`."""
    replay, dense = emulator.run(replayed), emulator.run(replayed, "static", dense=True)
    if windows is None:
        slots, tokens = replayed, np.broadcast_to(np.arange(replayed.shape[2]), replayed.shape[1:])
    else:
        slots, tokens = windows.slots, windows.tokens
    return Comparison(
        emulator,
        (tokens >= 0) & ~slots,
        tokens,
        emulator.run(slots, tokens=tokens) if windows else replay,
        emulator.run(slots, "static", tokens=tokens),
        emulator.run(slots, "ideal", tokens=tokens),
        dense,
        replay,
        emulator.run(slots, "static", dense=True, tokens=tokens) if windows else dense,
    )


def emulate(preset: Preset, saved: Decisions) -> Comparison:
    """Saved decisions on an accelerator. Raises RequestError if model or passes do not fit it."""
    lengths = {"frames": saved.frames, "prompt": saved.prompt}
    work = workload_of(saved.spec, rows=saved.replayed.shape[1], window=saved.window, sinks=saved.sinks, **lengths)
    return compare(Emulator(preset, work), saved.replayed, saved.fitting().windows)


def write_csvs(folder: Path, comparison: Comparison) -> None:
    """Write compute.csv, bandwidth.csv and energy.csv. Raises RequestError or RunError for what can't be written."""
    preset, result = comparison.emulator.preset, comparison.drs
    compute: list[tuple[Any, ...]] = []
    energies: list[tuple[Any, ...]] = []
    for scheduler in ("drs", "static", "ideal", "dense"):
        run: RunResult = getattr(comparison, scheduler)
        for name, t in run.components.items():
            seconds = t.cycles * preset.seconds_per_cycle
            compute.append((scheduler, name, round(t.cycles), seconds, round(t.macs), round(t.vector_elements)))
        energy = energy_of(run, preset)
        energies += [(scheduler, "activity", "component", *item) for item in energy.by_component.items()]
        energies += [(scheduler, "activity", "level", *item) for item in energy.by_level.items()]
        energies.append((scheduler, "constant", "all", "board", energy.constant))
    reached = result.layer_bytes / (result.layer_cycles * preset.seconds_per_cycle) / 1e9
    bandwidth = [
        (i, round(float(b)), round(float(c)), float(g), float(g) / preset.peak)
        for i, (b, c, g) in enumerate(zip(result.layer_bytes, result.layer_cycles, reached, strict=True))
    ]
    make_folder(folder)
    for file, header, rows in (
        ("compute.csv", "scheduler component cycles time_s macs vector_elements", compute),
        ("bandwidth.csv", "layer hbm_bytes cycles hbm_GB_per_s share_of_peak_1", bandwidth),
        ("energy.csv", "scheduler model kind name energy_J", energies),
    ):
        write_whole(folder / file, csv_of(header.split(), rows))


def _course(row: Row) -> str:
    passed = f"in cycles [{row.first:,}, {row.last:,})"
    if row.core is None:
        return f"dropped {passed}"
    return f"sent {passed} to core {row.core}, which runs it in cycles [{row.begin:,}, {row.end:,})"


def explain(comparison: Comparison) -> list[str]:
    """Lines that derive the cycles and joules of one layer at mid-run, with the mean numbers of rows of a pass."""
    rows = round(float((comparison.tokens >= 0).sum(0).mean()))
    return explain_layer(comparison.emulator, round(float(comparison.computing.sum(1).mean())), rows)


def explain_layer(emulator: Emulator, computing: int, rows: int | None = None) -> list[str]:
    """Lines that derive the cycles and joules of one layer at mid-run with this many computing rows of `rows`."""
    preset, work, rates = emulator.preset, emulator.work, emulator.rates
    mlp, c, rows = emulator.mlp, preset.cores, rows or work.rows
    step, rounds, accelerator = work.steps // 2, -(-computing // c), emulator.accelerator
    context, mlp_cycles = work.context(step), accelerator.rounds(rounds)
    attention = float(emulator.attention(np.full((rows, 1), context))[0])
    projections, chain = emulator.all_rows(emulator.projections, rows), -(-rows // c) * emulator.chain
    kv_bytes = context * 2 * work.kv_width * preset.format.kv_bits // 8
    mlp_ms = mlp_cycles * preset.seconds_per_cycle * 1e3
    ran, total = accelerator.layer((1 << computing) - 1, rows)
    layer, macs = total + projections + attention + chain, computing * mlp.macs
    prices, hbm, power, bit = preset.energy, preset.hbm, preset.card.power, preset.bank.energy.value
    weight_bytes = (rounds if emulator.shared else computing) * emulator.weight_bytes(mlp)
    loads, buffered = sum(i.op == "load" for i in mlp.instructions), computing * mlp.weight_bytes
    lines = [
        f"{preset.name}: {preset.title}",
        f"clock {preset.clock.value:g} MHz, {c} cores; {computing} of {rows} rows compute MLPs in decode step {step}",
        "",
        f"MACs per cycle and core = array {preset.core.mac_array.value:g} x utilisation "
        f"{preset.core.utilisation.value:g} = {rates.macs:g}",
        f"memory bytes per cycle = {hbm.channels.value:g} channels of {preset.part.name} x {preset.part.peak:g} GB/s x "
        f"{share(preset.stream()):.1%} (limited by memory timing and {hbm.ports.value:g} ports x {hbm.beat.value:g} "
        f"bytes x {hbm.port_clock.value:g} MHz) / clock = {preset.rate():.1f}; the {rates.burst} bytes of a request "
        f"arrive {rates.latency} cycles after the request",
        f"MLP weights = 3 x {work.width} x {work.mlp_width} = {mlp.macs:,}, each with one MAC per row; "
        f"{preset.format.stored_bits:g} bits each = {mlp.weight_bytes:,} bytes, in {loads} tiles of at most "
        f"{preset.tile_bytes:,} bytes",
        f"a row's MLP on one core: multiply {mlp.macs:,} / {rates.macs:g} = {mlp.macs / rates.macs:,.0f} cycles, load "
        f"{mlp.weight_bytes / rates.bytes:,.0f} cycles; both at once (double-buffered): {accelerator.row:,} cycles",
        f"DRS deals {computing} rows round-robin to {c} cores: ceil({computing} / {c}) = {rounds} rounds "
        f"(DRS stores a row's core in {Registers(c).mapping_bits} bits)",
        f"weights ({hbm.weights}): "
        + ("read once per round" if emulator.shared else "read by each core from its share of the channels"),
        f"MLP = {rounds} rounds x (start {START} + row {accelerator.row:,}) = {mlp_cycles:,} cycles",
        f"DRS: start {START} + remap {accelerator.remap} cycles; then {accelerator.packet} cycles per row sent "
        f"({mlp.words} words) and {accelerator.drop} cycles per row dropped (fetch: {preset.drs.fetch}); meanwhile "
        f"cores run rows, and DRS waits while the queue of the next core ({accelerator.queue} packets) is full",
        *(f"  row {r.row}: {_course(r)}" for r in ran),
        f"MLP and DRS together take {total:,} cycles, so DRS adds {total - mlp_cycles:,} cycles",
        f"projections of all rows: {work.projection_weights:,} weights in ceil({rows} / {c}) rounds = "
        f"{projections:,.0f} cycles",
        f"attention without projections: a row needs {context:,} keys x 2 x {work.width} MACs and {kv_bytes:,} bytes "
        f"of keys and values; a core loads one tile while it computes another; ceil({rows} / {c}) rounds take "
        f"{attention:,.0f} cycles",
        *([f"steps of the layer in which no weights are read (chain) = {chain:,} cycles"] if chain else []),
        f"layer = {layer:,.0f} cycles = {layer * preset.seconds_per_cycle * 1e3:.3f} ms",
        *("", "energy of the MLP by the energy model `activity`, the sum of these four lines:"),
        f"  memory {weight_bytes:,.0f} bytes x 8 x {bit:g} pJ = {weight_bytes * 8 * bit * 1e-9:.4f} mJ",
        f"  MACs {macs:,} x {prices.mac.value:g} pJ = {macs * prices.mac.value * 1e-9:.4f} mJ",
        f"  buffer 2 x {buffered:,} bytes x {prices.buffer.value:g} pJ = "
        f"{2 * buffered * prices.buffer.value * 1e-9:.4f} mJ",
        f"  idle {power.idle.value:g} W x {mlp_ms:.3f} ms = {power.idle.value * mlp_ms:.4f} mJ",
        f"energy of the MLP by the energy model `constant`: board power {power.board.value:g} W x {mlp_ms:.3f} ms = "
        f"{power.board.value * mlp_ms:.4f} mJ",
        *("", "constants (kind: source):"),
    ]
    known = constants(preset) | constants(preset.bank, "device.") | constants(power, "device.")
    return lines + [f"  {k} = {v.value:g} {v.unit}  ({v.kind}: {v.source})" for k, v in known.items()]
