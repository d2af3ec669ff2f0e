"""The emulated accelerator as users see it: generate and fpga."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from support.fpga_presets import preset, work
from support.processes import Run

from fastcar_cli.config.presets import preset_folder
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.summary import compare, explain_layer
from fastcar_lab.accelerator import broadcast
from fastcar_lab.accelerator.published import TABLE


@pytest.mark.slow
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
    assert names == {"compute.csv", "bandwidth.csv", "energy.csv"}
    header = (tmp_path / "r" / "compute.csv").read_text().splitlines()[0]
    assert header == "scheduler,component,cycles,time_s,macs,vector_elements"
    again = run("fpga", "t.npz", "--preset", "edge-small", "--json")
    assert json.loads(again.stdout)["runs"][0]["cycles"] == backend["cycles"]


@pytest.mark.slow
def test_videos_beyond_the_index_register_come_in_batches(run: Run, tmp_path: Path) -> None:
    asked = ("--samples", "34", "--frames", "1", "--seed", "1", "--set", "sampling.cfg=1", "--json")
    done = run("generate", "a red ball", "--backend", "fpga-sim", *asked, "-o", "many")
    assert done.returncode == 0, done.stderr
    videos = json.loads(done.stdout)["videos"]
    assert [v["tokens"]["rows"] for v in videos] == [32] * 32 + [2] * 2
    assert len(list((tmp_path / "many").glob("*.mp4"))) == 34


@pytest.mark.slow
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
        (("generate", "a red ball", "--trace", "t.txt"), "expected a .npz file"),
        (
            ("generate", "a red ball", "--backend", "fpga-sim", "--samples", "33", "--report", "r"),
            "supports only one batch, but 33 videos need batches of 32",
        ),
        (("fpga", "--rows", "33"), "32"),
        (("fpga", "none.npz"), "no such file"),
        (("fpga", "--replay", "0.9"), "at most 0.87"),
        (("fpga", "--replay", "x"), "not a ratio"),
        (("fpga", "--preset", "edge-small"), "do not fit the memory of edge-small"),
        (("fpga", "--spread", "some"), "is not one of 'eligible', 'all'"),
        (("fpga", "--window", "0"), "--window 0: not allowed"),
        (("fpga", "--table", "--rows", "3"), "--rows has no effect with --table"),
        (("fpga", "--table", "--rows", "3"), "allowed: --table, --preset, --json"),
        (("fpga", "--sinks", "2"), "--sinks has no effect"),
        (("fpga", "--rows", "3", "--pair-correlation", "0.5"), "an odd number of rows has no pairs"),
        (("fpga", "none.npz", "--frames", "2"), "--frames has no effect with FILE"),
        (("fpga", "--report", ""), "--report: is empty"),
    ],
)
def test_wrong_requests(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and message in " ".join(done.stderr.replace("│", " ").split()), done.stderr
    assert "Traceback" not in done.stderr


def test_published_speeds_come_with_watts_first_tokens_and_what_is_missing(run: Run) -> None:
    lines = run("fpga", "--preset", "codo-u280", "--table").stdout.splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:4]] == [
        f"first token after a prompt of {n}" for n in (32, 64, 128)
    ]
    assert "110.4 published, error -28%" in lines[3] and lines[4].startswith("  note: The number of memory ports")
    (line,) = run("fpga", "--preset", "kv260-llama", "--table").stdout.splitlines()
    assert line.endswith("6.5 W, 6.57 published") and "5.1 tokens/s predicted, range 4.3 to 5.3," in line


def test_table_and_explain_print(run: Run) -> None:
    done = run("fpga", "--preset", "paper-u280", "--table", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [r["method"] for r in rows] == [t.method for t in TABLE]
    assert {"published_s", "emulated_s", "emulated_speedup", "emulated_relative_efficiency"} <= rows[0].keys()
    done = run("fpga", "--preset", "paper-u280", "--explain", "--replay", "0.5", "--rows", "4")
    assert "135,266,304" in done.stdout and "mJ" in done.stdout


def test_explained_terms_are_the_emulated_ones() -> None:
    emulator = Emulator(preset(), work())
    lines = "\n".join(explain_layer(emulator, 3))
    assert (
        f"MLP = 2 rounds x (start 1 + row {emulator.accelerator.row:,}) = {emulator.accelerator.rounds(2):,} cycles"
        in lines
    )
    assert f"MLP and DRS together take {emulator.accelerator.layer(0b111, 6)[1]:,} cycles" in lines


def test_comparison_against_itself_without_replay() -> None:
    found = compare(Emulator(preset(), work()), np.zeros((2, 6, 8), dtype=bool)).to_dict()
    assert found["speedup_vs_static"] == found["speedup_vs_dense"] <= 1.0
    assert found["energy_j"] == pytest.approx(found["power_w"] * found["latency_s"])


def test_what_broadcast_costs_is_printed_from_copies_of_a_preset(run: Run) -> None:
    # Slow memory: without sharing each core waits for its own share.
    slow, wide = preset(hbm__port_clock=0.8), work(frames=30)
    rows = [line.strip("| ").split(" | ") for line in broadcast.table(slow, wide)]
    assert [tuple(row[1:3]) for row in rows] == list(broadcast.WAYS)
    for row, (weights, fetch) in zip(rows, broadcast.WAYS, strict=True):
        seconds, share = broadcast.cost(broadcast.variant(slow, weights, fetch), wide, 0.5)
        assert row[4] == f"{seconds:.4g} ({share:.2%})"
    assert broadcast.variant(slow, "lockstep", "skip") == slow
    dense = [float(row[3].split()[0]) for row in rows]
    assert dense[3] > 1.5 * dense[0] >= 1.5 * dense[2]
    done = run("lab", "broadcast", "edge-smal")
    assert done.returncode == 2 and "did you mean" in done.stderr
