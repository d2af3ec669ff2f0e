"""One run on an accelerator as a document: against dense decoding, static mapping and the ideal, and its energy.

There are two energy models. `constant`: board power times time, which is what the published efficiencies
imply. `activity`: what moves and computes times its price, plus the board's idle power.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.checkpoints.specs import spec_from_dict
from fastcar_fpga.decisions import Decisions
from fastcar_fpga.emulator import Emulator, Result
from fastcar_fpga.preset import Preset
from fastcar_fpga.windows import Windows
from fastcar_fpga.workload import workload_of


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
    prices, memory, power = preset.energy, preset.bank.energy.value, preset.card.power
    seconds = result.cycles * preset.seconds_per_cycle
    levels = {"hbm_weights": 0.0, "hbm_kv": 0.0, "buffer": 0.0, "mac": 0.0, "vector": 0.0}
    components: dict[str, float] = {}
    for name, t in result.components.items():
        parts = {
            "hbm_weights": t.weight_bytes * 8 * memory * 1e-12,
            "hbm_kv": t.kv_bytes * 8 * memory * 1e-12,
            "buffer": t.buffer_bytes * prices.buffer.value * 1e-12,
            "mac": t.macs * prices.mac.value * 1e-12,
            "vector": t.vector_elements * prices.vector.value * 1e-12,
        }
        components[name] = sum(parts.values())
        for level, joules in parts.items():
            levels[level] += joules
    background = power.idle.value * seconds
    components["background"] = background
    levels["background"] = background
    return EnergyReport(power.board.value * seconds, sum(components.values()), components, levels)


@dataclass(frozen=True)
class Comparison:
    """The same decisions under DRS, static mapping and the ideal schedule, and runs beside it.

    computing [layers, slots, passes] of the Index Register, and the input tokens there [slots, passes], -1 in empty
    slots. dense: every row computed, one token a pass (static). replay: the decisions with one token a pass (DRS).
    drafts: every row computed in the passes that ran (static).
    """

    emulator: Emulator
    computing: NDArray[np.bool_]
    tokens: NDArray[np.int64]
    drs: Result
    static: Result
    ideal: Result
    dense: Result
    replay: Result
    drafts: Result

    @property
    def energy(self) -> EnergyReport:
        """Energy under DRS."""
        return energy_of(self.drs, self.emulator.preset)

    def results(self) -> list[tuple[str, Result]]:
        """Every schedule by its name."""
        return [("drs", self.drs), ("static", self.static), ("ideal", self.ideal), ("dense", self.dense)]

    def per_token(self) -> dict[str, dict[str, float]]:
        """What a final token of every video costs with one token a pass and in the passes that ran."""
        kinds = {"dense": self.dense, "replay": self.replay, "drafts": self.drafts, "both": self.drs}
        steps, preset = self.emulator.work.steps, self.emulator.preset
        costs = {}
        for kind, result in kinds.items():
            energy = energy_of(result, preset)
            costs[kind] = {
                "cycles": result.cycles / steps,
                "energy_j": energy.constant / steps,
                "energy_activity_j": energy.activity / steps,
            }
        return costs

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
            "energy": energy.to_dict(),
        }


def compare(emulator: Emulator, replayed: NDArray[np.bool_], windows: Windows | None = None) -> Comparison:
    """Emulate decisions [layers, rows, T*N - 1] under every scheduler, in passes of one token or in these.

    Raises RequestError for passes with more input tokens than the Index Register has bits.
    """
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
    """Saved decisions on an accelerator. Raises RequestError where model or passes do not fit it."""
    work = workload_of(
        spec_from_dict(saved.spec),
        rows=saved.replayed.shape[1],
        frames=saved.frames,
        prompt=saved.prompt,
        window=saved.window,
        sinks=saved.sinks,
    )
    return compare(Emulator(preset, work), saved.replayed, saved.fitting().windows)
