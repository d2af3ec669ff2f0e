"""The emulated accelerator against published latencies and decode speeds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
from support.processes import Run

from fastcar_cli.config.presets import fpga_presets
from fastcar_fpga.device import constants
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.preset import load_preset
from fastcar_lab.accelerator.points import write
from fastcar_lab.accelerator.predicted import POINTS, points_of, predict, span
from fastcar_lab.accelerator.published import emulate_table, fit
from fastcar_lab.accelerator.readings import best, needed, rounds

DATA = Path(__file__).resolve().parents[2] / "docs" / "data"
FITTED = {
    "paper-u280": ["core.utilisation", "rest.seconds_per_step"],
    "dfx-u280": ["rest.seconds_per_step", "chain.heads"],
    "tellme-kv260": ["core.mac_array"],
    "codo-u280": ["core.mac_array", "hbm.ports"],
}


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
        assert fitted == FITTED.get(name, [])


@pytest.mark.parametrize(
    ("name", "speed", "most", "bound"),
    [("kv260-llama", 4.9, 0.05, 0.97), ("flightllm-u280", 55.0, 0.36, 0.82), ("flexllm-u280", 147.55, 0.13, 0.51)],
)
def test_published_decode_speeds_are_predicted_from_data_sheets(
    run: Run, name: str, speed: float, most: float, bound: float
) -> None:
    (row,) = json.loads(run("fpga", "--preset", name, "--table", "--json").stdout)["rows"]
    assert row["published_tokens_per_s"] == pytest.approx(speed, rel=1e-4) and not row["fitted"]
    assert row["error"] == pytest.approx(row["predicted_tokens_per_s"] / row["published_tokens_per_s"] - 1)
    assert abs(row["error"]) < most and (row["missing"] or abs(row["error"]) < 0.15)
    assert row["low_tokens_per_s"] <= row["published_tokens_per_s"] <= row["high_tokens_per_s"]
    # So much of what the memory's timing and its ports allow for what a token moves.
    p = load_preset(name)
    assert row["predicted_tokens_per_s"] * row["moved_bytes"] == pytest.approx(p.peak * 1e9 * row["share_of_peak"])
    fastest = p.rate() / p.seconds_per_cycle / row["moved_bytes"]
    assert bound < row["predicted_tokens_per_s"] / fastest < 1


def test_a_range_holds_the_prediction_and_a_design_without_one_has_a_reason() -> None:
    for point in POINTS:
        row = predict(load_preset(point.preset), point)
        low, high = row["low_tokens_per_s"], row["high_tokens_per_s"]
        if point.unknown is None:
            assert low is high is None and row["missing"]
        else:
            assert low < row["predicted_tokens_per_s"] <= high and row["unknown"] and not row["fitted"]


def test_each_end_of_a_range_is_a_prediction_with_what_is_unknown_at_that_end() -> None:
    preset, point = load_preset("flightllm-u280"), points_of("flightllm-u280")[0]
    long, short = (predict(preset, replace(point, context=context))["predicted_tokens_per_s"] for context in (512, 128))
    assert span(preset, replace(point, unknown=())) == pytest.approx((long, short))
    few = preset.hbm.requests.model_copy(update={"value": 4})  # type: ignore[union-attr]
    slow = preset.model_copy(update={"hbm": preset.hbm.model_copy(update={"requests": few})})
    assert span(preset, point) == pytest.approx((predict(slow, point)["predicted_tokens_per_s"], short))
    plain, alone = preset.model_copy(update={"chain": None}), replace(point, contexts=None, unknown=("steps",))
    assert span(plain, alone) == pytest.approx((long, predict(plain, point)["predicted_tokens_per_s"]))


def test_what_is_fitted_to_one_and_two_cards_predicts_four() -> None:
    one, two, four = (predict(load_preset("dfx-u280"), point) for point in points_of("dfx-u280"))
    assert abs(one["error"]) < 2e-3 and abs(two["error"]) < 2e-3 and -0.05 < four["error"] < 0
    assert four["moved_bytes"] == pytest.approx(one["moved_bytes"] / 4, rel=2e-3)


def test_a_ring_has_a_hop_for_each_other_card() -> None:
    ring = load_preset("dfx-u280").ring
    assert ring is not None and ring.seconds(1, 2048) == 0
    # Four gathers of three hops: 500 ns each, and a quarter of 2 KiB at 12.5 GB/s.
    assert ring.seconds(4, 2048) == pytest.approx(4 * 3 * (500e-9 + 512 / 12.5e9))


def test_held_out_speeds_are_as_predicted_before_they_were_read() -> None:
    rows = [predict(load_preset(point.preset), point) for point in POINTS if point.held_out]
    # As commit 19d1064 wrote them.
    assert [round(row["predicted_tokens_per_s"], 1) for row in rows] == [5.3, 8.3, 18.7, 20.9, 88.5, 72.3, 201.9]
    for row in rows:
        least, predicted = row["published_tokens_per_s"], row["predicted_tokens_per_s"]
        nearest = min(max(predicted, least), row["published_most"] or least)
        assert row["error"] == pytest.approx(predicted / nearest - 1)
    assert median(abs(row["error"]) for row in rows) < 0.05


def test_watts_of_a_chip_are_those_of_its_parts() -> None:
    """By hand, from the report on another design: processors, leakage by LUT there, switching by LUT used and MHz."""
    for point in POINTS:
        if point.luts is None or point.watts is None:
            continue
        preset = load_preset(point.preset)
        luts = {"KV260": 117_120, "ZCU104": 230_400}[preset.device]
        parts = 2.755 + 0.604 * luts / 230_400 + 1.749 * point.luts / 193_186 * preset.clock.value / 50
        row = predict(preset, point)
        assert row["chip_watts"] == pytest.approx(parts)
        assert row["chip_error"] == pytest.approx(parts / point.watts - 1)


def test_every_prediction_draws_more_than_its_idle_power() -> None:
    for point in POINTS:
        row = predict(load_preset(point.preset), point)
        assert (
            0 < row["share_of_peak"] < 0.96 and row["predicted_watts"] > load_preset(point.preset).card.power.idle.value
        )
        if point.watts is not None and point.tokens_per_s is not None and not (point.held_out and point.luts):
            # At the published speed: a token's energy beside what flows all the time.
            idle = load_preset(point.preset).card.power.idle.value
            watts = idle + (row["predicted_watts"] - idle) * point.tokens_per_s / row["predicted_tokens_per_s"]
            assert watts == pytest.approx(point.watts, rel=0.15)
    assert sum(point.held_out for point in POINTS) == 7


def test_a_prompt_takes_as_long_as_its_weights_or_its_products() -> None:
    preset, point = load_preset("codo-u280"), next(p for p in POINTS if p.first)
    first = {row["tokens"]: row["predicted_ms"] / 1e3 for row in predict(preset, point)["first_token"]}
    macs = 24 * (4 * 1024 * 1024 + 3 * 1024 * 2731)
    for tokens, seconds in first.items():
        products = macs * tokens / preset.core.mac_array.value * preset.seconds_per_cycle
        assert products < seconds < 1.25 * products
    alone = Emulator(preset, replace(point.model, prompt=1)).prefill() * preset.seconds_per_cycle
    assert alone > point.model.resident_weights / 2 / (preset.rate() / preset.seconds_per_cycle)


def test_records_of_other_accelerators_are_what_the_command_writes(tmp_path: Path) -> None:
    for file in write(tmp_path):
        assert file.read_text() == (DATA / file.name).read_text()


def test_whole_pairs_explain_the_table_as_well_as_nine_rows_and_no_reading_its_last_row() -> None:
    readings = list(best(0.015))
    nine = next(r for r in readings if (r.cores, r.rows) == (4, 9))
    assert any(r.rows % 2 == 0 and r.worst < nine.worst for r in readings)
    # 7 of 8 frames can replay.
    assert all(r.errors[-1] > 0.05 and needed(r) > 0.8749 for r in readings)
    assert rounds(4, 9, 0.0) == 3 and rounds(4, 9, 1.0) == 0
    assert rounds(4, 8, 0.5, together=True) == pytest.approx(rounds(2, 4, 0.5))
