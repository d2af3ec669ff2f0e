"""A sweep over drafts: the same videos, tokens a pass, and which codes were drafted right."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from support.sweeping import BALL, TINY_METRICS, results, sweep, tiny_folder

from fastcar_cli.errors import RequestError
from fastcar_cli.sweep.grid import OFF, WHOLE, Cell, Grid

N, FRAMES = 4, 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("sweep") / "out"
    options = ["--model", model, "--repeats", "1", "--metrics", TINY_METRICS, "-o", out]
    # Greedy decoding of a tiny model soon repeats itself, so that some drafts are right.
    done = sweep(BALL, "--tau", "off,-2", "--axis", "draft", "--draft-window", "2,4", *options, "--set",
                 "sampling.temperature=0")  # fmt: skip
    assert done.exit_code == 0, done.exception
    return out


@pytest.mark.slow
def test_drafts_are_an_axis_and_change_no_video(folder: Path) -> None:
    data = results(folder)
    assert data["plan"]["draft"] == ["off", "frame-2", "frame-4", "jacobi-2", "jacobi-4"]
    assert len(data["cells"]) == 10
    digests = {(c["tau"], c["draft"]): c["digest"] for c in data["cells"]}
    for cell in data["cells"]:
        assert cell["digest"] == digests[cell["tau"], OFF]
        assert cell["same_video"] is (None if cell["draft"] == OFF else True)
        if cell["tau"] is None and cell["draft"] != OFF:
            assert cell["reference"] is not None and cell["metrics"]["psnr_db"] is None


def test_tokens_a_pass_are_those_of_the_passes_by_frame(folder: Path) -> None:
    for cell in results(folder)["cells"]:
        drafts = cell["drafts"]
        window = 1 if cell["draft"] == OFF else int(cell["draft"].split("-")[1])
        assert drafts["tokens_per_pass"] == pytest.approx(N * FRAMES / drafts["passes"])
        assert all(t is None or 1 <= t <= window for t in drafts["tokens_by_frame"])
        right = [sum(map(sum, frame)) / N for frame in drafts["map"]]
        assert right == pytest.approx(drafts["accepted_by_frame"])
        assert sum(right) * N == N * FRAMES - drafts["passes"]
    with (folder / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["same_video"] for row in rows if row["draft"] != OFF} == {"true"}
    assert all(float(row["tokens_per_pass"]) >= 1 for row in rows)


def test_a_folder_without_drafts_takes_them(model: Path, tmp_path: Path) -> None:
    options = ["--model", model, "--tau", "-2", "--repeats", "1", "--metrics", TINY_METRICS, "-o", tmp_path / "out"]
    assert sweep(BALL, *options).exit_code == 0
    done = sweep(BALL, *options, "--draft", "off,jacobi", "--draft-window", "3")
    assert done.exit_code == 0, done.exception
    assert [c["draft"] for c in results(tmp_path / "out")["cells"]] == ["off", "off", "jacobi-3", "jacobi-3"]


def test_a_grid_counts_its_cells() -> None:
    for drafts in ((OFF,), ("jacobi-4",), (OFF, "frame-2", "jacobi-4")):
        grid = Grid(("a", "b"), (0, 1), (-1.0, None), gate=("row", "pair"), draft=drafts)
        cells = list(grid.cells())
        assert len(grid) == len(cells) == len({c.id for c in cells})
        assert all(Cell.from_dict(c.to_dict()) == c for c in cells)
    assert WHOLE["draft"] == ("off", "frame", "jacobi")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--draft", "best"], "unknown"),
        (["--draft-window", "4"], "--draft-window needs --draft"),
        (["--draft", "jacobi", "--draft-window", "0"], "not a draft length"),
        (["--draft", "jacobi", "--draft-window", "5"], "a frame has 4 tokens"),
        (["--draft", "off", "--axis", "draft"], "can't be used together"),
    ],
)
def test_wrong_requests(model: Path, tmp_path: Path, arguments: list[str], said: str) -> None:
    done = sweep(BALL, "--model", model, "--metrics", TINY_METRICS, "-o", tmp_path / "out", *arguments)
    assert isinstance(done.exception, RequestError) and said in str(done.exception) + str(done.exception.hint)
