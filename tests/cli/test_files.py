"""Tables as CSV."""

from __future__ import annotations

import csv
import io

import pytest

from fastcar_cli.system.files import csv_of


@pytest.mark.parametrize("text", ["=1+1", "+a", "-x", "@SUM(A1)", "\t=1", "\r=1"])
def test_a_text_is_no_formula(text: str) -> None:
    [header, row] = csv.reader(io.StringIO(csv_of(["=id", "tau"], [[text, -2.5]]), newline=""))
    assert header == ["'=id", "tau"]
    assert row == [f"'{text}", "-2.5"]


def test_other_cells_stay() -> None:
    row = ["a - b", "", None, -1, float("-inf"), True, 'a "ball", red']
    [_, back] = csv.reader(io.StringIO(csv_of(["a"] * 7, [row]), newline=""))
    assert back == ["a - b", "", "", "-1", "-inf", "True", 'a "ball", red']
