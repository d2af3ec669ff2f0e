"""The emulated accelerator: closed forms, the published table, properties, and what users see."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from conftest import Run, tiny_model
from fpga_machine import run as stepped
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcar_cli.backends.fpga import broadcast
from fastcar_cli.backends.fpga.decisions import Decisions, draw, read, save
from fastcar_cli.backends.fpga.drs import Drs
from fastcar_cli.backends.fpga.emulator import Emulator
from fastcar_cli.backends.fpga.executor import FpgaBackend
from fastcar_cli.backends.fpga.explain import explain
from fastcar_cli.backends.fpga.isa import compile_linear, compile_mlp
from fastcar_cli.backends.fpga.layer import Machine
from fastcar_cli.backends.fpga.machine import Rates, cycles, spans
from fastcar_cli.backends.fpga.predicted import POINTS
from fastcar_cli.backends.fpga.preset import Preset, constants, fpga_presets, load_preset
from fastcar_cli.backends.fpga.published import TABLE, emulate_table, fit
from fastcar_cli.backends.fpga.summary import compare, energy_of
from fastcar_cli.backends.fpga.workload import Workload, check_rows
from fastcar_cli.config import preset_folder
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.replay import ReplayRule
from fastcar_cli.decoding.sampling import SamplingSettings, uniforms
from fastcar_cli.decoding.state import DecodeSettings
from fastcar_cli.decoding.tau import Tau
from fastcar_cli.errors import RequestError


def constant(value: float, unit: str) -> dict[str, Any]:
    """A constant that edge-small has not."""
    return {"value": value, "unit": unit, "source": "test", "kind": "assumption"}


def preset(**changes: Any) -> Preset:
    """edge-small with other values: `core.mac_array=8` sets that constant's value."""
    data = yaml.safe_load((preset_folder() / "fpga" / "edge-small.yaml").read_text())
    for path, value in changes.items():
        node = data
        *sections, last = path.split("__")
        for name in sections:
            node = node[name]
        if isinstance(node.get(last), dict) and not isinstance(value, dict):
            node[last]["value"] = value
        else:
            node[last] = value
    if data["hbm"]["weights"] == "multicast":
        data["hbm"].setdefault("window", constant(2, "tiles"))
    return Preset.model_validate(data)


def work(**changes: Any) -> Workload:
    values: dict[str, Any] = {
        "name": "toy", "layers": 2, "rows": 6, "width": 16, "mlp_width": 48, "kv_width": 16, "heads": 2,
        "projection_weights": 1024, "depth_weights": 2048, "depth_outputs": 32, "resident_weights": 10_000,
        "tokens_per_frame": 3, "frames": 3, "prompt": 5,
    }  # fmt: skip
    return Workload(**values | changes)


FAST, SLOW = 1e9, 1e-3
MLP = compile_mlp(64, 192, 16, 1024)


# Closed forms


def test_compiled_stream_covers_the_layer_exactly() -> None:
    assert MLP.macs == 3 * 64 * 192 and MLP.weight_bytes == 2 * MLP.macs
    assert MLP.total("activate") == 192 and MLP.total("accumulate") == 64 and MLP.total("store") == 64
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
    assert (program.total("activate"), program.total("accumulate")) == (mlp_width, width)
    found = spans(program, Rates(4.0, 4.0, 4.0))
    for i, instruction in enumerate(program.instructions):
        assert all(j < i and found[j].end <= found[i].begin for j in instruction.after)


