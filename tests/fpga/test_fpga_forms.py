"""The emulated accelerator where its cycles and joules have a closed form."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fpga_presets import constant, preset, work

from fastcar_fpga.emulator import Emulator
from fastcar_fpga.isa import Program, Rates, compile_linear, compile_mlp, cycles, spans
from fastcar_fpga.layer import Accelerator
from fastcar_fpga.preset import Weights
from fastcar_fpga.summary import energy_of, explain_layer

FAST = 1e9
MLP = compile_mlp(64, 192, 16, 1024)


def total(program: Program, op: str) -> int:
    return sum(i.amount for i in program.instructions if i.op == op)


def test_compiled_stream_covers_the_layer_exactly() -> None:
    assert MLP.macs == 3 * 64 * 192 and MLP.weight_bytes == 2 * MLP.macs
    assert total(MLP, "activate") == 192 and total(MLP, "accumulate") == total(MLP, "store") == 64
    assert all(i.amount <= 1024 for i in MLP.instructions if i.op == "load")


def test_one_core_bound_by_compute() -> None:
    rates = Rates(8.0, FAST, FAST)
    busy = sum(rates.length(i) for i in MLP.instructions if i.op == "multiply")
    assert busy == sum(math.ceil(i.amount / 8) for i in MLP.instructions if i.op == "multiply")
    assert busy <= cycles(MLP, rates) == pytest.approx(MLP.macs / 8, rel=0.01)


def test_one_core_bound_by_bandwidth() -> None:
    assert cycles(MLP, Rates(FAST, FAST, 2.0)) == pytest.approx(MLP.weight_bytes / 2.0, rel=0.01)


@given(tiles=st.integers(1, 9), load=st.integers(1, 50), multiply=st.integers(1, 50), latency=st.integers(0, 30))
def test_double_buffer_overlaps_to_the_cycle(tiles: int, load: int, multiply: int, latency: int) -> None:
    program = compile_linear("line", tiles * 100, 10, 8, 100)
    found = cycles(program, Rates(100 / multiply, 1.0, 100 / load, latency=latency))
    if latency == 0:
        assert found == load + (tiles - 1) * max(load, multiply) + multiply + 10
    # A request waits beside the beats of the one before it, if a half was free for it by then.
    hidden = latency + load + (tiles - 1) * max(load, multiply) + multiply + 10
    assert hidden <= found <= hidden + (tiles - 1) * latency


def test_a_transfer_moves_whole_bursts() -> None:
    rates = Rates(1.0, 1.0, 3.0, burst=64)
    assert [rates.moved(n) for n in (1, 64, 65)] == [64, 64, 128]
    load = compile_linear("line", 65, 1, 8, 100).instructions[0]
    assert load.amount == 65 and rates.length(load) == math.ceil(128 / 3)


@given(
    width=st.integers(1, 40), mlp_width=st.integers(1, 60), bits=st.sampled_from([4, 8, 16]),
    tile=st.integers(1, 64), window=st.integers(1, 4),
)  # fmt: skip
def test_every_instruction_has_something_to_do(width: int, mlp_width: int, bits: int, tile: int, window: int) -> None:
    program = compile_mlp(width, mlp_width, bits, tile, window)
    assert all(i.amount > 0 for i in program.instructions)
    assert program.macs == 3 * width * mlp_width and program.words == 1 + len(program.instructions)
    assert (total(program, "activate"), total(program, "accumulate")) == (mlp_width, width)
    found = spans(program, Rates(4.0, 4.0, 4.0))[0]
    for i, instruction in enumerate(program.instructions):
        assert all(j < i and found[j].end <= found[i].begin for j in instruction.after)


@given(rows=st.integers(1, 32), cores=st.integers(1, 9), weights=st.sampled_from(["lockstep", "multicast", "private"]))
def test_rounds_are_the_ceiling_of_rows_over_cores(rows: int, cores: int, weights: Any) -> None:
    machine = Accelerator(cores, weights, row=1000, late=900, remap=0, packet=0, drop=0, queue=1)
    assert machine.layer((1 << rows) - 1, 32)[1] == 1 + machine.rounds(-(-rows // cores))


def test_private_weights_have_a_share_of_the_channels_and_shared_ones_all_of_them() -> None:
    slow = {"cores": 4, "hbm__port_clock": 0.16}
    shared, private = (Emulator(preset(**slow, hbm__weights=w), work(rows=4)) for w in ("lockstep", "private"))
    assert private.accelerator.row == pytest.approx(4 * shared.accelerator.row, rel=0.01)
    nothing = np.zeros((2, 4, 8), dtype=bool)
    moved = [e.run(nothing).components["mlp"].weight_bytes for e in (shared, private)]
    assert moved[1] == 4 * moved[0]


def test_dispatch_takes_the_words_of_the_packet_unless_the_preset_says_otherwise() -> None:
    program = compile_mlp(16, 48, 16, 16 * 1024)
    for fetch, drop in (("skip", 3), ("stream", program.words)):
        machine = Accelerator.of(preset(drs__fetch=fetch, drs__drop=3, drs__remap=7, cores=2), program)
        rows, total = machine.layer(0b0101, 4)
        first = 1 + 7
        words = program.words
        assert [r.first for r in rows] == [first, first + words, first + words + drop, first + 2 * words + drop]
        assert [(r.row, r.core) for r in rows] == [(0, 0), (1, None), (2, 1), (3, None)]
        assert rows[0].begin == rows[2].begin == rows[2].last + 1
        assert total == max(rows[2].begin + machine.row, rows[3].last)
    data = {"value": 100, "unit": "cycles/row", "source": "test", "kind": "assumption"}
    assert Accelerator.of(preset(drs__dispatch=data), program).packet == 100


def test_a_full_queue_stalls_every_packet_behind_it() -> None:
    machine = Accelerator(2, "private", row=500, late=0, remap=0, packet=10, drop=1, queue=1)
    rows, _ = machine.layer(0b11111, 5)
    # Rows 0 and 1 run; the packet of row 2 waits for core 0, and that of row 3 behind it.
    assert [r.first for r in rows] == [1, 11, 512, 522, 1023]
    deep = Accelerator(2, "private", row=500, late=0, remap=0, packet=10, drop=1, queue=2)
    assert [r.first for r in deep.layer(0b11111, 5)[0]] == [1, 11, 21, 31, 512]


def test_broadcast_costs_a_barrier_or_the_latest_core_or_bandwidth() -> None:
    kinds: tuple[Weights, ...] = ("lockstep", "multicast", "private")
    ends = {w: Accelerator(4, w, 500, 450, remap=0, packet=100, drop=1, queue=2).layer(0b1111, 4)[1] for w in kinds}
    # The fourth packet is whole at 401: all start then, or the fourth catches up with tiles that were sent.
    assert ends == {"lockstep": 401 + 1 + 500, "multicast": 401 + 1 + 450, "private": 401 + 1 + 500}


def test_static_mapping_at_its_worst_is_one_row_after_the_other() -> None:
    emulator = Emulator(preset(cores=3), work())
    replayed = np.ones((2, 6, 8), dtype=bool)
    replayed[:, [0, 3], :] = False
    alone = emulator.accelerator.rounds(1)
    assert emulator.run(replayed, "static").components["mlp"].cycles == pytest.approx(2 * 8 * 2 * alone)
    assert emulator.run(replayed, "drs").components["mlp"].cycles == pytest.approx(2 * 8 * alone)


def test_one_core_without_replay_is_static_mapping_and_drs_cost() -> None:
    emulator = Emulator(preset(cores=1), work())
    nothing = np.zeros((2, 6, 8), dtype=bool)
    drs, static = emulator.run(nothing, "drs"), emulator.run(nothing, "static")
    assert drs.cycles - drs.components["drs"].cycles == pytest.approx(static.cycles, abs=1)
    assert static.cycles == emulator.run(nothing, "static", dense=True).cycles


def test_window_and_sinks_bound_the_context() -> None:
    whole, bounded = work(), work(window=4, sinks=2)
    assert [whole.context(s) for s in (0, 7)] == [6, 13]
    assert [bounded.context(s) for s in (0, 7)] == [6, 6]
    nothing = np.zeros((2, 6, 8), dtype=bool)
    full, short = (Emulator(preset(), w).run(nothing).components["attention"] for w in (whole, bounded))
    assert short.cycles < full.cycles
    assert short.kv_bytes == 8 * 6 * 2 * 6 * 2 * 16 * 2


def test_attention_is_its_closed_form() -> None:
    p = preset(cores=2, core__buffer=1, core__vector_lanes=FAST)
    emulator = Emulator(p, work(rows=2))
    keys = np.full((2, 1), 64)
    size, tiles = 64 * 2 * 16 * 2, 64 * 2 * 16 * 2 // 512
    load, multiply = math.ceil(size // tiles / (p.rate() / 2)), math.ceil(64 * 2 * 16 / 64 / tiles)
    expected = 1 + 20 + load + (tiles - 1) * max(load, multiply) + multiply
    assert emulator.attention(keys)[0] == expected


def test_keys_may_have_other_macs_than_weights() -> None:
    keys = np.full((1, 1), 64)
    slow = {"core__buffer": 1024, "core__vector_lanes": FAST}
    other = {"core__attention_array": constant(32, "MAC/cycle")}
    whole, half = (Emulator(preset(**slow, **own), work(rows=1)) for own in ({}, other))
    multiply = 64 * 2 * 16 / 64
    assert half.attention(keys)[0] - whole.attention(keys)[0] == multiply
    assert half.accelerator.row == whole.accelerator.row


SCALES = {
    "size": constant(4, "bytes/output"),
    "piece": constant(64, "bytes"),
    "port": constant(2, "bytes/cycle"),
    "use": constant(0.5, "cycles/output"),
}


def test_scales_that_lie_apart_bound_a_load_by_its_outputs() -> None:
    # Sixteen outputs a piece, which takes the latency of 20 and 32 cycles; and half a cycle an output.
    rates = Rates.of(preset(hbm__scales=SCALES))
    assert rates.scale == 52 / 16 + 0.5
    plain = replace(rates, scale=0.0)
    for load in (i for i in MLP.instructions if i.op == "load"):
        assert rates.length(load) == max(plain.length(load), math.ceil(load.outputs * 3.75))
    assert sum(i.outputs for i in MLP.instructions) == 2 * 192 + 64
    assert sum(i.outputs for i in compile_linear("line", 640, 1, 8, 100, columns=33).instructions) == 33


@pytest.mark.slow
@given(waits=st.integers(0, 9), passes=st.integers(0, 50), trips=st.integers(0, 50), heads=st.integers(0, 50))
def test_a_chain_costs_each_layer_and_round_its_closed_form(waits: int, passes: int, trips: int, heads: int) -> None:
    counts = {"waits": (waits, "1"), "passes": (passes, "1"), "trips": (trips, "1"), "heads": (heads, "cycles/head")}
    chained, plain = preset(chain={name: constant(*value) for name, value in counts.items()}), preset()
    with_chain, without = (Emulator(p, work()) for p in (chained, plain))
    fill = 20 + without.rates.length(without.projections.instructions[0])
    cycles = math.ceil(waits * fill + passes * 16 / plain.core.vector_lanes.value + trips * 20 + heads * 2)
    bits = np.zeros((2, 6, 8), dtype=bool)
    more = with_chain.run(bits).cycles - without.run(bits).cycles
    rounds = -(-6 // plain.cores)
    assert more == 2 * 8 * rounds * cycles
    assert with_chain.prefill() - without.prefill() == pytest.approx(2 * cycles)
    line = f"no weights are read (chain) = {rounds * cycles:,} cycles"
    assert (line in "\n".join(explain_layer(with_chain, 3))) == bool(cycles)


def test_energy_is_the_sum_of_its_parts() -> None:
    p = preset()
    emulator = Emulator(p, work())
    result = emulator.run(np.zeros((2, 6, 8), dtype=bool))
    energy = energy_of(result, p)
    seconds = result.cycles * p.seconds_per_cycle
    assert energy.constant == pytest.approx(p.card.power.board.value * seconds)
    assert energy.activity == pytest.approx(sum(energy.by_component.values()))
    assert energy.activity == pytest.approx(sum(energy.by_level.values()))
    mlp = result.components["mlp"]
    assert energy.by_component["mlp"] == pytest.approx(
        1e-12 * (mlp.weight_bytes * 8 * 20 + mlp.macs * 1.5 + mlp.vector_elements * 1.5 + mlp.buffer_bytes * 1.25)
    )
    assert energy.by_component["background"] == pytest.approx(1.5 * seconds)
