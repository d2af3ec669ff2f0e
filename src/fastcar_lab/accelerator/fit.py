"""The fitted constants of paper-u280, from the published latencies: `fastcar lab fit-table`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastcar_cli.models.vila_u.shapes import full_spec
from fastcar_fpga.preset import Preset
from fastcar_lab.accelerator.published import FRAMES, TABLE, emulate_table


def fit(preset: Preset, used: Sequence[int] = range(7)) -> tuple[float, float]:
    """(utilisation, seconds of the rest a step) that fit these rows of the table best, by relative error.

    Latency is linear in 1 / utilisation and in the rest, apart from the tiles' rounding; both are solved
    for by least squares from the emulation at the preset's own values.
    """
    rows = emulate_table(preset)
    steps = FRAMES * full_spec().tokens_per_frame - 1
    if preset.rest.seconds_per_step is None:
        raise ValueError("a preset whose rest is modelled has nothing to fit")
    rest = preset.rest.seconds_per_step.value * steps
    compute = np.array([rows[i]["emulated_s"] - rest for i in used])
    wanted = np.array([TABLE[i].seconds for i in used])
    system = np.stack([compute / wanted, steps / wanted], 1)
    scale, seconds = np.linalg.lstsq(system, np.ones(len(wanted)), rcond=None)[0]
    return preset.core.utilisation.value / float(scale), float(seconds)