@given(rows=st.integers(1, 32), cores=st.integers(1, 9), weights=st.sampled_from(["lockstep", "multicast", "private"]))
def test_rounds_are_the_ceiling_of_rows_over_cores(rows: int, cores: int, weights: Any) -> None:
    machine = Machine(cores, weights, row=1000, late=900, remap=0, packet=0, drop=0, queue=1)
    assert machine.layer((1 << rows) - 1, 32)[1] == 1 + machine.rounds(-(-rows // cores))


def test_private_weights_have_a_share_of_the_channels_and_shared_ones_all_of_them() -> None:
    slow = {"cores": 4, "hbm__channel_bandwidth": 0.01}
    shared, private = (Emulator(preset(**slow, hbm__weights=w), work(rows=4)) for w in ("lockstep", "private"))
    assert private.machine.row == pytest.approx(4 * shared.machine.row, rel=0.01)
    nothing = np.zeros((2, 4, 8), dtype=bool)
    moved = [e.run(nothing).components["mlp"].weight_bytes for e in (shared, private)]
    assert moved[1] == 4 * moved[0]


def test_dispatch_takes_the_words_of_the_packet_unless_the_preset_says_otherwise() -> None:
    program = compile_mlp(16, 48, 16, 16 * 1024)
    for fetch, drop in (("skip", 3), ("stream", program.words)):
        machine = Machine.of(preset(drs__fetch=fetch, drs__drop=3, drs__remap=7, cores=2), program)
        rows, total = machine.layer(0b0101, 4)
        first = 1 + 7
        words = program.words
        assert [r.first for r in rows] == [first, first + words, first + words + drop, first + 2 * words + drop]
        assert [(r.row, r.core) for r in rows] == [(0, 0), (1, None), (2, 1), (3, None)]
        assert rows[0].begin == rows[2].begin == rows[2].last + 1
        assert total == max(rows[2].begin + machine.row, rows[3].last)
    data = {"value": 100, "unit": "cycles/row", "source": "test", "kind": "assumption"}
    assert Machine.of(preset(drs__dispatch=data), program).packet == 100


def test_a_full_queue_stalls_every_packet_behind_it() -> None:
    machine = Machine(2, "private", row=500, late=0, remap=0, packet=10, drop=1, queue=1)
    rows, _ = machine.layer(0b11111, 5)
    # Rows 0 and 1 run; the packet of row 2 waits for core 0, and that of row 3 behind it.
    assert [r.first for r in rows] == [1, 11, 512, 522, 1023]
    deep = Machine(2, "private", row=500, late=0, remap=0, packet=10, drop=1, queue=2)
    assert [r.first for r in deep.layer(0b11111, 5)[0]] == [1, 11, 21, 31, 512]


def test_broadcast_costs_a_barrier_or_the_latest_core_or_bandwidth() -> None:
    common = {"row": 500, "late": 450, "remap": 0, "packet": 100, "drop": 1, "queue": 2}
    ends = {w: Machine(4, w, **common).layer(0b1111, 4)[1] for w in ("lockstep", "multicast", "private")}
    # The fourth packet is whole at 401: all start then, or the fourth catches up with tiles that were sent.
    assert ends == {"lockstep": 401 + 1 + 500, "multicast": 401 + 1 + 450, "private": 401 + 1 + 500}


def test_static_mapping_at_its_worst_is_one_row_after_the_other() -> None:
    emulator = Emulator(preset(cores=3), work())
    replayed = np.ones((2, 6, 8), dtype=bool)
    replayed[:, [0, 3], :] = False
    alone = emulator.machine.rounds(1)
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
    keys = np.array([64])
    size, tiles = 64 * 2 * 16 * 2, 64 * 2 * 16 * 2 // 512
    load, multiply = math.ceil(size // tiles / (p.bytes_per_cycle / 2)), math.ceil(64 * 2 * 16 / 64 / tiles)
    expected = 1 + 20 + load + (tiles - 1) * max(load, multiply) + multiply
    assert emulator.attention_cycles(keys)[0] == expected


def test_energy_is_the_sum_of_its_parts() -> None:
    p = preset()
    emulator = Emulator(p, work())
    result = emulator.run(np.zeros((2, 6, 8), dtype=bool))
    energy = energy_of(result, p)
    seconds = result.cycles * p.seconds_per_cycle
    assert energy.constant == pytest.approx(p.energy.board_power.value * seconds)
    assert energy.activity == pytest.approx(sum(energy.by_component.values()))
    assert energy.activity == pytest.approx(sum(energy.by_level.values()))
    mlp = result.components["mlp"]
    assert energy.by_component["mlp"] == pytest.approx(
        1e-12 * (mlp.weight_bytes * 8 * 20 + mlp.macs * 1.5 + mlp.vector_elements * 1.5 + mlp.buffer_bytes * 1.25)
    )
    assert energy.by_component["background"] == pytest.approx(1.5 * seconds)


# Properties


@st.composite
def situations(draw_: Any) -> tuple[Preset, Workload, np.ndarray]:
    rows, cores = draw_(st.integers(1, 8)), draw_(st.integers(1, 5))
    p = preset(
        cores=cores,
        core__mac_array=draw_(st.sampled_from([4, 64])),
        hbm__weights=draw_(st.sampled_from(["lockstep", "multicast", "private"])),
        hbm__channel_bandwidth=draw_(st.sampled_from([0.1, 1.0, 12.8])),
        hbm__latency=draw_(st.sampled_from([0, 1, 20])),
        core__buffer=draw_(st.sampled_from([1, 32])),
        drs__fetch=draw_(st.sampled_from(["skip", "stream"])),
        drs__drop=draw_(st.sampled_from([1, 16])),
        drs__queue=draw_(st.integers(1, 3)),
    )
    w = work(rows=rows, layers=1, frames=2, tokens_per_frame=2)
    bits = draw_(st.lists(st.booleans(), min_size=3 * rows, max_size=3 * rows))
    return p, w, np.array(bits).reshape(1, rows, 3)


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
    rows, total = emulator.machine.layer(index, w.rows, gaps)
    wanted, length = stepped(emulator.machine, emulator.mlp, emulator.rates, index, w.rows, gaps)
    assert {r.row: tuple(r[1:]) for r in rows if r.core is not None} == wanted
    assert total == length


@settings(max_examples=40, deadline=None)
@given(situations())
def test_a_run_is_the_sum_of_its_layers(situation: tuple[Preset, Workload, np.ndarray]) -> None:
    p, w, replayed = situation
    emulator = Emulator(p, w)
    run = emulator.run(replayed)
    layers = [
        emulator.machine.layer(sum(1 << r for r in np.flatnonzero(~replayed[0, :, step]).tolist()), w.rows)
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
    worst = float((~replayed).sum()) * emulator.machine.rounds(1)
    assert ideal <= min(drs, static) * (1 + 1e-9)
    assert drs <= worst * (1 + 1e-9)
    assert emulator.run(replayed, "drs").cycles == emulator.run(replayed, "drs").cycles


@given(st.sets(st.integers(0, 31)), st.integers(1, 16))
def test_registers_deal_round_robin(computing: set[int], cores: int) -> None:
    drs = Drs(cores)
    drs.remap(sorted(computing))
    assert 2**drs.mapping_bits >= cores
    found = [drs.arrive(r) for r in range(32)]
    assert [r for r, c in enumerate(found) if c is not None] == sorted(computing)
    assert [c for c in found if c is not None] == [i % cores for i in range(len(computing))]


def test_videos_beyond_the_index_register_come_in_batches(run: Run, tmp_path: Path) -> None:
    asked = ("--samples", "34", "--frames", "1", "--seed", "1", "--set", "sampling.cfg=1", "--json")
    done = run("generate", "a red ball", "--backend", "fpga-sim", *asked, "-o", "many")
    assert done.returncode == 0, done.stderr
    videos = json.loads(done.stdout)["videos"]
    assert [v["tokens"]["rows"] for v in videos] == [32] * 32 + [2] * 2
    assert len(list((tmp_path / "many").glob("*.mp4"))) == 34


def test_more_rows_than_the_index_register_has_bits() -> None:
    with pytest.raises(RequestError, match="33 rows: the Index Register of DRS has 32 bits"):
        check_rows(33)


# The published table


def test_published_table() -> None:
    rows = emulate_table(load_preset("paper-u280"))
    assert [r["published_s"] for r in rows] == [689.7, 670.5, 662.7, 556.8, 475.3, 390.7, 354.5, 324.3]
    assert all(abs(r["error"]) <= 0.02 for r in rows[:7])
    assert abs(rows[7]["error"]) <= 0.08


def test_the_fit_is_what_the_preset_holds_and_no_more_than_two_constants() -> None:
    p = load_preset("paper-u280")
    utilisation, rest = fit(p)
    assert p.rest.seconds_per_step is not None
    assert utilisation == pytest.approx(p.core.utilisation.value, rel=2e-3)
    assert rest == pytest.approx(p.rest.seconds_per_step.value, rel=2e-3)
    for name in fpga_presets():
        fitted = [k for k, c in constants(load_preset(name)).items() if c.kind == "fitted"]
        assert fitted == (["core.utilisation", "rest.seconds_per_step"] if name == "paper-u280" else [])


@pytest.mark.parametrize(("name", "speed"), [("flightllm-u280", 55.0), ("dfx-u280", 185.0), ("kv260-llama", 5.0)])
def test_published_decode_speeds_are_predicted_from_their_own_figures(run: Run, name: str, speed: float) -> None:
    (row,) = json.loads(run("fpga", "--preset", name, "--table", "--json").stdout)["rows"]
    assert row["published_tokens_per_s"] == speed
    assert row["error"] == pytest.approx(row["predicted_tokens_per_s"] / speed - 1)
    # Bound by the memory: a little below what the bandwidth allows, and never above it.
    assert 0.9 < row["predicted_tokens_per_s"] / row["bandwidth_bound_tokens_per_s"] < 1
    assert not [k for k, c in constants(load_preset(name)).items() if c.kind == "fitted"]
    p = load_preset(name)
    moved = POINTS[name].shape.workload().resident_weights * p.format.stored_bits / 8
    assert row["bandwidth_bound_tokens_per_s"] == pytest.approx(
        p.bytes_per_cycle / p.seconds_per_cycle / moved, rel=0.2
    )


# Presets


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(speed=3), "unknown key 'speed'"),
        (lambda d: d["core"]["mac_array"].update(unit="GOPS"), "core.mac_array.unit is 'GOPS'"),
        (lambda d: d["clock"].pop("source"), "key 'clock.source'"),
        (lambda d: d["hbm"]["efficiency"].update(value=1.5), "hbm.efficiency.value is 1.5"),
        (lambda d: d["rest"].update(mode="constant"), "mode 'constant' needs seconds_per_step"),
        (lambda d: [d["hbm"][k].update(kind="fitted") for k in ("capacity", "channels", "efficiency")], "3 fitted"),
        (lambda d: d.update(cores=0), "key 'cores'"),
        (lambda d: d["hbm"]["beat"].update(value=0.5), "hbm.beat.value is 0.5, needed: an integer"),
        (lambda d: d["drs"]["queue"].update(value=0), "drs.queue.value is 0"),
        (lambda d: d["hbm"].update(weights="broadcast"), "'lockstep', 'multicast' or 'private'"),
        (lambda d: d["hbm"].update(weights="multicast"), "weights 'multicast' need window"),
    ],
)  # fmt: skip
def test_bad_presets_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    data = yaml.safe_load((preset_folder() / "fpga" / "edge-small.yaml").read_text())
    change(data)
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(data))
    with pytest.raises(RequestError) as caught:
        load_preset(str(tmp_path / "mine.yaml"))
    assert message in str(caught.value) and "mine.yaml" in str(caught.value)


