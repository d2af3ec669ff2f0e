"""The RTL against the emulator: cycle by cycle in Verilator."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fpga_presets import constant, preset
from support.processes import Run
from support.rtl import changed, needs_verilator, rows_of
from support.tiny import tiny_spec

from fastcar_cli.checkpoints.open import spec_of
from fastcar_cli.config.presets import fpga_presets
from fastcar_cli.errors import RequestError
from fastcar_fpga.decisions import Decisions, Windows, draw, save
from fastcar_fpga.isa import UNIT_OF, Rates, compile_mlp
from fastcar_fpga.layer import Accelerator, Registers
from fastcar_fpga.preset import load_preset
from fastcar_fpga.workload import workload_of
from fastcar_lab.accelerator.rtl import bundle, stimulus, tools
from fastcar_lab.accelerator.rtl.stimulus import counts, words_of


def trace(file: Path, passes: int = 7, rows: int = 8, ratio: float = 0.5, seed: int = 3) -> Decisions:
    """Drawn decisions in the shape of the bundled model, saved."""
    spec = spec_of("mini")
    bits = draw(workload_of(spec, rows=rows, frames=8, prompt=9), ratio, seed, "all")[:, :, :passes]
    saved = Decisions(bits, spec, 9, 8, None, 4, {})
    save(file, saved)
    return saved


# Without tools


@given(tile=st.integers(8, 400), speed=st.floats(0.5, 64))
def test_a_packet_says_what_each_instruction_waits_for(tile: int, speed: float) -> None:
    program = compile_mlp(24, 40, 8, tile)
    rates = Rates(16.0, 8.0, speed)
    header, *words = words_of(program, rates)
    assert len(words) == len(program.instructions) == header & 0xFFFF == program.words - 1
    assert (header >> 24 & 0xFFFF, header >> 40 & 0xFFFF) == (counts(program)["memory"], counts(program)["mac"])
    done: dict[str, list[int]] = {"memory": [], "mac": [], "vector": []}
    for index, (word, instruction) in enumerate(zip(words, program.instructions, strict=True)):
        unit = UNIT_OF[instruction.op]
        assert word >> 3 & (1 << 29) - 1 == rates.length(instruction)
        first, second = word >> 32 & 0xFFFF, word >> 48
        waited = done["memory"][:first] + done["vector"][:second] if unit == "mac" else done["mac"][:first]
        # Units run in order, so waiting for so many of one means waiting for each of these.
        assert {i for i in instruction.after if UNIT_OF[program.instructions[i].op] != unit} <= set(waited)
        assert set(waited) <= set(range(index))
        done[unit].append(index)


def test_the_folder_holds_what_the_emulator_expects(tmp_path: Path) -> None:
    saved = trace(tmp_path / "t.npz")
    written = bundle.write(tmp_path / "d", load_preset("edge-small"), saved, passes=2)
    layers = rows_of(tmp_path / "d" / "layers.csv")
    of_trace = [r for r in layers if r["pass"]]
    assert written["layers"] == len(layers) == bundle.RANDOM_LAYERS + 2 * saved.replayed.shape[0]
    expected = rows_of(tmp_path / "d" / "expected.csv")
    for line in of_trace:
        mine = [r for r in expected if r["number"] == line["number"]]
        computing = ~saved.replayed[int(line["layer"]), :, int(line["pass"])]
        assert [bool(r["core"]) for r in mine] == computing.tolist()
        assert int(line["index"], 16) == sum(1 << int(r) for r in np.flatnonzero(computing))
        assert [int(r["core"]) for r in mine if r["core"]] == [i % 2 for i in range(computing.sum())]
    assert {int(r["rows"]) for r in layers if not r["pass"]} == set(range(1, 33))


def test_a_packet_is_whole_in_the_cycle_in_which_its_core_starts_another(tmp_path: Path) -> None:
    bundle.write(tmp_path, load_preset("edge-small"), None)
    for machine in ("machine_3", "machine_5"):
        lines = (tmp_path / machine / "expected.csv").read_text().splitlines()[1:]
        rows = [cells for line in lines if (cells := line.split(","))[4]]
        whole = {(number, core, last) for number, _, _, _, core, _, last, _, _ in rows}
        starts = {(number, core, str(int(begin) - 1)) for number, _, _, _, core, _, _, begin, _ in rows}
        assert len(whole & starts) > 20


def test_registers_are_kept_from_layer_to_layer_and_make_no_difference() -> None:
    machine = Accelerator(3, "lockstep", row=50, late=40, remap=32, packet=9, drop=4, queue=2)
    kept = Registers(3)
    for index in (0b1111_0110, 0b1, 0, 0b1010_1010, 0xFF):
        assert machine.layer(index, 8, drs=kept) == machine.layer(index, 8)


def test_a_source_changed_in_the_folder_stays(tmp_path: Path) -> None:
    bundle.write(tmp_path, load_preset("edge-small"), None)
    changed = (tmp_path / "drs.sv").read_text() + "// mine\n"
    (tmp_path / "drs.sv").write_text(changed)
    assert bundle.write(tmp_path, load_preset("u280-int8"), None)["kept"] == ["drs.sv"]
    assert (tmp_path / "drs.sv").read_text() == changed
    assert "-GCORES=8" in (tmp_path / "parameters.f").read_text()


def test_a_source_of_another_version_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle.write(tmp_path / "d", load_preset("edge-small"), None)
    newer = tmp_path / "newer"
    shutil.copytree(tools.SOURCE, newer)
    (newer / "drs.sv").write_text((newer / "drs.sv").read_text() + "// newer\n")
    monkeypatch.setattr(bundle, "SOURCE", newer)
    assert bundle.write(tmp_path / "d", load_preset("edge-small"), None)["kept"] == []
    assert (tmp_path / "d" / "drs.sv").read_text().endswith("// newer\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", fpga_presets())
def test_every_shipped_preset_has_rtl(tmp_path: Path, name: str) -> None:
    assert bundle.write(tmp_path, load_preset(name), None)["parameters"]["CORES"] == load_preset(name).cores


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"drs__dispatch": constant(9, "cycles/row")}, "drs.dispatch is 9, but a packet of 10 words"),
        ({"drs__remap": 8}, "no drs.remap 8"),
        ({"drs__drop": 0}, "no drs.drop 0"),
        ({"hbm__latency": 0}, "no hbm.latency 0"),
    ],
)
def test_machines_that_the_rtl_has_not_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        bundle.write(tmp_path / "d", preset(**change), None)
    assert not (tmp_path / "d").exists()


def test_a_trace_of_another_architecture(tmp_path: Path) -> None:
    spec = spec_of("thuml/ivideogpt-bair-64-act-cond")
    decisions = Decisions(np.zeros((spec.decoder.layers, 2, 1), dtype=bool), spec, 9, 8, None, 4, {})
    written = bundle.write(tmp_path / "d", load_preset("edge-small"), decisions)
    assert written["layers"] == bundle.RANDOM_LAYERS + spec.decoder.layers


def test_more_rows_than_the_register_has_bits_are_refused(tmp_path: Path) -> None:
    spec = spec_of("mini")
    # None of those beyond computes.
    decisions = Decisions(np.ones((6, 33, 1), dtype=bool), spec, 9, 8, None, 4, {})
    with pytest.raises(RequestError, match="33 input tokens"):
        bundle.write(tmp_path / "d", load_preset("edge-small"), decisions)
    assert not (tmp_path / "d").exists()


def test_a_missing_program_is_named_with_what_installs_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    for name in ("VERILATOR", "YOSYS"):
        monkeypatch.delenv(name, raising=False)
    for option, said in (("--check", "apt-get install verilator"), ("--synth", "apt-get install yosys")):
        done = run("fpga", "rtl", "-o", "d", option)
        words = " ".join(done.stderr.replace("│", " ").split())
        assert done.returncode == 2 and "fastcar[rtl]" in words and said in words, done.stderr


def test_wrong_requests_for_rtl(run: Run) -> None:
    for arguments, said in (
        ((), "-o is missing"),
        (("-o", "d", "--passes", "2"), "--passes has no effect without"),
        (("none.npz", "-o", "d"), "no such file"),
        (("-o", "d", "--preset", "edge-smal"), "did you mean"),
    ):
        done = run("fpga", "rtl", *arguments)
        assert done.returncode == 2 and said in done.stderr, done.stderr


# Verilator


def build(folder: Path, **changes: Any) -> tuple[bool, str]:
    bundle.write(folder, preset(**changes), None)
    return tools.simulate(folder, layers=bundle.RANDOM_LAYERS)


# The step "RTL" of CI runs such a trace too.
@needs_verilator
@pytest.mark.long
@pytest.mark.slow
def test_a_trace_of_the_bundled_model_runs_in_the_cycles_that_the_emulator_says(run: Run, tmp_path: Path) -> None:
    words = ("--frames", "2", "--tau", "-2", "--seed", "5", "--draft", "off", "--trace", "t.npz", "-o", "t.mp4")
    assert run("generate", "a red ball rolling to the right on the grass", *words).returncode == 0
    done = run("fpga", "rtl", "t.npz", "-o", "d", "--check", "--json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    print(document["check"]["result"])
    # 2 frames of 64 tokens, the last of which no pass follows, on 6 layers.
    assert document["layers"] == bundle.RANDOM_LAYERS + (2 * 64 - 1) * 6
    lines = document["check"]["result"].splitlines()
    assert document["check"]["same"] and all(line.endswith("no difference") for line in lines[:7])
    # The preset's machine, the two others, the parts of the arithmetic, a core.
    assert [line.split(":")[0] for line in lines[:4]] == ["2 cores", "3 cores", "5 cores", "arithmetic"]
    layers = [line for line in lines if line.startswith("layer")]
    assert [line.split(":")[0] for line in layers] == [
        "layer, 2 cores, weights 1", "layer, 3 cores, weights 2", "layer, 3 cores, weights 0"
    ]  # fmt: skip
    assert [line.split(":")[0] for line in lines[7:]] == ["proved"] * 4


@needs_verilator
@pytest.mark.slow
def test_passes_with_drafts_run_in_the_cycles_that_the_emulator_says(tmp_path: Path) -> None:
    # Up to the full register: 16 input tokens of two rows.
    taken, accepted = np.array([1, 16, 3, 8]), np.array([[1], [9], [3], [2]])
    bits = np.random.default_rng(0).random((3, 2, taken.sum())) < 0.6
    windows = Windows(taken, accepted, bits)
    bundle.write(tmp_path, preset(), Decisions(windows.final(15), tiny_spec(), 3, 4, None, 4, {}, windows))
    lines = (tmp_path / "layers.csv").read_text().splitlines()
    assert [int(line.split(",")[4]) for line in lines[1 + bundle.RANDOM_LAYERS :]] == (2 * taken).repeat(3).tolist()
    layers = bundle.RANDOM_LAYERS + 3 * len(taken)
    same, line = tools.simulate(tmp_path, layers=layers)
    assert same and f"{layers} layers" in line, line
    *cells, cycles = lines[-1].split(",")
    (tmp_path / "layers.csv").write_text("\n".join([*lines[:-1], ",".join([*cells, str(int(cycles) + 1)])]) + "\n")
    assert tools.call(["build/simulate"], tmp_path)[0] == 1


@needs_verilator
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        # With 2 cores the turn is one bit and wraps by itself: another machine shows it.
        ("drs.sv", "CORES - 1) ? '0 :", "CORES - 1) ? turn + 1'b1 :", r"row \d+, cycle \d+: .*of 3 cores"),
        ("drs.sv", "hit    <= index[next_row]", "hit    <= index[row]", r"row \d+, cycle \d+: .*of 2 cores"),
        ("drs.sv", ": DROP == 1);", ": 1'b0);", r"row \d+, cycle \d+: .*of 5 cores"),
        # A signal that nobody uses any more is a warning, and no reason not to run.
        (
            "drs.sv",
            "SEND, PASS: advance = take && left == 16'd1",
            "SEND, PASS: advance = take",
            r"row \d+, cycle \d+: ",
        ),
        (
            "arithmetic/mac_array.sv",
            "first_at[STAGES-1] ? 32'sd0 : sum",
            "32'sd0",
            r"arithmetic, mac_array, number",
        ),
        ("arithmetic/datapath.sv", "whole ? '0 : term", "term", r"layer \d+, row \d+, cycle \d+: output \d+"),
        # A ring of two wraps by itself: the other machines have three.
        ("sequencer.sv", "at == QUEUE_BITS'(QUEUE - 1)", "at == QUEUE_BITS'(QUEUE)", r"row \d+, .*of 3 cores"),
        (
            "sequencer.sv",
            "waiting + HELD_BITS'(packet_whole) - HELD_BITS'(go)",
            "packet_whole ? waiting + 1'b1 : waiting - HELD_BITS'(go)",
            r"without a packet .*of 3 cores",
        ),
    ],
    ids=["wrap", "lookup", "jump", "word", "sums", "layer", "ring", "at once"],
)
def test_a_source_changed_in_the_folder_is_found(tmp_path: Path, name: str, before: str, after: str, said: str) -> None:
    bundle.write(tmp_path, load_preset("edge-small"), None)
    changed(tmp_path / name, before, after)
    if name.startswith("arithmetic"):
        # The other machines come before it and have none of it.
        for machine in tmp_path.glob("machine_*"):
            shutil.rmtree(machine)
    same, line = tools.simulate(tmp_path)
    print(line)
    assert not same and line.startswith("DIFFERENCE: ") and re.search(said, line), line


def _no_wrap(drs: Registers, computing: Sequence[int]) -> None:
    drs.index = sum(1 << row for row in computing)
    for turn, row in enumerate(computing):
        drs.mapping[row] = min(turn, drs.cores - 1)


def _kept_bits(drs: Registers, computing: Sequence[int]) -> None:
    for turn, row in enumerate(computing):
        drs.index |= 1 << row
        drs.mapping[row] = turn % drs.cores


@needs_verilator
@pytest.mark.slow
def test_a_wrong_emulator_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build(tmp_path)[0]
    for name, fault in (
        ("remap", _no_wrap),
        ("remap", _kept_bits),
        ("arrive", lambda drs, row: drs.mapping[row] if drs.index >> row & 3 else None),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(Registers, name, fault)
            bundle.write(tmp_path, preset(), None)
        status, line = tools.call(["build/simulate"], tmp_path)
        print(line)
        assert status == 1 and re.search(r"DIFFERENCE: random layer \d+, row \d+, cycle \d+: ", line)


def _wider(drs: Registers, cores: int) -> None:
    drs.cores, drs.index, drs.mapping = cores, 0, [0] * 32
    drs.mapping_bits = cores.bit_length() + 1


@needs_verilator
@pytest.mark.slow
@pytest.mark.parametrize(
    ("holder", "name", "value", "said"),
    [
        (bundle, "INDEX_BITS", 31, "cycle 0: bits of the Index Register 32, expected 31"),
        (Registers, "__init__", _wider, "cycle 1: bits of a Mapping Register 1, expected 3"),
    ],
    ids=["index", "mapping"],
)
def test_a_register_of_another_width_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, holder: Any, name: str, value: Any, said: str
) -> None:
    monkeypatch.setattr(holder, name, value)
    same, line = build(tmp_path)
    assert not same and line == f"DIFFERENCE: random layer 0, row 0, {said} (machine of 2 cores)", line


@needs_verilator
@pytest.mark.slow
@pytest.mark.parametrize("weights", stimulus.WEIGHTS)
def test_verilator_has_nothing_to_say_of_the_sources(tmp_path: Path, weights: str) -> None:
    bundle.write(tmp_path, preset(hbm__weights=weights), None)
    sources = sorted(f.name for f in tmp_path.glob("*.sv"))
    for machine in (".", "machine_3", "machine_5"):
        options = ["--lint-only", "-Wall", "--quiet", "--top-module", "accelerator", "-f", f"{machine}/parameters.f"]
        assert tools.call([tools.verilator(), *options, *sources], tmp_path) == (0, "")


MACHINES = [
    pytest.param(cores, weights, marks=pytest.mark.long if (i + j) % 2 else ())
    for i, cores in enumerate((1, 2, 3, 4, 6, 7, 8))
    for j, weights in enumerate(stimulus.WEIGHTS)
]
"""Numbers of cores with each way of weights; every other one is long."""


@needs_verilator
@pytest.mark.slow
@pytest.mark.parametrize(("cores", "weights"), MACHINES)
def test_random_layers_on_any_number_of_cores(tmp_path: Path, cores: int, weights: str) -> None:
    fetch, queue = ("skip", 2) if cores % 2 else ("stream", 1)
    same, line = build(tmp_path, cores=cores, hbm__weights=weights, drs__fetch=fetch, drs__queue=queue)
    print(f"{cores} cores, {weights}, {fetch}, queue {queue}: {line}")
    assert same, line


@needs_verilator
@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"drs__queue": 3, "drs__remap": 40, "cores": 5},
        {"drs__drop": 1, "hbm__latency": 1, "cores": 3},
        {"drs__queue": 1, "drs__drop": 200, "hbm__latency": 300, "cores": 7},
        {"hbm__weights": "multicast", "cores": 3},
        {"hbm__weights": "multicast", "hbm__window": constant(4, "tiles"), "drs__queue": 3, "cores": 7},
        {"hbm__weights": "multicast", "hbm__window": constant(1, "tiles"), "drs__queue": 1, "cores": 8},
        {"drs__dispatch": constant(70, "cycles/row"), "drs__fetch": "stream", "cores": 6},
    ],
    ids=["deep", "fast", "late", "multicast", "wide", "narrow", "dispatch"],
)
def test_other_machines(tmp_path: Path, changes: dict[str, Any]) -> None:
    same, line = build(tmp_path, **changes)
    print(f"{changes}: {line}")
    assert same, line


@needs_verilator
@pytest.mark.slow
def test_switching_activity_is_written_for_the_vendors_tool(run: Run, tmp_path: Path) -> None:
    done = run("fpga", "rtl", "-o", "d", "--saif", "--json")
    assert done.returncode == 0, done.stderr
    assert "scheduler" in (tmp_path / "d" / "activity.saif").read_text()
    assert "NOT RUN BY US" in (tmp_path / "d" / "power.tcl").read_text()
