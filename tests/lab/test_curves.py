"""Sweeps side by side: `fastcar lab curves`."""

from __future__ import annotations

import csv
import json
import statistics
from pathlib import Path

import pytest
from support.processes import Run
from support.sweep_folder import write_folder
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.errors import RequestError

PROMPTS = ("a red ball", "a blue boat", "a green star")


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("sweeps")
    first, second = (write_folder(folder / name, PROMPTS, (0, 1)) for name in ("a", "b"))
    document = json.loads((second / "results.json").read_text())
    document["model"]["name"] = "other"
    (second / "results.json").write_text(json.dumps(document))
    return first, second


@pytest.mark.slow
def test_a_line_a_setting_with_the_means_of_its_videos(run: Run, sweeps: tuple[Path, Path], tmp_path: Path) -> None:
    result = run("lab", "curves", *map(str, sweeps), "-o", "out")
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader((tmp_path / "out" / "curves.csv").open()))
    cells = json.loads((sweeps[0] / "results.json").read_text())["cells"]
    names = {row["model"] for row in rows}
    assert len(names) == 2 and "other" in names and len(rows) == 2 * 4
    for row in rows:
        # A text that begins with a minus has a quote before it in a CSV.
        tau = row["tau"].removeprefix("'")
        mine = [c for c in cells if ("" if c["tau"] is None else str(c["tau"])) == tau]
        assert len(mine) == int(row["videos"]) == 6
        wanted = statistics.mean(c["replay"]["ratio"] for c in mine)
        assert float(row["replayed"]) == pytest.approx(wanted)
        assert float(row["replayed_low"]) <= wanted <= float(row["replayed_high"])
    assert (tmp_path / "out" / "curves.png").stat().st_size > 10_000
    page = (tmp_path / "out" / "curves.md").read_text()
    assert page == result.stdout.removesuffix("\n") and "**other** (6 videos of 3 prompts)" in page


def test_an_empty_folder_is_refused_in_a_sentence(run: Run, tmp_path: Path) -> None:
    result = run("lab", "curves", str(tmp_path), "-o", "out")
    assert result.returncode == 2 and "Traceback" not in result.stderr
    assert "results" in result.stderr and not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", ["{}", "[", '{"cells": []}'])
def test_what_is_no_sweep_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "results.json").write_text(content)
    result = CliRunner().invoke(app, ["lab", "curves", str(tmp_path), "-o", str(tmp_path / "out")])
    assert isinstance(result.exception, RequestError) and "results" in str(result.exception)
    assert not (tmp_path / "out").exists()


def test_equal_videos_have_no_psnr(run: Run, sweeps: tuple[Path, Path], tmp_path: Path) -> None:
    assert run("lab", "curves", str(sweeps[0]), "-o", "out").returncode == 0
    dense = next(r for r in csv.DictReader((tmp_path / "out" / "curves.csv").open()) if r["replayed"] == "0.0")
    assert dense["psnr_db"] == "" and "60.0" not in (tmp_path / "out" / "curves.md").read_text()
    assert "| equal |" in (tmp_path / "out" / "curves.md").read_text()
