"""What sharing a stream of weights costs, as docs/fpga.md shows it: `fastcar lab broadcast`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from fastcar_cli.checkpoints.open import spec_of
from fastcar_cli.config.presets import fpga_presets
from fastcar_fpga.decisions import draw
from fastcar_fpga.device import Constant
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.preset import Preset, Weights, load_preset
from fastcar_fpga.workload import Workload, held_bytes, workload_of

Fetch = Literal["skip", "stream"]
WAYS: tuple[tuple[Weights, Fetch], ...] = (
    ("lockstep", "skip"), ("lockstep", "stream"), ("multicast", "skip"), ("private", "skip"),
)  # fmt: skip
RATIOS = (0.0, 0.5, 0.8)
FRAMES = 8


def variant(preset: Preset, weights: Weights, fetch: Fetch) -> Preset:
    """A preset with another way to share weights and to drop packets; a window of two tiles under multicast."""
    window = Constant(value=2, unit="tiles", source="a double buffer", kind="assumption")
    hbm = {"weights": weights, "window": window if weights == "multicast" else None}
    return preset.model_copy(
        update={"hbm": preset.hbm.model_copy(update=hbm), "drs": preset.drs.model_copy(update={"fetch": fetch})}
    )


def cost(preset: Preset, work: Workload, ratio: float) -> tuple[float, float]:
    """Seconds of MLP and DRS of a run, and the share of DRS in them; decisions drawn over eligible passes, seed 0."""
    components = Emulator(preset, work).run(draw(work, ratio)).components
    mlp, drs = components["mlp"].cycles, components["drs"].cycles
    return (mlp + drs) * preset.seconds_per_cycle, drs / (mlp + drs)


def table(preset: Preset, work: Workload) -> Iterator[str]:
    """Rows of the docs' table for a preset."""
    for weights, fetch in WAYS:
        costs = (cost(variant(preset, weights, fetch), work, ratio) for ratio in RATIOS)
        cells = [preset.name, weights, fetch, *(f"{seconds:.4g} ({share:.2%})" for seconds, share in costs)]
        yield f"| {' | '.join(cells)} |"


def tables(names: Sequence[str]) -> Iterator[str]:
    """Rows of the docs' table for these presets; without names for all of several cores that hold the batch. Raises
    RequestError for a preset that there is not, and a named one whose memory is too small.
    """
    for name in names or fpga_presets():
        preset = load_preset(name)
        model, rows = ("mini", 8) if preset.name.startswith("edge") else ("vila-u-7b", 16)
        work = workload_of(spec_of(model), rows=rows, frames=FRAMES, prompt=100)
        if names or (preset.cores > 1 and held_bytes(work, preset) <= preset.capacity):
            yield from table(preset, work)
