"""A core's arithmetic in SystemVerilog against integer.py, bit for bit: a real int8 decode, and the ends of ranges."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.processes import Run

from fastcar_cli.errors import RequestError, RunError
from fastcar_fpga import integer
from fastcar_fpga.integer import Coded, Rows
from fastcar_fpga.isa import spans
from fastcar_fpga.preset import load_preset
from fastcar_lab.accelerator.arithmetic import Units, compare_layers, write_arithmetic
from fastcar_lab.accelerator.decoded import compared, decoded, layer_of
from fastcar_lab.accelerator.rtl import bundle, joined
from fastcar_lab.accelerator.rtl.tools import call, compiler, verilator, yosys

PRESET = load_preset("edge-int8")
LIMIT = integer.LIMIT
ENDS = torch.tensor(
    [0, 1, -1, 2, -2, 15, 2**14, 2**15 - 1, 2**15, 2**15 + 1, 2**20, -(2**20), LIMIT - 1, LIMIT, -LIMIT]
)
HALVES = torch.tensor([254, 1, 3, -5])
"""254 is coded as 127, so the others lie in the middle between two codes."""


def needs(*tools: Callable[[], str]) -> None:
    """Skips where a program is missing, with the command that installs it."""
    try:
        for tool in tools:
            tool()
    except RequestError as e:
        pytest.skip(f"{e}: {e.hint}")


@pytest.fixture(scope="module")
def units(tmp_path_factory: pytest.TempPathFactory) -> Units:
    needs(verilator, compiler)
    folder = tmp_path_factory.mktemp("arithmetic")
    write_arithmetic(folder)
    return Units(folder, int(PRESET.core.mac_array.value))


def spread(count: int, seed: int) -> torch.Tensor:
    """Fixed-point numbers of every size, with their ends."""
    draws = torch.Generator().manual_seed(seed)
    size = torch.randint(0, LIMIT, (count,), generator=draws) >> torch.randint(0, 31, (count,), generator=draws)
    sign = torch.randint(0, 2, (count,), generator=draws) * 2 - 1
    return torch.cat([size * sign, ENDS])


def requantises(units: Units, exponent: int) -> bool:
    draws = torch.Generator().manual_seed(exponent)
    found = spread(20_000, exponent)[None]
    rows = Rows(torch.empty(0), torch.randint(0, 2**16, (found.shape[1],), generator=draws), exponent)
    mantissa = torch.randint(1, 2**15 + 1, (1, 1), generator=draws)
    x = Coded(torch.empty(0), mantissa, torch.tensor([[16]]))
    return torch.equal(units.requantised(found, rows, x), integer.requantised(found, rows, x))


def activates(units: Units, gate: torch.Tensor, up: torch.Tensor) -> bool:
    return torch.equal(units.activated(gate, up), integer.activated(gate, up))


def codes(units: Units, x: torch.Tensor) -> bool:
    found, wanted = units.code(x[None]), integer.code(x[None])
    pairs = ((found.q, wanted.q), (found.mantissa, wanted.mantissa), (found.exponent, wanted.exponent))
    return all(torch.equal(a, b) for a, b in pairs)


def sums(units: Units, x: torch.Tensor, weight: torch.Tensor) -> bool:
    return torch.equal(units.sums(x, weight), weight @ x)


@pytest.mark.slow
def test_sums_and_numbers_of_a_real_int8_decode(units: Units) -> None:
    tokens = decoded("mini", PRESET, every=12)
    assert len(tokens) == 5 * 6 and {t.layer for t in tokens} == set(range(6))
    counts: dict[str, int] = {}
    for token in tokens:
        for what, count in compared(units, token):
            counts[what] = counts.get(what, 0) + count
    # Gate, up and down; the same and activated; codes with mantissa and exponent.
    assert counts["sums"] == len(tokens) * (704 + 704 + 256)
    assert counts["fixed-point numbers"] == len(tokens) * (704 + 704 + 256 + 704)
    assert counts["codes"] == len(tokens) * (704 + 2)


@pytest.mark.slow
def test_sums_at_the_ends_of_their_range(units: Units) -> None:
    for q, w in ((127, 127), (-127, 127), (-128, -128)):
        assert sums(units, torch.full((11008,), q), torch.full((3, 11008), w))
    assert sums(units, torch.tensor([-5]), torch.arange(-100, 100)[:, None])


@pytest.mark.slow
def test_requantisation_of_any_numbers(units: Units) -> None:
    assert all(requantises(units, exponent) for exponent in (16, 17, 31, 46, 70))


@pytest.mark.slow
def test_activation_of_any_numbers(units: Units) -> None:
    assert activates(units, spread(200_000, 2), spread(200_000, 3))
    near = torch.arange(-17 * 2**16, 17 * 2**16, 37)
    assert activates(units, near, torch.full_like(near, 2**16))


@pytest.mark.slow
def test_codes_of_any_vectors(units: Units) -> None:
    vectors = [spread(64, seed) >> (seed % 31) for seed in range(60)]
    assert all(codes(units, x) for x in [*vectors, HALVES, torch.zeros(5, dtype=torch.int64), *(e[None] for e in ENDS)])


FAULTS = {
    "mac_array": ("first_at[STAGES-1] ? 32'sd0 : sum", "first_at[0] ? 32'sd0 : sum"),
    "requantise": ("(by_2 - 6'd1)", "(by_2 - 6'd2)"),
    "activate": ("17'h10000 - low_3", "17'h0ffff - low_3"),
    "coder": ("rest[i-1] >= 40'(divisor)", "rest[i-1] > 40'(divisor)"),
}


@pytest.mark.slow
def test_a_fault_in_each_part_is_seen(tmp_path: Path) -> None:
    needs(verilator, compiler)
    write_arithmetic(tmp_path)
    for name, (right, wrong) in FAULTS.items():
        file = tmp_path / "arithmetic" / f"{name}.sv"
        text = file.read_text()
        assert text.count(right) == 1
        file.write_text(text.replace(right, wrong))
    units = Units(tmp_path, 16)
    assert not sums(units, torch.tensor([1, 2, 3]), torch.arange(96).view(32, 3))
    assert not requantises(units, 31) and not codes(units, HALVES)
    assert not activates(units, spread(200, 2), spread(200, 3))
    with pytest.raises(RunError, match=r"pass \d+, layer 0, row 0, gate sum \d+: the RTL gives -?\d+, the emulator"):
        list(compared(units, decoded("mini", PRESET, every=64)[0]))


@pytest.mark.slow
def test_layers_of_a_real_decode_have_the_cycles_and_outputs_of_the_emulator(tmp_path: Path) -> None:
    needs(verilator, compiler)
    write_arithmetic(tmp_path)
    tokens = decoded("mini", PRESET, every=12)
    rows = [[t for t in tokens if t.layer == layer] for layer in range(6)]
    layers = [layer_of(PRESET, row) for row in rows]
    said = compare_layers(tmp_path, PRESET, layers)
    assert f"6 layers, {len(tokens) * 256} outputs" in said and said.endswith("no difference")
    # The outputs are those of the backend that decodes.
    for row, layer in zip(rows, layers, strict=True):
        for at, token in enumerate(row):
            assert torch.equal(layer.outputs(at), token.mlp.whole(token.x)[0])


def test_a_layer_waits_for_refreshes_and_for_the_pipelines_of_its_cores() -> None:
    layer = next(x for x in joined.random_mlps(PRESET) if x.dram and x.index)
    steady = replace(layer, dram=False, rates=replace(layer.rates, bytes=PRESET.rate()))
    assert layer.run(PRESET)[1] != steady.run(PRESET)[1]
    without = replace(steady, rates=replace(steady.rates, drain=0, settle=0))
    ran, shorter = (spans(x.program, x.rates)[0] for x in (steady, without))
    lag = max(s.end for s in ran) - max(s.end for s in shorter)
    # Drained and settled before the code and before down, and at the end of the row.
    assert lag >= steady.rates.drain + 2 * steady.rates.settle


JOINED = {
    "overwritten": ("sequencer.sv", "macs_done >= needs", "macs_done + 16'd1 >= needs"),
    "unloaded": ("sequencer.sv", "loads_done >= next_mac[47:32]", "loads_done + 16'd1 >= next_mac[47:32]"),
    "vector": ("sequencer.sv", "next_mac[63:48] != '0 : waited", "1'b0 : waited"),
    "undrained": ("arithmetic/layer.sv", ".DRAIN($clog2(MACS) + 9)", ".DRAIN($clog2(MACS) + 8)"),
    "unsettled": ("arithmetic/layer.sv", ".SETTLE(10)", ".SETTLE(9)"),
    "stale pulse": ("sequencer.sv", "settle (.clk, .clear(rst || opens)", "settle (.clk, .clear(rst)"),
    "reset": ("arithmetic/datapath.sv", "{weight_in, weight_out, term, valid, up}", "{weight_out, term, valid, up}"),
    "row": ("arithmetic/datapath.sv", "scales[row]", "scales[0]"),
    "turn": ("arithmetic/datapath.sv", "up <= !up", "up <= 1'b1"),
    "multiplier": (
        "arithmetic/datapath.sv",
        "multipliers[{matrix, number[matrix]}];",
        "multipliers[{matrix, number[0]}];",
    ),
    "largest": ("arithmetic/coder.sv", "for (int l = 0; l < LANES; l++) if", "for (int l = 0; l < 1; l++) if"),
    "group": ("arithmetic/datapath.sv", "GROUP_BITS'(GROUPS - 1) ? '0 : group", "GROUP_BITS'(GROUPS - 2) ? '0 : group"),
    "member": ("arithmetic/layer.sv", "weight_valid[P] && member[c]", "weight_valid[P]"),
    "port": ("arithmetic/layer.sv", "localparam int P = WEIGHTS == 0 ? c : 0", "localparam int P = 0"),
    "order": ("arithmetic/dram.h", ": burst % t.groups;", ": burst / 2 % t.groups;"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", JOINED)
def test_a_fault_in_the_joined_cores_is_seen(tmp_path: Path, fault: str) -> None:
    needs(verilator, compiler)
    name, right, wrong = JOINED[fault]
    bundle.write(tmp_path, PRESET, None)
    file = tmp_path / name
    text = file.read_text()
    assert text.count(right) == 1
    file.write_text(text.replace(right, wrong))
    weights = {"port": "private", "order": "multicast"}.get(fault, "lockstep")
    folder = f"arithmetic/layer_{weights}"
    words = [folder, "layer", "arithmetic/layer.cpp", "-y", "arithmetic", "-y", ".", "arithmetic/layer.sv"]
    # To compile takes longer than to run.
    tools = {"VERILATOR": verilator(), "CXX": compiler(), "CXXFLAGS": "-O0"}
    code, said = call(["./build.sh", *words], tmp_path, tools)
    assert code == 0, said
    files = [f"layer_{weights}/{name}.bin" for name in ("requests", "expected")]
    code, said = call([f"layer_{weights}/build/simulate", *files], tmp_path / "arithmetic")
    assert code == 1 and re.match(r"DIFFERENCE: layer \d+, row \d+, cycle \d+: ", said), said


@pytest.mark.parametrize(
    ("macs", "lanes", "message"),
    [(16, 3, "16 MACs and 3 lanes"), (24, 4, "24 MACs and 4 lanes"), (8, 4, "layer.sv reads one word of weights")],
    ids=["lanes", "words", "rate"],
)
def test_layers_that_cores_can_not_run_are_refused(macs: int, lanes: int, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        joined.random_mlps(PRESET)[0].check(macs, lanes)


@pytest.mark.slow
def test_lint_says_nothing(tmp_path: Path) -> None:
    needs(verilator, compiler)
    write_arithmetic(tmp_path)
    for name in (*FAULTS, "datapath", "layer"):
        done = subprocess.run(
            [verilator(), "--lint-only", "-Wall", "--quiet", "-y", ".", "-y", "..", "--top", name, f"{name}.sv"],
            cwd=tmp_path / "arithmetic", capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), done.stderr


@pytest.mark.slow
def test_yosys_reads_every_part_and_gives_each_product_a_multiplier(tmp_path: Path) -> None:
    needs(yosys)
    write_arithmetic(tmp_path)
    control = ("accelerator", "drs", "barrier", "sequencer", "instructions", "late", "stream")
    names = (*(f"arithmetic/{name}" for name in (*FAULTS, "datapath", "layer")), *control)
    read = " ".join(f"{name}.sv" for name in names)
    script = f"read_verilog -sv {read}; hierarchy -check; chparam -set MACS 16 mac_array; "
    script += "hierarchy -top mac_array; synth_xilinx -family xcup -top mac_array -flatten -run begin:map_luts; "
    script += "select -assert-count 16 t:DSP48E2"
    done = subprocess.run([yosys(), "-q", "-p", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_table_is_the_one_of_the_values(tmp_path: Path) -> None:
    write_arithmetic(tmp_path)
    numbers = [int(line, 16) for line in (tmp_path / "arithmetic" / "logistic.hex").read_text().split()]
    # The last number is read with one behind it, of which nothing is ever added.
    assert numbers[:-1] == integer.TABLE.tolist() and numbers[-1] == numbers[-2] == 2**16
    declared = re.search(r"table_low\[0:(\d+)\]", (tmp_path / "arithmetic" / "activate.sv").read_text())
    assert declared is not None and len(numbers) == int(declared.group(1)) + 1


def test_a_missing_simulator_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.delenv("VERILATOR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    done = run("lab", "rtl-decoded", "new")
    assert done.returncode == 2, done.stderr
    says = done.stderr
    assert "needs the program verilator" in says and "fastcar[rtl]" in says


def test_another_format_is_refused(tmp_path: Path, run: Run) -> None:
    done = run("lab", "rtl-decoded", "new", "--preset", "edge-int4")
    assert done.returncode == 2, done.stderr
    assert "preset edge-int4 has format int4, expected int8-exact" in done.stderr
