"""Passes with several input tokens of a video: emulated, recorded, saved."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fpga_presets import preset, work
from support.processes import Run
from support.sweeping import tiny_folder
from support.tiny import tiny_spec

from fastcar_cli.config.run_config import RunConfig
from fastcar_cli.errors import RequestError
from fastcar_cli.pipeline.pipeline import VideoPipeline
from fastcar_fpga.decisions import Decisions, Windows, read, save
from fastcar_fpga.emulator import SCHEDULERS, Emulator, RunResult
from fastcar_fpga.summary import compare, emulate
from fastcar_lab.accelerator.rtl import bundle

LAYERS, STEPS = 2, 8
"""Layers and input tokens of `work()`."""


@st.composite
def windows(draw: Any, most: int = 4, layers: int = LAYERS, steps: int = STEPS) -> Windows:
    """Passes of one or two videos, each with its own acceptance, until both have their tokens; one or two rows each."""
    chance = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    videos, guided, right = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.floats(0, 1))
    done, taken, accepted = np.zeros(videos, dtype=int), [], []
    while done.min() < steps:
        taken.append(min(int(chance.integers(1, most + 1)), steps - int(done.min())))
        drawn = 1 + (chance.random((videos, taken[-1] - 1)) < right).cumprod(1).sum(1)
        accepted.append(np.minimum(drawn, steps - done))
        done = done + accepted[-1]
    bits = chance.random((layers, videos * guided, sum(taken))) < draw(st.floats(0, 1))
    return Windows(np.array(taken), np.array(accepted), bits)


def saved(of: Windows, **changes: Any) -> Decisions:
    """Decisions of the tiny model's layers, 2 frames of 4 tokens."""
    values: dict[str, Any] = {
        "spec": tiny_spec(),
        "prompt": 3,
        "frames": 2,
        "window": None,
        "sinks": 4,
        "note": {},
    } | changes
    return Decisions(of.final(7), windows=of, **values)


def same(a: RunResult, b: RunResult) -> bool:
    return asdict(a).keys() == asdict(b).keys() and all(
        np.array_equal(x, y) for x, y in zip(asdict(a).values(), asdict(b).values(), strict=True)
    )


@settings(max_examples=30, deadline=None)
@given(windows(most=1), st.sampled_from(SCHEDULERS), st.sampled_from(["lockstep", "multicast", "private"]))
def test_windows_of_one_token_are_the_passes_without_drafts(of: Windows, scheduler: str, weights: str) -> None:
    emulator = Emulator(preset(cores=3, hbm__weights=weights), work(rows=of.replayed.shape[1]))
    assert same(emulator.run(of.slots, scheduler, tokens=of.tokens), emulator.run(of.replayed, scheduler))
    assert np.array_equal(of.final(STEPS), of.replayed)


@settings(max_examples=30, deadline=None)
@given(windows(), st.sampled_from(SCHEDULERS), st.booleans(), st.booleans())
def test_a_run_is_the_sum_of_its_passes(of: Windows, scheduler: str, dense: bool, constant: bool) -> None:
    rest = {"rest": {"mode": "constant", "seconds_per_step": {
        "value": 0.001, "unit": "s/step", "source": "test", "kind": "assumption"}}} if constant else {}  # fmt: skip
    emulator = Emulator(preset(cores=3, **rest), work(rows=of.replayed.shape[1], window=6))
    whole = emulator.run(of.slots, scheduler, dense=dense, tokens=of.tokens).components
    parts = [
        # Without the empty slots behind the pass.
        emulator.run(
            of.slots[:, : taken * of.replayed.shape[1], p, None], scheduler, dense=dense,
            tokens=of.tokens[: taken * of.replayed.shape[1], p, None],
        ).components
        for p, taken in enumerate(of.taken.tolist())
    ]  # fmt: skip
    for name, totals in whole.items():
        for key, value in asdict(totals).items():
            assert value == pytest.approx(sum(asdict(part[name])[key] for part in parts)), (name, key)


@settings(max_examples=50, deadline=None)
@given(windows(most=7), st.integers(1, 8))
def test_longer_passes_are_taken_in_several_with_the_same_decisions(of: Windows, most: int) -> None:
    short = of.within(most)
    assert short.taken.max() <= most and np.array_equal(short.accepted.sum(0), of.accepted.sum(0))
    assert np.array_equal(short.final(STEPS), of.final(STEPS))
    assert short.taken.sum() <= of.taken.sum()
    if (of.accepted == of.taken[:, None]).all():
        # Only drafts behind a rejected one are left out.
        assert np.array_equal(short.replayed, of.replayed)


