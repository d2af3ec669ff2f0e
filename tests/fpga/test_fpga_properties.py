"""The emulated accelerator: what holds of any preset, workload and decisions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fpga_machine import run as stepped
from support.fpga_presets import preset, work

from fastcar_cli.errors import RequestError
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.isa import spans
from fastcar_fpga.layer import Registers, check_rows
from fastcar_fpga.preset import Preset
from fastcar_fpga.workload import Workload


@st.composite
def situations(draw_: Any) -> tuple[Preset, Workload, np.ndarray]:
    rows, cores = draw_(st.integers(1, 8)), draw_(st.integers(1, 5))
    p = preset(
        cores=cores,
        core__mac_array=draw_(st.sampled_from([4, 64])),
        hbm__weights=draw_(st.sampled_from(["lockstep", "multicast", "private"])),
        hbm__port_clock=draw_(st.sampled_from([1.5, 15.0, 200.0])),
        hbm__latency=draw_(st.sampled_from([0, 1, 20])),
        core__buffer=draw_(st.sampled_from([1, 32])),
        drs__fetch=draw_(st.sampled_from(["skip", "stream"])),
        drs__drop=draw_(st.sampled_from([1, 16])),
        drs__queue=draw_(st.integers(1, 3)),
    )
    w = work(rows=rows, layers=1, frames=2, tokens_per_frame=2)
    bits = draw_(st.lists(st.booleans(), min_size=3 * rows, max_size=3 * rows))
    return p, w, np.array(bits).reshape(1, rows, 3)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(situations(), st.data())
def test_a_layer_is_the_machine_stepped_cycle_by_cycle(
    situation: tuple[Preset, Workload, np.ndarray], data: st.DataObject
) -> None:
    p, w, replayed = situation
    emulator = Emulator(p, w)
    computing = ~replayed[0, :, 0]
    index = sum(1 << r for r in np.flatnonzero(computing).tolist())
    gaps = data.draw(st.lists(st.sampled_from([0, 0, 1, 40]), min_size=w.rows, max_size=w.rows))
    rows, total = emulator.accelerator.layer(index, w.rows, gaps)
    wanted, length = stepped(emulator.accelerator, emulator.mlp, emulator.rates, index, w.rows, gaps)
    assert {r.row: tuple(r[1:]) for r in rows if r.core is not None} == wanted
    assert total == length


@settings(max_examples=60, deadline=None)
@given(situations(), st.lists(st.integers(1, 400), min_size=1, max_size=4))
def test_a_round_ends_when_its_first_or_its_last_core_says(
    situation: tuple[Preset, Workload, np.ndarray], begins: list[int]
) -> None:
    emulator = Emulator(situation[0], situation[1])
    ran = spans(emulator.mlp, emulator.rates, begins)
    # Tiles pass for all cores together: the closed form is what the instructions of each do.
    assert max(s.end for of in ran for s in of) == emulator.accelerator.end(0, begins)


@settings(max_examples=40, deadline=None)
@given(situations())
def test_a_run_is_the_sum_of_its_layers(situation: tuple[Preset, Workload, np.ndarray]) -> None:
    p, w, replayed = situation
    emulator = Emulator(p, w)
    run = emulator.run(replayed)
    layers = [
        emulator.accelerator.layer(sum(1 << r for r in np.flatnonzero(~replayed[0, :, step]).tolist()), w.rows)
        for step in range(w.steps)
    ]
    mlp = run.components["mlp"]
    assert mlp.cycles + run.components["drs"].cycles == sum(total for _, total in layers)
    executed = [r for rows, _ in layers for r in rows if r.core is not None]
    assert mlp.macs == len(executed) * emulator.mlp.macs and len(executed) == (~replayed).sum()
    assert run.components["drs"].cycles > 0


@settings(max_examples=60, deadline=None)
@given(situations())
def test_no_schedule_beats_the_ideal_or_loses_to_the_worst(situation: tuple[Preset, Workload, np.ndarray]) -> None:
    p, w, replayed = situation
    emulator = Emulator(p, w)
    ideal, drs, static = (emulator.run(replayed, s).components["mlp"].cycles for s in ("ideal", "drs", "static"))
    worst = float((~replayed).sum()) * emulator.accelerator.rounds(1)
    assert ideal <= min(drs, static) * (1 + 1e-9)
    assert drs <= worst * (1 + 1e-9)
    assert emulator.run(replayed, "drs").cycles == emulator.run(replayed, "drs").cycles


@given(st.sets(st.integers(0, 31)), st.integers(1, 16))
def test_registers_deal_round_robin(computing: set[int], cores: int) -> None:
    drs = Registers(cores)
    drs.remap(sorted(computing))
    assert 2**drs.mapping_bits >= cores
    found = [drs.arrive(r) for r in range(32)]
    assert [r for r, c in enumerate(found) if c is not None] == sorted(computing)
    assert [c for c in found if c is not None] == [i % cores for i in range(len(computing))]


def test_more_rows_than_the_index_register_has_bits() -> None:
    with pytest.raises(RequestError, match="33 input tokens, all rows together; the accelerator allows at most 32"):
        check_rows(33)
