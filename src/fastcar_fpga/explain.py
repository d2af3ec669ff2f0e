"""The terms behind one layer's cycles and joules, in words and numbers."""

from __future__ import annotations

import numpy as np

from fastcar_fpga.constants import constants
from fastcar_fpga.drs import Drs
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.layer import START, Row
from fastcar_fpga.memory import share


def explain(emulator: Emulator, computing: int, rows: int | None = None) -> list[str]:
    """Lines that derive one layer at mid-run with this many computing rows, and its energy.

    rows: rows of the layer, where a pass has other ones than the batch, an input token each.
    """
    preset, work, rates = emulator.preset, emulator.work, emulator.rates
    mlp, c, rows = emulator.mlp, preset.cores, rows or work.rows
    step = work.steps // 2
    context = work.context(step)
    rounds = -(-computing // c)
    accelerator = emulator.accelerator
    attention = float(emulator.attention(np.full((rows, 1), context))[0])
    projections, chain = emulator.all_rows(emulator.projections, rows), -(-rows // c) * emulator.chain
    mlp_cycles = accelerator.rounds(rounds)
    ran, total = accelerator.layer((1 << computing) - 1, rows)
    streams = rounds if emulator.shared else computing
    prices, hbm, power, bit = preset.energy, preset.hbm, preset.card.power, preset.bank.energy.value
    weight_bytes = streams * emulator.weight_bytes(mlp)
    loads = [i for i in mlp.instructions if i.op == "load"]
    lines = [
        f"{preset.name}: {preset.title}",
        f"clock {preset.clock.value:g} MHz, {c} cores, {rows} rows, {computing} of them compute; step {step}",
        "",
        f"MACs a cycle and core = array {preset.core.mac_array.value:g} x utilisation {preset.core.utilisation.value:g}"
        f" = {rates.macs:g}",
        f"HBM bytes a cycle = {hbm.channels.value:g} channels of {preset.part.name} x {preset.part.peak:g} GB/s x "
        f"{share(preset.stream()):.1%} by its timing and {hbm.ports.value:g} ports x {hbm.beat.value:g} bytes x "
        f"{hbm.port_clock.value:g} MHz / clock = {preset.bytes_per_cycle:.1f}, in requests of {rates.burst} bytes, "
        f"{rates.latency} cycles after the request",
        f"MLP weights = 3 x {work.width} x {work.mlp_width} = {mlp.macs:,} = MACs of a row; x "
        f"{preset.format.stored_bits:g} bit = {mlp.weight_bytes:,} bytes in {len(loads)} tiles of at most "
        f"{preset.tile_bytes:,} bytes",
        f"a row alone: multiply {mlp.macs:,} / {rates.macs:g} = {mlp.macs / rates.macs:,.0f} cycles, load "
        f"{mlp.weight_bytes / rates.bytes:,.0f} cycles; double-buffered: {accelerator.row:,} cycles",
        f"DRS deals {computing} rows round-robin to {c} cores: ceil({computing} / {c}) = {rounds} rounds "
        f"({Drs(c).mapping_bits} mapping bits a row)",
        f"weights are {hbm.weights}: "
        + ("a round streams them once" if emulator.shared else "each core streams its own from its share of channels"),
        f"MLP = {rounds} x (start {START} + row {accelerator.row:,}) = {mlp_cycles:,} cycles",
        f"DRS = start {START} + remap {accelerator.remap} + dispatch {mlp.words} words a packet, "
        f"{accelerator.packet} cycles each, + drop {accelerator.drop} cycles each ({preset.drs.fetch}), "
        f"beside running rows where a core's queue of {accelerator.queue} has room",
        *_dispatched(ran),
        f"both together {total:,} cycles, so DRS adds {total - mlp_cycles:,}",
        f"projections, all rows: {work.projection_weights:,} weights in ceil({rows} / {c}) rounds = "
        f"{projections:,.0f} cycles",
        f"attention core, all rows: {context:,} keys x 2 x {work.width} MACs a row, "
        f"{context * 2 * work.kv_width * preset.format.kv_bits // 8:,} bytes of keys and values a row = "
        f"{attention:,.0f} cycles",
        *([f"steps that wait for each other, nothing streamed (chain) = {chain:,} cycles"] if chain else []),
        f"layer = {total + projections + attention + chain:,.0f} cycles = "
        f"{(total + projections + attention + chain) * preset.seconds_per_cycle * 1e3:.3f} ms",
        "",
        f"energy of the MLP: HBM {weight_bytes:,.0f} bytes x 8 x {bit:g} pJ = {weight_bytes * 8 * bit * 1e-9:.4f} mJ",
        f"  MACs {computing * mlp.macs:,} x {prices.mac.value:g} pJ = "
        f"{computing * mlp.macs * prices.mac.value * 1e-9:.4f} mJ",
        f"  buffer 2 x {computing * mlp.weight_bytes:,} bytes x {prices.buffer.value:g} pJ = "
        f"{2 * computing * mlp.weight_bytes * prices.buffer.value * 1e-9:.4f} mJ",
        f"  idle {power.idle.value:g} W x {mlp_cycles * preset.seconds_per_cycle * 1e3:.3f} ms = "
        f"{power.idle.value * mlp_cycles * preset.seconds_per_cycle * 1e3:.4f} mJ",
        f"  constant model: {power.board.value:g} W x the same time = "
        f"{power.board.value * mlp_cycles * preset.seconds_per_cycle * 1e3:.4f} mJ",
        "",
        "constants:",
    ]
    known = {
        **constants(preset),
        **{f"device.{k}": v for part in (preset.bank, preset.card.power) for k, v in constants(part).items()},
    }
    return lines + [f"  {k} = {v.value:g} {v.unit}  ({v.kind}: {v.source})" for k, v in known.items()]


def _dispatched(rows: list[Row]) -> list[str]:
    return [
        f"  row {r.row}: packet in [{r.first:,}, {r.last:,}) to core {r.core}, runs in [{r.begin:,}, {r.end:,})"
        if r.core is not None
        else f"  row {r.row}: dropped in [{r.first:,}, {r.last:,})"
        for r in rows
    ]