def test_a_pass_costs_its_input_tokens_also_those_that_are_rejected() -> None:
    # 2 rows on 2 cores: a round a token. A pass of three that keeps one costs as much as three passes in MLPs.
    emulator = Emulator(preset(cores=2), work(rows=2))
    taken, accepted = np.array([3, 3, 1, 1]), np.array([[1], [3], [1], [3]])
    with pytest.raises(ValueError, match="accepts more tokens than it takes"):
        Windows(taken, accepted, np.zeros((LAYERS, 2, 8), dtype=bool))
    of = Windows(np.array([3, 3, 3, 1]), np.array([[1], [3], [3], [1]]), np.zeros((LAYERS, 2, 10), dtype=bool))
    comparison = compare(emulator, of.final(STEPS), of)
    round_, mlp = emulator.accelerator.rounds(1), comparison.drafts.components["mlp"]
    assert mlp.cycles == LAYERS * 10 * round_ and comparison.dense.components["mlp"].cycles == LAYERS * STEPS * round_
    assert of.tokens.tolist() == [[0, 1, 4, 7]] * 2 + [[1, 2, 5, -1]] * 2 + [[2, 3, 6, -1]] * 2
    costs = comparison.per_token()
    assert costs["both"]["cycles"] == comparison.drs.cycles / STEPS
    assert costs["drafts"]["cycles"] > costs["dense"]["cycles"]


@settings(max_examples=30, deadline=None)
@given(of=windows(layers=3, steps=7))
def test_saved_windows_come_back_and_cost_the_same(tmp_path_factory: Any, of: Windows) -> None:
    file = tmp_path_factory.mktemp("d") / "run.npz"
    before = saved(of)
    save(file, before)
    after = read(file)
    assert after.windows is not None and np.array_equal(after.replayed, before.replayed)
    for name in ("taken", "accepted", "replayed"):
        assert np.array_equal(getattr(after.windows, name), getattr(of, name))
    assert emulate(preset(), after).to_dict() == emulate(preset(), before).to_dict()


def test_files_of_the_first_version_are_read(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).random((3, 2, 7)) < 0.5
    about: dict[str, Any] = {"spec": tiny_spec().to_dict(), "prompt": 3, "frames": 2, "window": None, "sinks": 4}
    meta = {"format": "fastcar-decisions", "version": 1, "shape": [3, 2, 7], "note": {}, **about}
    np.savez_compressed(tmp_path / "old.npz", bits=np.packbits(bits), meta=np.array(json.dumps(meta)))
    old = read(tmp_path / "old.npz")
    assert old.windows is None and np.array_equal(old.replayed, bits)
    costs = emulate(preset(), old).per_token()
    assert costs["dense"] == costs["drafts"] and costs["replay"] == costs["both"]


@pytest.mark.parametrize(
    ("taken", "accepted"),
    [([1] * 6, [[1]] * 6), ([1] * 7, [[2]] * 7), ([7], [[1]] * 7), ([0, 7], [[0], [7]]), ([7], [[7, 7, 7]]), ([], [])],
    ids=["cut", "more than taken", "other passes", "nothing taken", "videos", "empty"],
)
def test_windows_that_contradict_themselves_are_refused(tmp_path: Path, taken: Any, accepted: Any) -> None:
    bits = np.zeros((3, 2, 7), dtype=bool)
    save(tmp_path / "run.npz", saved(Windows(np.ones(7, dtype=int), np.ones((7, 1), dtype=int), bits)))
    with np.load(tmp_path / "run.npz") as data:
        arrays = dict(data) | {"taken": np.array(taken), "accepted": np.array(accepted)}
    np.savez_compressed(tmp_path / "run.npz", **arrays)
    with pytest.raises(RequestError, match=r"run\.npz is damaged, or not a file of replay decisions"):
        read(tmp_path / "run.npz")


def pipeline(folder: Path, **sections: dict[str, object]) -> VideoPipeline:
    sampling = {"cfg": 2.0, "temperature": 0.5, "top_k": 2}
    config = {"model": str(tiny_folder(folder)), "generation": {"frames": 4}, "sampling": sampling, **sections}
    return VideoPipeline.from_config(RunConfig.from_dict(config | {"replay": {"tau": 0.0}}))


@pytest.mark.parametrize("executor", ["torch", "native"])
def test_the_log_of_a_run_holds_what_became_final_and_what_did_not(tmp_path: Path, executor: str) -> None:
    prompts, seeds = ["a red ball", "a blue car"], [1, 2]
    alone = pipeline(tmp_path, draft={"kind": "off"}, runtime={"executor": executor})
    drafted = pipeline(tmp_path, draft={"kind": "jacobi", "window": 3}, runtime={"executor": executor})
    for pipe in (alone, drafted):
        list(pipe.stream(prompts, seeds))
    assert alone.decisions().windows is None
    decisions = drafted.decisions()
    of, final = decisions.windows, alone.decisions().replayed
    assert of is not None and np.array_equal(decisions.replayed, final)
    assert np.array_equal(of.final(final.shape[2]), final) and final.any() and not final.all()
    assert (of.accepted.sum(0) == final.shape[2]).all() and of.taken.sum() > final.shape[2]
    # Rejected inputs of the second frame on decide too, and not as the final ones there do.
    tokens, slots = of.tokens, of.slots
    rejected = np.repeat(np.arange(3), 4)[:, None] >= np.tile(of.accepted.T, (6, 1))
    rejected &= tokens >= decisions.replayed.shape[2] // 4 + 1
    assert slots[:, rejected].any() and not slots[:, rejected].all()


