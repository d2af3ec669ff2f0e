"""The emulated accelerator against published latencies and decode speeds."""

from __future__ import annotations

import json

import pytest
from support.processes import Run

from fastcar_cli.backends.fpga.predicted import POINTS
from fastcar_cli.backends.fpga.preset import constants, fpga_presets, load_preset
from fastcar_cli.backends.fpga.published import emulate_table
from fastcar_lab.accelerator.fit import fit


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
    moved = POINTS[name].model.resident_weights * p.format.stored_bits / 8
    assert row["bandwidth_bound_tokens_per_s"] == pytest.approx(
        p.bytes_per_cycle / p.seconds_per_cycle / moved, rel=0.2
    )
