"""The terms behind one layer's cycles and joules, in words and numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.backends.fpga.drs import Drs, active_cores
from fastcar_cli.backends.fpga.emulator import Emulator
from fastcar_cli.backends.fpga.preset import constants


def explain(emulator: Emulator, computing: int) -> list[str]:
    """Lines that derive one layer at mid-run with this many computing rows, and its energy."""
    preset, work, rates = emulator.preset, emulator.work, emulator.rates
    mlp, c = emulator.mlp, preset.cores
    step = work.steps // 2
    context = work.context(step)
    queues = [len(range(i, computing, c)) for i in range(c)]
    rounds = active_cores(queues)
    attention = float(emulator.attention_cycles(_one(context))[0])
    projections = emulator.all_rows(emulator.projections)
    mlp_cycles = emulator.mlp_rounds(queues)
    drs = float(emulator.drs_cycles(_one(computing))[0])
    streams = len(rounds) if rates.broadcast else computing
    prices = preset.energy
    weight_bytes = streams * mlp.weight_bytes
    loads = [i for i in mlp.instructions if i.op == "load"]
    lines = [
        f"{preset.name}: {preset.title}",
        f"clock {preset.clock.value:g} MHz, {c} cores, {work.rows} rows, {computing} of them compute; step {step}",
        "",
        f"MACs a cycle and core = array {preset.core.mac_array.value:g} x utilisation {preset.core.utilisation.value:g}"
        f" = {rates.macs:g}",
        f"HBM bytes a cycle = {preset.hbm.channels.value:g} channels x {preset.hbm.channel_bandwidth.value:g} GB/s x "
        f"efficiency {preset.hbm.efficiency.value:g} / clock = {rates.bytes:.1f}",
        f"MLP weights = 3 x {work.width} x {work.mlp_width} = {mlp.macs:,} = MACs of a row; x "
        f"{preset.format.stored_bits:g} bit = {mlp.weight_bytes:,} bytes in {len(loads)} tiles of at most "
        f"{preset.tile_bytes:,} bytes",
        f"a row alone: multiply {mlp.macs:,} / {rates.macs:g} = {mlp.macs / rates.macs:,.0f} cycles, load "
        f"{mlp.weight_bytes / rates.bytes:,.0f} cycles; double-buffered: {emulator.mlp_rounds([1]):,.0f} cycles",
        f"DRS deals round-robin: {queues} rows a core = {len(rounds)} rounds of {rounds} cores "
        f"(ceil({computing} / {c}) = {-(-computing // c)})",
        f"weights are {preset.hbm.weights}: "
        + ("a round streams them once" if rates.broadcast else "each core streams its own, sharing the bandwidth"),
        f"MLP = {' + '.join(f'{emulator.mlp_rounds([1] * k):,.0f}' for k in rounds) or '0'} = {mlp_cycles:,.0f} cycles",
        f"DRS = remap {preset.drs.remap.value:g} + {computing} x dispatch {preset.drs.dispatch.value:g} + "
        f"{work.rows - computing} x drop {preset.drs.drop.value:g} = {drs:,.0f} cycles "
        f"({Drs(c).mapping_bits} mapping bits a row)",
        f"projections, all rows: {work.projection_weights:,} weights in ceil({work.rows} / {c}) rounds = "
        f"{projections:,.0f} cycles",
        f"attention core, all rows: {context:,} keys x 2 x {work.width} MACs a row, "
        f"{context * 2 * work.kv_width * preset.format.kv_bits // 8:,} bytes of keys and values a row = "
        f"{attention:,.0f} cycles",
        f"layer = {mlp_cycles + drs + projections + attention:,.0f} cycles = "
        f"{(mlp_cycles + drs + projections + attention) * preset.seconds_per_cycle * 1e3:.3f} ms",
        "",
        f"energy of the MLP: HBM {weight_bytes:,} bytes x 8 x {prices.hbm.value:g} pJ = "
        f"{weight_bytes * 8 * prices.hbm.value * 1e-9:.4f} mJ",
        f"  MACs {computing * mlp.macs:,} x {prices.mac.value:g} pJ = "
        f"{computing * mlp.macs * prices.mac.value * 1e-9:.4f} mJ",
        f"  buffer 2 x {computing * mlp.weight_bytes:,} bytes x {prices.buffer.value:g} pJ = "
        f"{2 * computing * mlp.weight_bytes * prices.buffer.value * 1e-9:.4f} mJ",
        f"  background {prices.background.value:g} W x {mlp_cycles * preset.seconds_per_cycle * 1e3:.3f} ms = "
        f"{prices.background.value * mlp_cycles * preset.seconds_per_cycle * 1e3:.4f} mJ",
        f"  constant model: {prices.board_power.value:g} W x the same time = "
        f"{prices.board_power.value * mlp_cycles * preset.seconds_per_cycle * 1e3:.4f} mJ",
        "",
        "constants:",
    ]
    return lines + [f"  {k} = {v.value:g} {v.unit}  ({v.kind}: {v.source})" for k, v in constants(preset).items()]


def _one(value: int) -> NDArray[np.int64]:
    return np.array([value])
