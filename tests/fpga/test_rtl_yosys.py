"""The RTL in yosys: its scheduler proved for every index word, its netlist, and what it takes of a card."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from support.fpga_presets import constant, preset
from support.processes import Run
from support.rtl import changed, have, needs_verilator, needs_yosys, rows_of

from fastcar_fpga.preset import load_preset
from fastcar_lab.accelerator.rtl import bundle, synth, tools


def script(folder: Path, name: str, *arguments: str) -> tuple[int, str]:
    """Run a script of the folder with the yosys that is here."""
    return tools.call(
        [f"./{name}", *arguments], folder, {"YOSYS": tools.yosys(), "VERILATOR": have(tools.verilator) or ""}
    )


# Those of presets, 2 and 8, are proved by the step "RTL" of CI.
@needs_yosys
@pytest.mark.slow
@pytest.mark.parametrize("cores", [1, *(pytest.param(n, marks=pytest.mark.long) for n in (2, 8)), 3, 4, 6, 7])
def test_round_robin_drop_and_cycles_are_proved_for_every_index_word(tmp_path: Path, cores: int) -> None:
    bundle.write(tmp_path, load_preset("edge-small"), None)
    status, said = script(tmp_path, "prove.sh", str(cores))
    print(said)
    assert status == 0 and said.count(f"proved: {cores} cores") == 2, said


@needs_yosys
@pytest.mark.slow
def test_it_is_proved_with_the_parameters_of_the_folder(tmp_path: Path) -> None:
    changes = {"cores": 4, "drs__remap": 40, "drs__drop": 1, "drs__dispatch": constant(66, "cycles/row")}
    bundle.write(tmp_path, preset(**changes), None)
    status, said = script(tmp_path, "prove.sh")
    assert status == 0 and said.count("proved: 4 cores") == 2, said
    # And the other machines: the wrap-around does not show with 4.
    assert "proved: 3 cores, stream 1" in said and "proved: 5 cores, stream 0" in said


@needs_yosys
@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("turn == CORE_BITS'(CORES - 1) ? '0", "turn == CORE_BITS'(CORES) ? '0"),
        ("hit    <= index[next_row]", "hit    <= index[next_row] || next_row == 5'd1"),
        (": WAIT_BITS'(DROP - 1)", ": WAIT_BITS'(DROP)"),
        ("turn      <= '0;\n          count", "turn      <= turn;\n          count"),
        ("out_valid[target] = in_valid && room[target]", "out_valid[target] = in_valid"),
        ("in_ready = !hit || room[target]", "in_ready = 1'b1"),
        ("== rows - 6'd1 ? IDLE", "== rows ? IDLE"),
        ("index     <= index_in;", "index     <= index | index_in;"),
        ("hit ? SEND : SWALLOW ? PASS : JUMP", "hit || SWALLOW ? SEND : JUMP"),
        ("look = advance || state == DEAL", "look = advance"),
        # With rows of one length whichever core has room has it first: only the proof sees a header taken too early.
        ("in_ready = !hit || room[target]", "in_ready = !hit || room != '0"),
    ],
    ids=["turn", "drop", "cycles", "kept", "full", "ready", "row", "index", "swallowed", "lookup", "any room"],
)
def test_a_wrong_scheduler_is_not_proved(tmp_path: Path, before: str, after: str) -> None:
    bundle.write(tmp_path, load_preset("edge-small"), None)
    changed(tmp_path / "drs.sv", before, after)
    status, said = script(tmp_path, "prove.sh", "3")
    assert status == 1 and "NOT PROVED" in said, said


@needs_yosys
@needs_verilator
@pytest.mark.slow
def test_the_netlist_does_what_the_source_does(tmp_path: Path) -> None:
    bundle.write(tmp_path, preset(cores=3), None)
    status, said = script(tmp_path, "netlist.sh")
    print(said.strip().splitlines()[-1])
    assert status == 0 and "no difference" in said, said


@needs_yosys
@pytest.mark.slow
def test_resources_are_counted_and_called_estimates(run: Run, tmp_path: Path) -> None:
    done = run("fpga", "rtl", "-o", "d", "--preset", "edge-int8", "--synth", "--json")
    assert done.returncode == 0, done.stderr
    found = {row["unit"]: row for row in json.loads(done.stdout)["resources"]}
    cells = rows_of(tmp_path / "d" / "resources.csv")
    assert all(c["caveat"].startswith(synth.CAVEAT) and "Yosys" in c["version"] for c in cells)
    for unit, row in found.items():
        counted = {c["cell"]: int(c["count"]) for c in cells if c["unit"] == unit}
        assert synth.totals(counted) == {k: row[k] for k in synth.KINDS}
        assert row["LUT"] > 0 and row["share"].keys() == set(synth.CARDS)
        assert row["share"]["KV260"]["LUT"] == row["LUT"] / 117_120
    assert found[f"MAC array, {synth.MACS} MACs"]["DSP"] == synth.MACS
    made = load_preset("edge-int8")
    lanes = int(made.core.vector_lanes.value)
    counts = {"sequencer of a core": 1, "requantisation": 1, "SiLU of a lane": lanes, "coder of a lane": lanes}
    core = {kind: sum(n * found[unit][kind] for unit, n in counts.items()) for kind in synth.KINDS}
    core["DSP"] += made.core.mac_array.value
    core["BRAM36"] += math.ceil(made.core.buffer.value * 8 / 36)
    assert core == {kind: found[synth.CORE][kind] for kind in synth.KINDS}
    assert found[synth.ALL]["DSP"] == made.cores * core["DSP"]
    assert found["DRS"]["DSP"] == found["DRS"]["BRAM36"] == 0 and 50 < found["DRS"]["LUT"] < 500