def test_weights_that_do_not_fit_are_refused_with_the_arithmetic() -> None:
    with pytest.raises(RequestError, match=r"x 16 bit / 8 = 18.63 GiB, it has 0.5 GiB"):
        Emulator(preset(), work(resident_weights=10**10))


# Values


def decode(tau: float | None, backend: Any, frames: int = 3) -> Decode:
    model = tiny_model()
    run = Decode(
        model,
        [[1, 4, 2], [1, 2]],
        DecodeSettings(frames=frames, sampling=SamplingSettings(cfg=2.0), rule=ReplayRule(Tau.read(tau))),
        uniforms(0, frames * 4, 3)[None],
        None if backend is None else FpgaBackend(model.llm, backend, 2),
    )
    for _ in run.steps():
        pass
    return run


@pytest.mark.parametrize("tau", [None, -0.5, -math.inf])
def test_float_passes_through_bit_for_bit(tau: float | None) -> None:
    ours, torchs = decode(tau, preset()), decode(tau, None)
    assert torch.equal(ours.codes, torchs.codes)
    backend = ours.backend
    assert isinstance(backend, FpgaBackend)
    replayed = 0 if ours.replay is None else int(ours.replay.replayed.sum())
    assert sum(backend.executed) == 3 * 2 * 11 - replayed
    if tau is None:
        assert backend.executed == [33, 33]


