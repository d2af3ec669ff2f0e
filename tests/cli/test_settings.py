"""Settings that are found: `fastcar.yaml` in the current folder, and variables of the environment."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.processes import Run

from fastcar_cli.config.run_config import settings
from fastcar_cli.kernels import native
from fastcar_cli.media import read_frames, read_recipe

PROMPT = "a red ball rolling to the right on the grass"


def _where(run: Run, *arguments: str) -> dict[str, tuple[object, str]]:
    """Value and source of each key."""
    done = run("config", "--where", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {row["key"]: (row["value"], row["from"]) for row in json.loads(done.stdout)["settings"]}


def test_the_later_of_two_sources_wins_and_is_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(_where(run)) == set(settings())
    assert _where(run)["sampling.cfg"] == (None, "the model")
    assert _where(run)["attention.sinks"] == (4, "default")
    (tmp_path / "fastcar.yaml").write_text("replay: {tau: -1}\nattention: {sinks: 1}\n")
    assert _where(run)["replay.tau"] == (-1.0, "fastcar.yaml")
    monkeypatch.setenv("FASTCAR_REPLAY_TAU", "-2")
    assert _where(run)["replay.tau"] == (-2.0, "FASTCAR_REPLAY_TAU")
    (tmp_path / "own.yaml").write_text("replay: {tau: -3}\n")
    found = _where(run, "--config", "own.yaml")
    assert found["replay.tau"] == (-3.0, "--config own.yaml")
    assert found["attention.sinks"] == (1, "fastcar.yaml")
    assert _where(run, "--config", "own.yaml", "--set", "replay.tau=-4")["replay.tau"] == (-4.0, "--set")


def test_the_executor_of_a_cpu_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def kernels() -> dict[str, object]:
        found: dict[str, object] = json.loads(run("config", "--where", "--json").stdout)["kernels"]
        return found

    if native.unavailable() is None:
        name = native.instruction_sets()[-1]
        monkeypatch.setenv("FASTCAR_KERNELS_ISA", name)
        sets = list(native.instruction_sets())
        assert kernels() == {"executor": "native", "instruction_set": name, "instruction_sets": sets, "why": None}
        assert f"on a CPU: native kernels ({name}); supported: {', '.join(sets)}\n" in run("config", "--where").stderr
    monkeypatch.setattr(native.library, "open_library", lambda: "not built: no compiler")
    native.instruction_sets.cache_clear()
    found = kernels()
    shown = run("config", "--where").stderr
    native.instruction_sets.cache_clear()
    why = "not built: no compiler"
    assert found == {"executor": "torch", "instruction_set": None, "instruction_sets": [], "why": why}
    assert f"on a CPU: plain torch: {why}\n" in shown


def test_a_ratio_in_the_environment_replaces_the_threshold_of_the_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fastcar.yaml").write_text("replay: {tau: -1}\n")
    monkeypatch.setenv("FASTCAR_REPLAY_RATIO", "0.5")
    found = _where(run)
    assert found["replay.ratio"] == (0.5, "FASTCAR_REPLAY_RATIO")
    assert found["replay.tau"] == ("off", "default")


@pytest.mark.slow
def test_generate_takes_both_and_says_so(process: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fastcar.yaml").write_text("generation: {frames: 1}\nvideo: {scale: 2}\n")
    monkeypatch.setenv("FASTCAR_REPLAY_TAU", "-2")
    monkeypatch.setenv("FASTCAR_VIDEO_SCALE", "3")
    done = process("generate", PROMPT, "--json", "-o", "a.mp4")
    report = json.loads(done.stdout)
    assert (report["tau"], report["video"]["frames"], report["video"]["width"]) == (-2.0, 1, 192)
    assert "note: fastcar.yaml sets generation.frames\n" in done.stderr
    assert "note: the environment sets model, replay.tau, video.scale" in done.stderr
    done = process("generate", PROMPT, "--tau", "off", "--set", "video.scale=1", "--json", "-o", "b.mp4")
    report = json.loads(done.stdout)
    assert (report["tau"], report["video"]["width"]) == (None, 64)
    assert [*done.stderr.splitlines()][:2] == [
        "note: fastcar.yaml sets generation.frames",
        "note: the environment sets model",
    ]


def test_a_sweep_takes_both(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fastcar.yaml").write_text("model: table\n")
    monkeypatch.setenv("FASTCAR_REPLAY_TAU", "-1")
    done = run("sweep", "a red ball rolls to the right", "--dry-run", "--json")
    plan = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert "the environment sets model, replay.tau" in plan["notes"]
    assert not any(note.startswith("fastcar.yaml") for note in plan["notes"])


def test_profile_takes_the_model(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCAR_MODEL", "vila-u-7b")
    for given, model in ((), "vila-u-7b"), (("--model", "mini"), "mini"):
        done = run("profile", "--backend", "fpga-sim", "--seq", "512", "--json", *given)
        assert json.loads(done.stdout)["model"] == model


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("FASTCAR_TAU", "-2", "did you mean FASTCAR_REPLAY_TAU?"),
        ("FASTCAR_REPLAY_TUA", "-2", "FASTCAR_REPLAY_TAU"),
        ("FASTCAR_SOMETHING_QUITE_DIFFERENT", "1", "fastcar config --where lists all keys"),
        ("FASTCAR_REPLAY_TAU", "high", "FASTCAR_REPLAY_TAU: replay.tau 'high': not allowed"),
        ("FASTCAR_RUNTIME_THREADS", "0", "FASTCAR_RUNTIME_THREADS: runtime.threads 0: not allowed"),
        ("FASTCAR_MODEL", "[", "FASTCAR_MODEL: [ is not valid YAML"),
    ],
)
def test_a_variable_that_sets_nothing_is_refused_with_near_ones(
    name: str, value: str, says: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    for command in (["config"], ["generate", PROMPT], ["sweep", PROMPT, "--dry-run"], ["profile"]):
        done = run(*command)
        assert done.returncode == 2 and done.stdout == ""
        assert name in done.stderr and says in done.stderr


def test_a_damaged_file_of_the_folder_is_refused(run: Run, tmp_path: Path) -> None:
    for text, says in (
        ("replay: {tua: 1}", "did you mean 'replay.tau'?"),
        ("a: [", "not valid YAML"),
        ("7", "mapping"),
    ):
        (tmp_path / "fastcar.yaml").write_text(text)
        done = run("generate", PROMPT)
        assert done.returncode == 2 and "fastcar.yaml" in done.stderr and says in done.stderr
    (tmp_path / "fastcar.yaml").unlink()
    (tmp_path / "fastcar.yaml").mkdir()
    assert run("config").returncode == 2


def test_empty_variables_and_those_of_the_kernels_are_no_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCAR_REPLAY_TAU", "")
    monkeypatch.setenv("FASTCAR_KERNELS_ISA", "generic")
    assert _where(run)["replay.tau"] == ("off", "default")


def test_a_recipe_makes_the_same_video_wherever_it_is_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run("generate", PROMPT, "--tau", "-1", "--frames", "2", "--seed", "4", "-o", "first.mp4")
    assert first.returncode == 0, first.stderr
    (tmp_path / "fastcar.yaml").write_text("replay: {tau: off}\nsampling: {top_k: 1}\ngeneration: {samples: 2}\n")
    monkeypatch.setenv("FASTCAR_GENERATION_SEED", "9")
    monkeypatch.setenv("FASTCAR_VIDEO_SCALE", "2")
    again = run("generate", "--from", "first.mp4", "-o", "again.mp4")
    assert again.returncode == 0, again.stderr
    assert np.array_equal(read_frames(tmp_path / "first.mp4"), read_frames(tmp_path / "again.mp4"))
    assert read_recipe(tmp_path / "first.mp4") == read_recipe(tmp_path / "again.mp4")


def test_the_list_of_sources_is_a_table_in_every_format(run: Run) -> None:
    assert run("config", "--where", "--format", "csv").stdout.splitlines()[:2] == [
        "key,value,from",
        "model,mini,FASTCAR_MODEL",
    ]
    assert run("config", "--where", "--format", "md").stdout.startswith("| key | value | from |\n")
    assert json.loads(run("config", "--json", "--set", "model=table").stdout)["model"] == "table"
    done = run("config", "--format", "csv")
    assert done.returncode == 2 and "--where" in done.stderr


SERVICE = {
    "FASTCAR_SERVICE_HOST": "10.0.0.1", "FASTCAR_SERVICE_PORT": "80", "FASTCAR_SERVICE_PORT_HTTP": "80",
    "FASTCAR_PORT": "tcp://10.0.0.1:80", "FASTCAR_PORT_80_TCP": "tcp://10.0.0.1:80", "FASTCAR_PORT_80_TCP_PROTO": "tcp",
    "FASTCAR_DEMO_SERVICE_HOST": "10.0.0.2", "FASTCAR_DEMO_PORT": "tcp://10.0.0.2:8000",
}  # fmt: skip


def test_variables_of_a_service_are_not_settings(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SERVICE.items():
        monkeypatch.setenv(name, value)
    assert run("config").returncode == 0
    monkeypatch.setenv("FASTCAR_PORT", "80")
    done = run("config")
    assert done.returncode == 2 and "FASTCAR_PORT: this environment variable" in done.stderr
