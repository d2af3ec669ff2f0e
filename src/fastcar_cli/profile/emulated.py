"""The profile of one step on the emulated accelerator."""

from __future__ import annotations

from typing import Any

import numpy as np

from fastcar_cli.models.network import Spec
from fastcar_cli.profile.profiler import replay_table
from fastcar_fpga import Emulator, preset_for, workload_of


def emulated_lengths(spec: Spec, model: str, lengths: list[int], rows: int, preset: str | None) -> dict[str, Any]:
    """The document of `fastcar profile` with cycles and emulated milliseconds instead of measured ones."""
    accelerator = preset_for(preset, spec)
    milliseconds, layers = accelerator.seconds_per_cycle * 1e3, spec.decoder.layers
    measured = []
    for seq in lengths:
        emulator = Emulator(accelerator, workload_of(spec, rows=rows, frames=1, prompt=max(1, seq - 1)))
        rest = float(emulator.all_rows(emulator.depth))
        if accelerator.rest.seconds_per_step is not None:
            rest = accelerator.rest.seconds_per_step.value / accelerator.seconds_per_cycle
        cycles: dict[str, dict[str, float]] = {
            "attention": {
                "projections": layers * emulator.all_rows(emulator.projections),
                "core": layers * float(emulator.attention(np.full((rows, 1), seq))[0]),
            },
            "mlp": {"mlp": layers * emulator.accelerator.rounds(-(-rows // accelerator.cores))},
            "depth_transformer": {"rest": rest},
        }
        sums = {name: sum(parts.values()) for name, parts in cycles.items()}
        total, drs = sum(sums.values()), layers * emulator.accelerator.layer(0, rows)[1]
        modules = {
            name: {
                "ms": sums[name] * milliseconds,
                "cycles": sums[name],
                "share": sums[name] / total,
                "parts": {k: v * milliseconds for k, v in parts.items()},
            }
            for name, parts in cycles.items()
        }
        length = {"seq": seq, "step_ms": total * milliseconds, "step_cycles": total, "modules": modules}
        replayed = (total - sums["mlp"] + drs) * milliseconds
        measured.append(length | {"tas_ms": drs * milliseconds, "replayed_step_ms": replayed})
    name, clock = f"{accelerator.name} (emulated)", accelerator.clock.value
    return {
        "machine": {"device": name, "cores": accelerator.cores, "clock_mhz": clock},
        "model": model,
        "backend": "fpga-sim",
        "lengths": measured,
        "replay": {"rows": rows, "lengths": [replay_table(x, rows) for x in measured]},
    }