def test_int8_quantises_as_its_formula() -> None:
    model, int8 = tiny_model(), preset(format__kind="int8")
    x = torch.randn(4, 16, generator=torch.Generator().manual_seed(0))
    mlp = model.llm.blocks[0].mlp

    def quantised(x: torch.Tensor) -> torch.Tensor:
        scale = x.double().abs().amax(-1, keepdim=True) / 127
        return (x.double() / scale).round() * scale

    gate, up, down = (quantised(m.weight) for m in (mlp.gate_proj, mlp.up_proj, mlp.down_proj))
    inner = torch.nn.functional.silu(quantised(x) @ gate.T) * (quantised(x) @ up.T)
    wanted = quantised(inner) @ down.T
    found = FpgaBackend(model.llm, int8, 4).mlp(0, x, None)
    assert float((found - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())
    error = float((found - mlp(x)).norm() / mlp(x).norm())
    assert 1e-4 < error < 0.05


# Decisions


@settings(deadline=None)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 9)),
    seed=st.integers(0, 99),
    window=st.none() | st.integers(1, 9),
)
def test_saved_decisions_come_back(
    tmp_path_factory: Any, shape: tuple[int, ...], seed: int, window: int | None
) -> None:
    file = tmp_path_factory.mktemp("d") / "run.npz"
    bits = np.random.default_rng(seed).random(shape) < 0.5
    before = Decisions(bits, {"name": "x"}, 3, 2, window, 4, {"tau": -2})
    save(file, before)
    after = read(file)
    assert np.array_equal(after.replayed, bits)
    assert (after.spec, after.prompt, after.window, after.note) == (before.spec, 3, window, {"tau": -2})


