"""What drafts do on an accelerator, by window and acceptance."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT
from support.processes import Run

from fastcar_cli.models.vila_u.checkpoint import full_spec
from fastcar_cli.profile.profiler import tokens_of
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.preset import load_preset
from fastcar_fpga.workload import workload_of
from fastcar_lab.accelerator.drafted import CURVE, MEASURED, WINDOWS, emulate_drafts


@given(acceptance=st.floats(0.05, 0.95), window=st.integers(1, 16), seed=st.integers(0, 99))
def test_expected_tokens_are_the_mean_of_what_passes_accept(acceptance: float, window: int, seed: int) -> None:
    assert tokens_of(window, acceptance) == pytest.approx((1 - acceptance**window) / (1 - acceptance))
    right = np.random.default_rng(seed).random((4000, window - 1)) < acceptance
    accepted = 1 + right.cumprod(1).sum(1)
    assert accepted.mean() == pytest.approx(tokens_of(window, acceptance), abs=6 * accepted.std() / 4000**0.5 + 1e-9)


def test_without_drafts_a_token_costs_what_a_run_says() -> None:
    p = load_preset("paper-u280")
    lines = emulate_drafts(p)
    work = workload_of(full_spec(), rows=2, frames=8, prompt=100)
    nothing = np.zeros((work.layers, 2, work.steps), dtype=bool)
    whole = Emulator(p, work).run(nothing, "static")
    assert lines[0]["dense_s"] == pytest.approx(whole.cycles * p.seconds_per_cycle / work.steps, rel=1e-3)
    alone = [line for line in lines if line["window"] == 1]
    assert all(a["drafts_s"] == a["dense_s"] and a["both_s"] == a["replay_s"] for a in alone)


def test_the_second_table(run: Run) -> None:
    document = json.loads(run("fpga", "--preset", "paper-u280", "--drafts", "--json").stdout)
    lines = {(line["acceptance"], line["window"]): line for line in document["lines"]}
    assert set(lines) == {(name, w) for name in (*MEASURED, *(f"{a:g}" for a in CURVE)) for w in WINDOWS}
    for window in WINDOWS[1:]:
        # The better drafts are, the less a token costs; replay helps in every window.
        cost = [lines[f"{a:g}", window]["drafts_s"] for a in CURVE]
        assert cost == sorted(cost, reverse=True)
        assert all(lines[key]["both_s"] < lines[key]["drafts_s"] for key in lines if key[1] == window)
    # Two rows leave two of four cores idle, which a window of two fills at no cost but its own attention.
    assert lines["0.9", 2]["dense_s"] / lines["0.9", 2]["drafts_s"] == pytest.approx(1.9, rel=0.01)
    shown = run("fpga", "--preset", "paper-u280", "--drafts")
    text = shown.stdout + shown.stderr
    assert "window 16" in text and all(model in text for model in MEASURED)


def test_windows_without_room_are_left_out_and_rows_are_refused(run: Run) -> None:
    document = json.loads(run("fpga", "--drafts", "--rows", "9", "--json").stdout)
    assert {line["window"] for line in document["lines"]} == {1, 2}
    done = run("fpga", "--drafts", "--seed", "1")
    assert done.returncode == 2 and "--seed has no effect with --drafts" in done.stderr


def test_measured_acceptance_is_that_of_the_record() -> None:
    record = Path(ROOT / "docs" / "data" / "fpga.md").read_text(encoding="utf-8")
    for model, by_window in MEASURED.items():
        cells = " | ".join(f"{first:.2f}, {later:.2f}" for first, later in by_window.values())
        assert re.search(rf"^\| `{model}` \| {re.escape(cells)} \|$", record, re.M), model
