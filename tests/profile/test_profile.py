"""`fastcar profile`: sums that hold, requests that are refused, what a real run shows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.processes import Run
from support.sweeping import BALL, tiny_folder
from support.tiny import tiny_model

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.errors import RequestError
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.profile.machine import Machine
from fastcar_cli.profile.profile_report import draft_table, needed
from fastcar_cli.profile.profiler import (
    Shape,
    measure_step,
    parse_lengths,
    plan_steps,
    profile_length,
    random_shape,
    replay_table,
    tokens_of,
    traffic,
)

MACHINE = Machine({}, 10.0, 10.0, 100.0)


def tiny_shape(layers_of_spec: int = 3) -> Shape:
    from dataclasses import replace

    model = tiny_model()
    spec = replace(model.spec, decoder=replace(model.spec.decoder, layers=layers_of_spec))
    return Shape(model, spec, 3, False)


def test_lengths() -> None:
    assert parse_lengths("2k,4096, 0.5K") == [2048, 4096, 512]
    for text in ("", "k", "2m", "0", "-1", "1.3", "2k,,4k", "9999k", "nan"):
        with pytest.raises(RequestError, match="`seq`"):
            parse_lengths(text)


@given(st.integers(1, 1024))
def test_a_length_in_k_is_1024_tokens_each(n: int) -> None:
    assert parse_lengths(f"{n}k") == [1024 * n] == parse_lengths(str(1024 * n))


def test_modules_add_up_and_scale_to_the_full_depth() -> None:
    for layers in (3, 30):
        found = profile_length(tiny_shape(layers), MACHINE, 2, 20, repeats=3, vision=0.004)
        modules = found["modules"]
        assert sum(m["ms"] for m in modules.values()) == pytest.approx(found["step_ms"])
        assert sum(m["share"] for m in modules.values()) == pytest.approx(1.0)
        for module in modules.values():
            assert sum(module["parts"].values()) == pytest.approx(module["ms"])
        assert {"norm", "projections", "rotary", "core", "output"} == modules["attention"]["parts"].keys()
        assert {"norm", "gate_up", "activation", "down", "rest"} == modules["mlp"]["parts"].keys()
        assert modules["vision"]["ms"] == pytest.approx(1.0)
        assert found["method"]["layers_scaled_to"] == layers
    assert found["modules"]["mlp"]["ms"] > 3 * found["modules"]["heads"]["ms"]


def test_parts_without_hooks_left_behind() -> None:
    shape = tiny_shape()
    measure_step(shape, 2, 10, repeats=1)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in shape.network.modules())


def test_replayed_steps_run_no_mlp_and_score() -> None:
    shape = tiny_shape()
    replayed = measure_step(shape, 2, 20, repeats=1, tau=Tau((-math.inf,)), scored=True)
    assert "tas" in replayed.parts and "mlp.gate_up" not in replayed.parts
    assert "tas" not in measure_step(shape, 2, 20, repeats=1).parts


def test_bytes_are_those_of_the_weights() -> None:
    model = tiny_model()
    moved = traffic(model.spec, 2, 7, 4)
    block = model.llm.blocks[0]
    assert moved["mlp"][0] == 3 * sum(p.nbytes for p in block.mlp.parameters())
    weights = sum(p.nbytes for p in block.self_attn.parameters())
    assert moved["attention"][0] == 3 * (weights + 2 * 2 * 7 * 16 * 4)


def test_replay_expectations() -> None:
    length = {"seq": 9, "step_ms": 10.0, "modules": {"mlp": {"ms": 5.0}}, "tas_ms": 0.5, "replayed_step_ms": 6.0}
    table = replay_table(length, 4)
    assert table["ceiling"] == 2.0
    row = next(r for r in table["expected"] if r["ratio"] == 0.5)
    assert row["rows_alone"] == pytest.approx(10 / (10.5 - 5 * 0.5**4))
    assert row["in_pairs"] == pytest.approx(10 / (10.5 - 5 * 0.5**2))
    assert row["together"] == pytest.approx(10 / (10.5 - 2.5))
    assert table["measured_all_replayed"] == pytest.approx(10 / 6)


@given(st.integers(2, 16), st.floats(1.0, 16.0))
def test_the_acceptance_needed_gives_the_tokens_wanted(window: int, gain: float) -> None:
    accept = needed(window, gain)
    if gain > window:
        assert accept is None
    else:
        assert accept is not None and tokens_of(window, accept) == pytest.approx(gain, rel=1e-3)


def test_drafts_are_held_against_one_token_and_against_replay() -> None:
    table = draft_table(tiny_shape(), 2, 20, repeats=2, ratio=0.5)
    assert table is not None and [x["window"] for x in table["windows"]] == [1, 2, 4]
    one = table["windows"][0]
    assert one["cost"] == 1.0 and one["pays_from"] is None
    replayed = table["replayed_ms"]
    wanted = one["ms"] / (one["ms"] - 0.5 * max(0.0, one["ms"] - replayed))
    assert table["replay_speedup"] == pytest.approx(wanted)
    for line in table["windows"][1:]:
        assert line["cost"] == pytest.approx(line["ms"] / one["ms"])
        assert line["pays_from"] == needed(line["window"], line["cost"])
        assert line["beats_replay_from"] == needed(line["window"], line["cost"] * table["replay_speedup"])


def test_random_layers_are_as_many_as_fit_or_refused() -> None:
    spec = tiny_model().spec
    plan, layers = plan_steps(spec, "float32", "cpu", 2, 64)
    shape = random_shape(spec, "float32", "cpu", layers)
    assert plan.weights == shape.network.weights_bytes()
    assert (shape.layers, shape.random) == (3, True)
    assert all(p.isfinite().all() for p in shape.network.parameters())
    with pytest.raises(RequestError, match="does not fit the memory: .* = .*, but .* are free"):
        plan_steps(spec, "float32", "cpu", 10**6, 2**20)


def test_a_dry_run_plans_what_fits_ten_gib(run: Run) -> None:
    options = ("--model", "vila-u-7b", "--dtype", "bfloat16", "--seq", "8k", "--rows", "1", "--dry-run", "--json")
    done = run("profile", *options)
    plan = json.loads(done.stdout)
    assert done.returncode == 0 and plan["needed_bytes"] <= 10 * 2**30 and plan["layers"]["scaled_to"] == 32
    parts = ("weights", "kv_cache", "replay_cache", "base")
    assert plan["needed_bytes"] == sum(plan[f"{part}_bytes"] for part in parts)
    # Keys and values of 8k tokens of 4096 numbers each, and room for the passes.
    slots = plan["kv_cache_bytes"] / (plan["layers"]["measured"] * 2 * 4096 * 2)
    assert 8192 <= slots <= 8192 + 512
    assert run("profile", "--dry-run", "--decode", "a fox").returncode == 2


@pytest.mark.parametrize("window", [None, 5])
def test_fast_forward_is_where_decoding_would_be(window: int | None) -> None:
    model = tiny_model()
    settings = DecodeSettings(
        frames=4, sampling=SamplingSettings(cfg=2.0), keep_tas=True, executor="torch", window=window, sinks=2
    )
    decode = Decode.of(model, [[1, 2, 3], [1, 2]], settings, torch.rand(1, 16, 3))
    steps = list(decode.steps(first=9))
    assert [s.index for s in steps] == list(range(9, 16))
    assert all(s.hidden.isfinite().all() for s in steps)


@pytest.mark.slow
def test_profile_of_a_run(run: Run) -> None:
    prompt = "a red ball rolling to the right on the grass"
    done = run("profile", "--seq", "128", "--repeats", "1", "--decode", prompt, "--json", "--save", "s.json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert {"machine", "lengths", "replay"} <= document.keys()
    decode = document["decode"]
    assert len(decode["tas_percentiles"]) == len(decode["mlp_similarity"]) == 6
    assert decode["replay"]["by_frame"][0] == 0.0 and 0 < decode["replay"]["eligible_ratio"] < 1
    assert decode["above_tau"][2] == pytest.approx(decode["replay"]["eligible_ratio"], abs=0.3)
    again = run("profile", "--seq", "128", "--repeats", "1", "--compare", "s.json", "--json")
    assert again.returncode == 0, again.stderr
    assert {r["name"] for r in json.loads(again.stdout)["compared"]} >= {"step", "mlp", "attention"}


@pytest.mark.slow
def test_an_inert_threshold_is_said(run: Run, tmp_path: Path) -> None:
    model = str(tiny_folder(tmp_path / "model"))
    done = run("profile", "--model", model, "--seq", "8", "--repeats", "1", "--decode", BALL, "--tau", "1000", "--json")
    assert "at tau 1000 nothing replays; TAS" in json.loads(done.stdout)["decode"]["warning"]


def test_emulated_profile(run: Run) -> None:
    done = run("profile", "--model", "vila-u-7b", "--backend", "fpga-sim", "--seq", "2k,8k", "--rows", "4", "--json")
    lengths = json.loads(done.stdout)["lengths"]
    for length in lengths:
        assert sum(m["cycles"] for m in length["modules"].values()) == pytest.approx(length["step_cycles"])
    assert lengths[1]["modules"]["attention"]["cycles"] > lengths[0]["modules"]["attention"]["cycles"]


@pytest.mark.parametrize(
    "saved",
    ["[]", "{", '{"lengths": "abc"}', '{"lengths": [{"seq": 64}]}', '{"lengths": [3]}',
     '{"lengths": [{"seq": 64, "step_ms": 0, "modules": {}}]}',
     '{"lengths": [{"seq": 64, "step_ms": 1, "modules": {"mlp": {}}}]}'],
)  # fmt: skip
def test_what_is_no_profile_is_not_compared_with(run: Run, saved: str, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(saved)
    done = run("profile", "--compare", "s.json")
    assert done.returncode == 2 and "is not a saved profile" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--seq", "2q"), "--seq 2q"),
        (("--model", "vila-u-7b", "--decode", "a fox"), "--decode needs real weights"),
        (("--backend", "fpga-sim", "--repeats", "2"), "--repeats has no effect with an emulated accelerator"),
        (("--backend", "gpu"), "'gpu' is not one of 'torch', 'fpga-sim'"),
        (("--compare", "none.json"), "no such file"),
        (("--dtype", "int3"), "'int3' is not one of"),
        (("--save", "no/where.json"), "does not exist"),
        (("--model", "nothing"), "unknown model"),
    ],
)
def test_wrong_requests(run: Run, arguments: tuple[str, ...], message: str) -> None:
    done = run("profile", *arguments)
    assert done.returncode == 2 and message in " ".join(done.stderr.replace("│", " ").split()), done.stderr