def test_damaged_decisions_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    save(file, Decisions(np.ones((2, 2, 99), dtype=bool), {}, 1, 1, None, 4, {}))
    whole = file.read_bytes()
    for content in (whole[:-60], b"nothing", b""):
        file.write_bytes(content)
        with pytest.raises(RequestError, match=r"run\.npz"):
            read(file)
    with pytest.raises(RequestError, match="no such file"):
        read(tmp_path / "none.npz")


def test_drawn_decisions_have_the_ratio_asked_for() -> None:
    shape = {"layers": 12, "rows": 4, "frames": 4, "tokens_per_frame": 64, "seed": 0}
    for profile in ("flat", "valley"):
        bits = draw(ratio=0.5, profile=profile, **shape)
        assert bits.mean() == pytest.approx(0.5, abs=0.01) and not bits[:, :, :64].any()
    by_layer = bits.mean((1, 2))
    assert by_layer[0] > by_layer[6] + 0.1
    together = draw(ratio=0.5, pair_correlation=1.0, **shape)
    assert np.array_equal(together[:, :2], together[:, 2:])
    with pytest.raises(RequestError, match=r"at most 0\.749"):
        draw(ratio=0.9, **shape)
    assert draw(ratio=0.9, spread="all", **shape)[:, :, :64].any()


# What users see


def test_generate_on_the_accelerator(run: Run, tmp_path: Path) -> None:
    prompt = "a red ball rolling to the right on the grass"
    common = ("generate", prompt, "--tau", "-2", "--seed", "1", "--frames", "3", "--json")
    done = run(*common, "--backend", "fpga-sim", "--report", "r", "--trace", "t.npz", "-o", "a.mp4")
    assert done.returncode == 0, done.stderr
    backend = json.loads(done.stdout)["backend"]
    assert {
        "name", "preset", "cycles", "latency_s", "energy_j", "power_w", "cores", "utilisation", "drs_cycles",
        "speedup_vs_dense", "speedup_vs_static",
    } <= backend.keys()  # fmt: skip
    assert sum(backend["cycles_by_component"].values()) == pytest.approx(backend["cycles"], abs=3)
    plain = run(*common, "-o", "b.mp4")
    assert (tmp_path / "a.mp4").stat().st_size > 0 and plain.returncode == 0
    assert json.loads(plain.stdout)["replay"] == json.loads(done.stdout)["replay"]
    names = {p.name for p in (tmp_path / "r").iterdir()}
    assert names == {"compute.csv", "bandwidth.csv", "energy.csv", "timeline.json", "cores.png", "energy.png"}
    events = json.loads((tmp_path / "r" / "timeline.json").read_text())["traceEvents"]
    assert {e["ph"] for e in events} == {"M", "X"} and all(e["dur"] >= 0 for e in events if e["ph"] == "X")
    header = (tmp_path / "r" / "compute.csv").read_text().splitlines()[0]
    assert header == "scheduler,component,cycles,time_s,macs,vector_elements"
    again = run("fpga", "t.npz", "--preset", "edge-small", "--json")
    assert json.loads(again.stdout)["runs"][0]["cycles"] == backend["cycles"]


