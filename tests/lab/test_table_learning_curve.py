"""What the learning curve of `table` predicts, on lines whose ends are known, and in the docs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.paths import ROOT
from support.processes import Run

from fastcar_cli.errors import RequestError
from fastcar_lab.figures.learning_curve import COLUMNS, Lines, read

DATA = ROOT / "docs" / "data" / "table-learning.csv"


def test_lines_lead_where_they_were_drawn(tmp_path: Path) -> None:
    steps = np.array([1000, 2000, 4000, 8000])
    loss = 6 - 0.5 * np.log(steps)
    rows = [f"{s},{v},{v},{100 - 30 * v},{90 - 40 * v}" for s, v in zip(steps, loss, strict=True)]
    file = tmp_path / "curve.csv"
    file.write_text("\n".join([",".join(COLUMNS), *rows]))
    found = Lines.through(read(file)).predict()
    for name, wanted in (("right_one", (100 - 85) / 30), ("right_two", (90 - 60) / 40)):
        assert found[name]["loss"] == pytest.approx(wanted)
        assert found[name]["steps"] == pytest.approx(math.exp((6 - wanted) / 0.5))


def test_docs_tell_what_it_prints(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    done = run("lab", "learning-curve", str(DATA), "-o", "curve.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "curve.png").stat().st_size > 10_000
    said = (DATA.parents[1] / "table-training.md").read_text(encoding="utf-8")
    for line in done.stdout.splitlines():
        assert line in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a,b\n1,2\n", "columns of numbers: steps"),
        (",".join(COLUMNS) + "\n1000,1,x,2,3\n", "no learning curve"),
        (",".join(COLUMNS) + "\n1000,1,1,2,3\n2000,1,0.9,,\n", "`right_one`"),
        (",".join(COLUMNS) + "\n10,1,1,2,3\n20,1,0.9,3,4\n", "`loss_later`"),
    ],
)
def test_another_file_is_refused(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "curve.csv"
    file.write_text(text)
    with pytest.raises(RequestError) as error:
        read(file)
    assert told in f"{error.value} {error.value.hint}"


def test_what_leads_nowhere_or_can_not_be_written_ends_in_a_sentence(run: Run, tmp_path: Path) -> None:
    flat = tmp_path / "flat.csv"
    flat.write_text(",".join(COLUMNS) + "\n1000,2,2,5,5\n2000,2,1.9,5,5\n")
    for file, output, code, said in ((flat, "a.png", 2, "leads nowhere"), (DATA, "none/a.png", 1, "not be written")):
        done = run("lab", "learning-curve", str(file), "-o", output)
        assert done.returncode == code and said in done.stderr
