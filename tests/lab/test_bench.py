"""The benchmark: decisions as they were forced, what is counted, and what is refused. No timing is asserted."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from support.tiny import tiny_model, tiny_spec

from fastcar_cli.cli.app import main
from fastcar_cli.cli.render import columns
from fastcar_cli.kernels import native
from fastcar_cli.profile.profiler import tokens_of
from fastcar_lab.bench import neighbour, window
from fastcar_lab.bench.cases import PROMPT_TOKENS, Benchmark
from fastcar_lab.bench.contestants import engine, pattern
from fastcar_lab.bench.measure import contestants, models, pass_bytes
from fastcar_lab.bench.peak import multiply_adds_per_s
from fastcar_lab.bench.render import print_whole


@given(st.floats(0, 1), st.integers(1, 8), st.integers(1, 4), st.integers(1, 40))
def test_forced_decisions_have_their_ratio_exactly(ratio: float, layers: int, rows: int, passes: int) -> None:
    for joint in (True, False):
        flags = pattern(ratio, layers, rows, passes, joint)
        assert flags.shape == (layers, rows, passes)
        assert flags.sum((0, 2)).tolist() == [round(ratio * layers * passes)] * rows
        assert not joint or bool((flags == flags[:, :1]).all())


@pytest.mark.parametrize("executor", ["torch", "native"])
def test_weights_of_forced_mlps_are_not_touched_and_others_are(executor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastcar_cli.decoding.executors.native import NativeExecutor
    from fastcar_cli.decoding.executors.plain import PlainExecutor

    hidden: list[torch.Tensor] = []
    kind: Any = {"torch": PlainExecutor, "native": NativeExecutor}[executor]
    run = kind.run
    monkeypatch.setattr(kind, "run", lambda *a: hidden.append(run(*a)))
    model = tiny_model()
    for ratio, broken in ((1.0, False), (0.5, True)):
        # The first frame is computed while the weights are whole.
        passes = engine(model, rows=2, context=PROMPT_TOKENS + 6, passes=2, executor=executor, ratio=ratio)
        weights = [weight for block in model.llm.blocks for weight in block.mlp.parameters()]
        whole = [weight.clone() for weight in weights]
        for weight in weights:
            weight.fill_(float("nan"))
        hidden.clear()
        passes(2)
        assert bool(torch.stack(hidden).isnan().any()) is broken
        for weight, kept in zip(weights, whole, strict=True):
            weight.copy_(kept)


@pytest.mark.slow
def test_drafts_are_worth_what_their_passes_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = tiny_spec(times=4)
    monkeypatch.setattr(Benchmark, "spec", replace(spec, decoder=replace(spec.decoder, layers=32)))
    plan = Benchmark("vila-u-7b", 2, PROMPT_TOKENS + 6, 2, 2, 1, False)
    result = window.measure_drafts(plan, [3], 0.5)
    assert set(result["lines"]) == {"bfloat16", "int8", "int4"} and result["accept"] == 0.5
    for lines in result["lines"].values():
        # Two layers stand for all 32.
        one, three = (16 * lines[w]["ms"] + lines[w]["draw_ms"] for w in (1, 3))
        assert lines[1]["speedup"] == 1.0 and lines[3]["tokens_per_pass"] == 1.75
        assert lines[3]["speedup"] == pytest.approx(1.75 * one / three)


def test_tokens_of_a_pass_are_those_of_independent_drafts() -> None:
    assert tokens_of(4, 0.8) == pytest.approx((1 - 0.8**4) / (1 - 0.8))
    assert tokens_of(8, 1.0) == 8 and tokens_of(8, 0.0) == 1


def test_a_table_in_a_file_is_not_cut() -> None:
    table = columns("a title", "", *(f"a column of numbers {n}" for n in range(9)))
    table.add_row("float32/native/joint 0.5", *("123.456",) * 9)
    file = io.StringIO()
    print_whole(Console(file=file, width=80), table)
    row = next(line for line in file.getvalue().splitlines() if "float32/native/joint 0.5" in line)
    assert row.count("123.456") == 9 and "a column of numbers 8" in file.getvalue()


@pytest.mark.slow
def test_every_contestant_of_the_large_shape_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers")
    # Widths that groups of int4 divide; code vectors are narrower than the decoder, as there.
    monkeypatch.setattr(Benchmark, "spec", tiny_spec(times=4))
    plan = Benchmark("vila-u-7b", 2, PROMPT_TOKENS + 6, 2, 1, 1, False)
    made = contestants(plan, models(plan))
    assert {"bfloat16/native/dense", "int8/native/mlp", "int4/native/alone 0.5"} <= made.keys()
    for passes in made.values():
        passes(1)


def test_bytes_of_a_pass_are_the_weights_once_and_every_rows_keys_and_values() -> None:
    model = tiny_model()
    spec = model.spec.decoder
    weights = sum(p.numel() for p in model.llm.layers.parameters()) * 4
    slot = spec.layers * 2 * spec.kv_heads * spec.head_dim * 4
    assert pass_bytes(model, 1, 0) == weights
    assert pass_bytes(model, 2, 10) == weights + 20 * slot
    in_bytes = spec.layers * 2 * spec.kv_heads * (spec.head_dim + 4)
    assert pass_bytes(model, 2, 10, "int8") == weights + 20 * in_bytes


@pytest.mark.slow
def test_json_has_every_line_and_every_ratio() -> None:
    command = [
        sys.executable,
        "-m",
        "fastcar_cli",
        "lab",
        "bench",
        "--turns",
        "1",
        "--passes",
        "2",
        "--context",
        "100,120",
    ]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    # What transformers imports ends quietly too.
    assert done.returncode == 0 and "leaked" not in done.stderr, done.stderr
    document = json.loads(done.stdout)
    assert [c["context"] for c in document["contexts"]] == [100, 120]
    for result in document["contexts"]:
        lines = result["lines"]
        assert {"float32/native/dense", "int8/native/joint 0.5", "float32/compute-then-select 1"} <= lines.keys()
        assert all(line["ms"] > 0 for line in lines.values())
        assert "of_bandwidth" in lines["float32/transformers eager"]
        assert "of_bandwidth" not in lines["float32/native/joint 1"]
        joint = lines["float32/native/joint 1"]
        assert joint["amdahl_ceiling"] == pytest.approx(1 / (1 - joint["mlp_share"]))
        assert joint["of_ceiling"] == pytest.approx(joint["speedup"] / joint["amdahl_ceiling"])
    wanted = {"dense_vs_transformers", "int8_vs_transformers", "dense_of_bandwidth", "replay_vs_amdahl"}
    assert wanted <= document["ratios"].keys()
    for name, least in document["ratios"].items():
        assert least == min(result["ratios"][name] for result in document["contexts"])


@pytest.mark.slow
def test_busy_processes_are_there_while_passes_are_timed_and_gone_after(monkeypatch: pytest.MonkeyPatch) -> None:
    loops: list[subprocess.Popen[bytes]] = []
    states: list[list[int | None]] = []
    start = subprocess.Popen

    def started(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        process = start(*arguments, **options)
        if "-c" in arguments[0]:
            loops.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", started)
    plan = Benchmark("mini", layers=1, context=100, rows=1, passes=2, turns=1, compiled=False)
    threads = torch.get_num_threads()
    result = neighbour.measure(plan, 2, 2, lambda done, total: states.append([loop.poll() for loop in loops]))
    assert states == [[None, None]] * 2
    assert len(loops) == 2 and all(loop.poll() is not None for loop in loops)
    assert torch.get_num_threads() == threads
    assert result["lines"].keys() == {"float32", "int8"}
    for line in result["lines"].values():
        assert line["threads_over_one"] == pytest.approx(line["threads_ms"] / line["one_thread_ms"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--context", "abc"), "--context abc"),
        (("--context", "20"), "allowed: 77 to"),
        (("--context", "520"), "allowed: 77 to"),
        (("--shape", "vila-u-7b", "--context", "900k"), "keys and"),
        (("--shape", "vila-u-7b", "--layers", "900", "--context", "300"), "free"),
        (("--shape", "other"), "--shape"),
        (("--turns", "0"), "--turns"),
        (("--device", "tpu"), "--device tpu"),
        (("--busy", "1", "--generate", "2"), "--generate has no effect with --busy"),
        (("--busy", "-1"), "--busy"),
        (("--window", "0"), "--window"),
        (("--window", "65"), "allowed: 1 to 64"),
        (("--window", "4", "--compiled"), "--compiled has no effect with --window"),
    ],
)
def test_what_can_not_be_timed_is_refused(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fastcar", "lab", "bench", *arguments])
    threads = torch.get_num_threads()
    with pytest.raises(SystemExit) as stop:
        main()
    torch.set_num_threads(threads)
    printed = capsys.readouterr()
    assert stop.value.code == 2 and said in printed.err and printed.out == ""


@pytest.mark.slow
def test_passes_of_several_tokens_are_held_against_memory_and_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastcar_lab.bench.window.multiply_adds_per_s", lambda instructions: {32: 1e6, 16: 2e6, 8: 3e6})
    plan = Benchmark("mini", layers=1, context=100, rows=1, passes=1, turns=1, compiled=False)
    result = window.measure(plan, [1, 3])
    model, threads = models(plan)["float32"], torch.get_num_threads()
    assert result["lines"].keys() == {"float32", "bfloat16", "int8", "int4"}
    products = window.multiply_adds(model, 3, 0)
    attention = window.multiply_adds(model, 3, 100) - products
    for form, times in (("float32", 1), ("bfloat16", 1), ("int8", 2), ("int4", 3)):
        line = result["lines"][form][3]
        # So few multiply-adds a second bind every pass.
        least = (products / times + attention) / (threads * 1e6)
        assert line["bound"] == "arithmetic" and line["floor_ms"] == pytest.approx(least * 1e3)
        assert line["of_arithmetic"] == pytest.approx(line["floor_ms"] / line["ms"])
        assert line["of_bandwidth"] == pytest.approx(line["gb_s"] / result["bandwidth_gb_s"])
        assert result["lines"][form][1]["times"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("instructions", native.instruction_sets())
def test_multiply_adds_are_measured_by_width(instructions: str) -> None:
    rates = multiply_adds_per_s(instructions, repeats=5)
    # A loop that the compiler left out would take no time, and make a hundred times as many.
    assert rates.keys() == {32, 16, 8} and all(0 < rate < 30 * rates[32] for rate in rates.values())


PEAK = """
import pathlib, re, sys
from fastcar_lab.bench.cases import Benchmark, memory_of
from fastcar_lab.bench.measure import measure
plan = Benchmark("mini", 1, 400, int(sys.argv[1]), passes=1, turns=1, compiled=False)
lines = measure(plan)["lines"]
peak = re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())
print(*memory_of(plan), sum("mlp" not in name or "native" in name for name in lines), int(peak[1]) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Linux reports the peak")
def test_contestants_take_the_memory_that_is_planned() -> None:
    found = []
    for rows in (2, 8):
        done = subprocess.run([sys.executable, "-c", PEAK, str(rows)], capture_output=True, text=True, check=True)
        weights, contestants, caches, ran, peak = map(int, done.stdout.split())
        assert contestants == ran
        found.append((weights + caches, peak))
    (few, low), (many, high) = found
    assert high - low == pytest.approx(many - few, rel=0.1)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
def test_passes_of_several_tokens_of_the_large_shape_run(monkeypatch: pytest.MonkeyPatch, kv_dtype: str) -> None:
    monkeypatch.setattr(Benchmark, "spec", tiny_spec(times=4))
    plan = Benchmark("vila-u-7b", 2, PROMPT_TOKENS + 6, 2, 1, 1, False, kv_dtype=kv_dtype)
    network = models(plan)["int4"]
    for run, draw in window.works_of(plan, network, [1, 3]).values():
        assert torch.isfinite(run()).all()
        assert draw().codes.shape[1] == run().shape[1]


def test_formats_of_few_bits_draw_codes_in_them_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Benchmark, "spec", tiny_spec(times=4))
    by_form = models(Benchmark("vila-u-7b", 1, PROMPT_TOKENS + 6, 1, 1, 1, False))
    bits = {form: network.weights_bytes("depth.") for form, network in by_form.items()}
    # int4 can't divide these widths into groups.
    assert bits["int8"] < bits["int4"] == bits["bfloat16"]


def test_multiply_adds_of_a_pass() -> None:
    spec = tiny_model().spec.decoder
    weights = sum(p.numel() for name, p in tiny_model().llm.layers.named_parameters() if name.endswith("proj.weight"))
    attended = 2 * spec.layers * spec.heads * spec.head_dim * 10
    assert window.multiply_adds(tiny_model(), 3, 10) == 3 * (weights + attended)