def test_int8_is_visible_in_the_values(run: Run, tmp_path: Path) -> None:
    data = yaml.safe_load((preset_folder() / "fpga" / "edge-small.yaml").read_text())
    data["format"] |= {"kind": "int8", "weight_bits": 8}
    (tmp_path / "int8.yaml").write_text(yaml.safe_dump(data))
    common = ("generate", "a red ball", "--seed", "1", "--frames", "2", "--backend", "fpga-sim", "--json", "--trace")
    float_, int8 = (
        run(*common, f"{n}.npz", "--fpga", f, "-o", f"{n}.mp4") for n, f in enumerate(("edge-small", "int8.yaml"))
    )
    assert float_.returncode == int8.returncode == 0, int8.stderr
    assert json.loads(int8.stdout)["backend"]["cycles"] < json.loads(float_.stdout)["backend"]["cycles"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("generate", "a red ball", "--fpga", "edge-small"), "--fpga has no effect with the backend torch"),
        (("generate", "a red ball", "--report", "r"), "--report has no effect with the backend torch"),
        (("generate", "a red ball", "--backend", "fpga-sim", "--fpga", "edge-smal"), "did you mean 'edge-small'"),
        (("generate", "a red ball", "--trace", "t.txt"), "ends in .npz"),
        (
            ("generate", "a red ball", "--backend", "fpga-sim", "--samples", "33", "--report", "r"),
            "33 videos are decoded in batches of 32",
        ),
        (("fpga", "--rows", "33"), "32"),
        (("fpga", "none.npz"), "no such file"),
        (("fpga", "--replay", "0.9"), "at most 0.87"),
        (("fpga", "--replay", "x"), "not numbers"),
        (("fpga", "--preset", "edge-small"), "do not fit the memory of edge-small"),
        (("fpga", "--spread", "some"), "allowed: eligible, all"),
        (("fpga", "--window", "0"), "--window is 0"),
        (("fpga", "--table", "--rows", "3"), "--rows has no effect with --table"),
        (("fpga", "--table", "--rows", "3"), "allowed: --preset, --table, --json"),
        (("fpga", "--sinks", "2"), "--sinks has no effect"),
        (("fpga", "--rows", "3", "--pair-correlation", "0.5"), "rows have no pairs"),
        (("fpga", "none.npz", "--frames", "2"), "--frames has no effect with a file of decisions"),
        (("fpga", "--report", ""), "--report: is empty"),
    ],
)
def test_wrong_requests(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and message in " ".join(done.stderr.replace("│", " ").split()), done.stderr
    assert "Traceback" not in done.stderr


def test_table_and_explain_print(run: Run) -> None:
    done = run("fpga", "--preset", "paper-u280", "--table", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [r["method"] for r in rows] == [t.method for t in TABLE]
    assert {"published_s", "emulated_s", "emulated_speedup", "emulated_relative_efficiency"} <= rows[0].keys()
    done = run("fpga", "--preset", "paper-u280", "--explain", "--replay", "0.5", "--rows", "4")
    assert "135,266,304" in done.stdout and "mJ" in done.stdout


def test_explained_terms_are_the_emulated_ones() -> None:
    emulator = Emulator(preset(), work())
    lines = "\n".join(explain(emulator, 3))
    assert f"MLP = 2 x (start 1 + row {emulator.machine.row:,}) = {emulator.machine.rounds(2):,} cycles" in lines
    assert f"both together {emulator.machine.layer(0b111, 6)[1]:,} cycles" in lines


def test_comparison_against_itself_without_replay() -> None:
    found = compare(Emulator(preset(), work()), np.zeros((2, 6, 8), dtype=bool)).to_dict()
    assert found["speedup_vs_static"] == found["speedup_vs_dense"] <= 1.0
    assert found["energy_j"] == pytest.approx(found["power_w"] * found["latency_s"])


def test_what_broadcast_costs_is_printed_from_copies_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    # Slow memory: without sharing each core waits for its own share.
    slow, wide = preset(hbm__channel_bandwidth=0.05), work(frames=30)
    rows = [line.strip("| ").split(" | ") for line in broadcast.table(slow, wide)]
    assert [tuple(row[1:3]) for row in rows] == list(broadcast.WAYS)
    for row, (weights, fetch) in zip(rows, broadcast.WAYS, strict=True):
        seconds, share = broadcast.cost(broadcast.variant(slow, weights, fetch), wide, 0.5)
        assert row[4] == f"{seconds:.4g} ({share:.2%})"
    assert broadcast.variant(slow, "lockstep", "skip") == slow
    dense = [float(row[3].split()[0]) for row in rows]
    assert dense[3] > 1.5 * dense[0] >= 1.5 * dense[2]
    assert broadcast.main(["edge-smal"]) == 2 and "did you mean" in capsys.readouterr().err
