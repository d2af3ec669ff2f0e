"""`fastcar models`, `fastcar models show`, `fastcar pull`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.processes import Run
from support.sweeping import tiny_folder

from fastcar_cli.checkpoints.names import BUNDLED, REPOSITORIES


@pytest.fixture(autouse=True)
def _no_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


@pytest.mark.slow
def test_every_name_is_listed_with_what_it_takes_and_makes(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {row["name"]: row for row in json.loads(run("models", "--json").stdout)["models"]}
    assert list(rows) == [*BUNDLED, *REPOSITORIES]
    assert rows["mini"] == {
        "name": "mini",
        "takes": "a sentence",
        "makes": "8 frames of 64 x 64, 8 per second",
        "from": "the package",
        "here": True,
        "parameters": 6_063_459,
    }
    assert rows["table-actions"]["takes"] == "3 frames, 2 numbers per frame"
    assert rows["cosmos-predict1-5b-video2world"]["takes"] == "1 or 9 frames, text vectors"
    monkeypatch.setenv("COLUMNS", "80")
    shown = run("models").stdout
    assert all(name in shown for name in rows) and "downloaded" in shown and "6.1 M" in shown and "7.2 B" in shown


def test_a_model_is_shown_from_its_shapes(run: Run, tmp_path: Path) -> None:
    shown = json.loads(run("models", "show", "vila-u-7b", "--json").stdout)
    assert shown["decoder"] == "32 layers, width 4096 (MLP 11008), 32 heads" and not shown["here"]
    assert 7.2e9 < shown["parameters"] < 7.3e9 and "LLaMA 2" in shown["terms"]
    # A full name needs nothing of the hub either.
    full = json.loads(run("models", "show", "thuml/ivideogpt-bair-64-act-cond", "--json").stdout)
    assert full["takes"] == "1 frame, 4 numbers per frame"
    own = run("models", "show", str(tiny_folder(tmp_path / "own")))
    assert own.returncode == 0 and "a folder" in own.stdout and "unknown" in own.stdout
    wrong = run("models", "show", "minni")
    assert wrong.returncode == 2 and "did you mean 'mini'?" in wrong.stderr


def test_pull_names_the_folder_or_what_is_missing(run: Run) -> None:
    assert Path(run("pull", "mini").stdout.strip(), "config.json").is_file()
    away = run("pull", "ivideogpt-bair-64-act-free")
    assert away.returncode == 1 and "thuml/ivideogpt-bair-64-act-free could not be fetched" in away.stderr


def test_help_is_a_command(run: Run) -> None:
    assert "Usage:" in run("help", "models", "show").stdout
    assert run("-V").stdout == run("--version").stdout


def test_presets_are_listed(run: Run) -> None:
    rows = {row["name"]: row for row in json.loads(run("presets", "--json").stdout)["presets"]}
    assert rows["mini"]["option"] == "--config" and rows["paper-u280"]["option"] == "--fpga"
    assert all(row["about"] for row in rows.values())