def test_the_plain_and_the_native_executor_leave_the_same_log(tmp_path: Path) -> None:
    logs = []
    for executor in ("torch", "native"):
        pipe = pipeline(tmp_path, draft={"kind": "jacobi", "window": 3}, runtime={"executor": executor})
        list(pipe.stream(["a red ball"], [1]))
        logs.append(pipe.decisions().windows)
    assert logs[0] is not None and logs[1] is not None
    for name in ("taken", "accepted", "replayed"):
        assert np.array_equal(getattr(logs[0], name), getattr(logs[1], name))


def test_a_run_that_is_stopped_has_the_passes_of_its_whole_frames(tmp_path: Path) -> None:
    pipe = pipeline(tmp_path, draft={"kind": "jacobi", "window": 3}, backend={"name": "fpga-sim"})
    for frame in pipe.stream(["a red ball"], [1]):
        decisions = pipe.decisions()
        assert decisions.windows is not None and decisions.frames == frame.index + 1
        assert np.array_equal(decisions.windows.final(decisions.replayed.shape[2]), decisions.replayed)
        assert pipe.report(0)["backend"]["passes"] == len(decisions.windows.taken)


@pytest.mark.slow
def test_generate_with_drafts_and_its_trace(run: Run, tmp_path: Path) -> None:
    common = ("generate", "a red ball rolling to the right on the grass", "--tau", "-2", "--seed", "1", "--frames", "2")
    drafts = ("--draft", "jacobi", "--draft-window", "8", "--json")
    done = run(*common, *drafts, "--backend", "fpga-sim", "--trace", "a.npz", "-o", "a.mp4")
    assert done.returncode == 0, done.stderr
    backend = json.loads(done.stdout)["backend"]
    assert backend["window"] == 8 and backend["passes"] < 127
    costs = backend["per_token"]
    assert costs["both"]["cycles"] == backend["cycles"] / 127
    assert (
        costs["dense"]["cycles"] > max(costs["replay"]["cycles"], costs["drafts"]["cycles"]) > costs["both"]["cycles"]
    )
    again = json.loads(run("fpga", "a.npz", "--preset", "edge-small", "--json").stdout)["runs"][0]
    assert again["per_token"] == costs and again["cycles"] == backend["cycles"]
    shown = run("fpga", "a.npz", "--preset", "edge-small")
    assert all(kind in shown.stderr + shown.stdout for kind in ("dense", "replay", "drafts", "both"))
    # Videos share the register with the windows of the others.
    many = run("generate", "a red ball", "--samples", "5", "--frames", "1", "--backend", "fpga-sim", *drafts, "-o", "m")
    assert [v["tokens"]["rows"] for v in json.loads(many.stdout)["videos"]] == [4] * 4 + [1]


def test_windows_beyond_the_index_register_are_refused(run: Run, tmp_path: Path) -> None:
    asked = (
        "generate",
        "a red ball",
        "--draft",
        "jacobi",
        "--draft-window",
        "17",
        "-o",
        "a.mp4",
        "--set",
        "sampling.cfg=2",
    )
    done = run(*asked, "--backend", "fpga-sim")
    said = " ".join(done.stderr.replace("│", " ").split())
    assert done.returncode == 2 and "17: an accelerator takes 32 input tokens" in said and "1 to 16" in said


def test_a_trace_whose_passes_are_longer_than_the_register_is_read(run: Run, tmp_path: Path) -> None:
    drafts = ("--draft", "jacobi", "--draft-window", "17", "--set", "sampling.cfg=2")
    assert run("generate", "a red ball", *drafts, "--frames", "1", "--trace", "t.npz", "-o", "a.mp4").returncode == 0
    done = run("fpga", "t.npz", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["runs"][0]["window"] == 16, done.stderr
    assert run("fpga", "rtl", "t.npz", "-o", "d").returncode == 0
    with (tmp_path / "d" / "layers.csv").open() as lines:
        assert max(int(line["rows"]) for line in csv.DictReader(lines)) == 32


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(of=windows(layers=3, steps=7))
def test_the_rtl_gets_a_row_for_each_input_token(tmp_path_factory: Any, of: Windows) -> None:
    folder = tmp_path_factory.mktemp("d")
    machine = preset()
    bundle.write(folder, machine, saved(of))
    lines = [line.split(",") for line in (folder / "layers.csv").read_text().splitlines()[1 + bundle.RANDOM_LAYERS :]]
    rows = of.replayed.shape[1]
    assert [int(line[4]) for line in lines] == (of.taken * rows).repeat(3).tolist()
    begin = of.taken.cumsum() - of.taken
    for line in lines:
        step, layer = int(line[1]), int(line[2])
        inputs = of.replayed[layer, :, begin[step] : begin[step] + of.taken[step]]
        assert int(line[3], 16) == sum(1 << int(slot) for slot in np.flatnonzero(~inputs.T.flatten()))
    # What it runs takes as long as the emulator says of MLPs and DRS.
    totals = emulate(machine, saved(of)).drs.components
    assert sum(int(line[6]) for line in lines) == totals["mlp"].cycles + totals["drs"].cycles
