"""One run on an accelerator as a document: against dense decoding, static mapping and the ideal, and its energy.

There are two energy models. `constant`: board power times time, which is what the published efficiencies
imply. `activity`: what moves and computes times its price, plus a background power that flows all the time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.backends.fpga.emulator import Emulator, Result
from fastcar_cli.backends.fpga.preset import Preset


@dataclass(frozen=True)
class EnergyReport:
    """Joules. by_component sums the activity of each component and the background; by_level the memories."""

    constant: float
    activity: float
    by_component: dict[str, float]
    by_level: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {f"{name}_j": joules for name, joules in asdict(self).items()}


def energy_of(result: Result, preset: Preset) -> EnergyReport:
    """Energy of a run under both models."""
    prices = preset.energy
    seconds = result.cycles * preset.seconds_per_cycle
    levels = {"hbm_weights": 0.0, "hbm_kv": 0.0, "buffer": 0.0, "mac": 0.0, "vector": 0.0}
    components: dict[str, float] = {}
    for name, t in result.components.items():
        parts = {
            "hbm_weights": t.weight_bytes * 8 * prices.hbm.value * 1e-12,
            "hbm_kv": t.kv_bytes * 8 * prices.hbm.value * 1e-12,
            "buffer": t.buffer_bytes * prices.buffer.value * 1e-12,
            "mac": t.macs * prices.mac.value * 1e-12,
            "vector": t.vector_elements * prices.vector.value * 1e-12,
        }
        components[name] = sum(parts.values())
        for level, joules in parts.items():
            levels[level] += joules
    background = prices.background.value * seconds
    components["background"] = background
    levels["background"] = background
    return EnergyReport(prices.board_power.value * seconds, sum(components.values()), components, levels)


@dataclass(frozen=True)
class Comparison:
    """The same decisions under DRS, static mapping and the ideal schedule, and every row computed (static)."""

    emulator: Emulator
    replayed: NDArray[np.bool_]
    drs: Result
    static: Result
    ideal: Result
    dense: Result

    @property
    def energy(self) -> EnergyReport:
        """Energy under DRS."""
        return energy_of(self.drs, self.emulator.preset)

    def results(self) -> list[tuple[str, Result]]:
        """Every schedule by its name."""
        return [("drs", self.drs), ("static", self.static), ("ideal", self.ideal), ("dense", self.dense)]

    def to_dict(self) -> dict[str, Any]:
        """The `backend` part of a report (docs/json.md), with more keys."""
        preset, work, result = self.emulator.preset, self.emulator.work, self.drs
        seconds = result.cycles * preset.seconds_per_cycle
        energy = self.energy
        by_core = [float(b) / result.cycles for b in result.by_core]
        drs = result.components["drs"].cycles
        return {
            "name": "fpga-sim",
            "preset": preset.name,
            "cycles": result.cycles,
            "latency_s": seconds,
            "energy_j": energy.constant,
            "energy_activity_j": energy.activity,
            "energy_per_token_j": energy.constant / work.steps,
            "power_w": energy.constant / seconds,
            "power_activity_w": energy.activity / seconds,
            "cores": preset.cores,
            "rows": work.rows,
            "utilisation": sum(by_core) / len(by_core),
            "utilisation_by_core": by_core,
            "drs_cycles": round(drs),
            "drs_share": drs / result.cycles,
            "speedup_vs_dense": self.dense.cycles / result.cycles,
            "speedup_vs_static": self.static.cycles / result.cycles,
            "ideal_speedup_vs_dense": self.dense.cycles / self.ideal.cycles,
            "replay_ratio": result.replay_ratio,
            "cycles_by_component": {k: round(t.cycles) for k, t in result.components.items()},
            "energy": energy.to_dict(),
        }


def compare(emulator: Emulator, replayed: NDArray[np.bool_]) -> Comparison:
    """Emulate decisions [layers, rows, passes] under every scheduler."""
    return Comparison(
        emulator,
        replayed,
        emulator.run(replayed, "drs"),
        emulator.run(replayed, "static"),
        emulator.run(replayed, "ideal"),
        emulator.run(replayed, "static", dense=True),
    )
