"""Two energy models side by side.

`constant`: board power times time, which is what the published efficiencies imply. `activity`: what
moves and computes times its price, plus a background power that flows all the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastcar_cli.backends.fpga.emulator import Result
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
        return {
            "constant_j": self.constant,
            "activity_j": self.activity,
            "by_component_j": self.by_component,
            "by_level_j": self.by_level,
        }


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
