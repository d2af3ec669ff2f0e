"""A sweep over scores at equal ratios."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.sweeping import BALL, TINY_METRICS, cell_files, results, sweep, tiny_folder

from fastcar_cli.decoding.replay.scores import SCORES
from fastcar_cli.errors import RequestError
from fastcar_cli.sweep.grid import WHOLE, Cell

RATIOS = "0.5"
SAID = "a small red ball rolling to the right on the grass"
"""Leaves nothing open, so that its reading is the same without a seed."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "out"
    options = ["--model", model, "--repeats", "1", "--metrics", TINY_METRICS, "-o", out]
    done = sweep(SAID, "--axis", "score", "--replay-ratio", RATIOS, *options)
    assert done.exit_code == 0, done.exception
    return out


def test_every_score_at_equal_ratios(folder: Path) -> None:
    data = results(folder)
    assert data["plan"]["score"] == list(WHOLE["score"]) == list(SCORES) and data["plan"]["ratio"] == [0.5]
    assert len(data["cells"]) == 1 + len(SCORES)
    for line in data["summary"][1:]:
        assert line["replay_ratio"] == pytest.approx(line["ratio"], abs=0.07)
        assert (line["speedup"] is None) == (line["score"] != "tas")
    videos = {(c["score"], c["ratio"]): c for c in data["cells"]}
    assert all(c["speed"]["kernels"] == "torch" for c in data["cells"] if c["score"] != "tas")
    assert len({json.dumps(videos[s, 0.5]["replay"]["map"]) for s in SCORES}) == len(SCORES)
    columns = (folder / "results.csv").read_text(encoding="utf-8").splitlines()[0].split(",")
    assert {"score", "kept_ratio", "kernels"} <= {*columns}


def test_a_finished_sweep_does_nothing(folder: Path, model: Path) -> None:
    before = cell_files(folder)
    options = ["--model", model, "--repeats", "1", "--metrics", TINY_METRICS, "-o", folder]
    assert sweep(SAID, "--axis", "score", "--replay-ratio", RATIOS, *options).exit_code == 0
    assert cell_files(folder) == before


def test_a_ratio_of_the_configuration_is_the_axis(model: Path) -> None:
    done = sweep(BALL, "--set", "replay.ratio=0.5", "--model", model, "--metrics", TINY_METRICS, "--dry-run", "--json")
    assert json.loads(done.stdout)["plan"]["ratio"] == [0.5]


def test_cells_of_earlier_versions_keep_their_names() -> None:
    old = {"prompt": "a", "seed": 1, "tau": -2.0, "window": None, "gate": "row", "backend": "torch"}
    cell = Cell.from_dict(old)
    assert (cell.score, cell.ratio) == ("tas", None)
    assert cell.id == "a-s1-tau-2-row-torch-da26554173"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--score", "magic", "--tau", "1"], "'magic' is unknown"),
        (["--score", "tas,input", "--tau", "1"], "not comparable"),
        (["--axis", "score", "--score", "tas"], "can't be used together"),
        (["--axis", "colour"], "'colour' is unknown"),
        (["--replay-ratio", "0.5,1.5"], "'1.5' is not a ratio"),
        (["--replay-ratio", "0.95"], "allow at most"),
    ],
)
def test_wrong_requests(model: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    done = sweep(BALL, *arguments, "--model", model, "--metrics", TINY_METRICS, "-o", tmp_path / "d")
    assert isinstance(done.exception, RequestError) and said in str(done.exception)
    assert not (tmp_path / "d").exists()
