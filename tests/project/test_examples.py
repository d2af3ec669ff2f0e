"""The notebooks of examples/: whole, without outputs, and each runs from its first cell to its last."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
RUN = """
import ast, json, sys
names = {}
for cell in json.load(sys.stdin):
    tree = ast.parse(cell)
    shown = isinstance(tree.body[-1], ast.Expr) and ast.Expression(tree.body.pop().value)
    exec(compile(tree, "cell", "exec"), names)
    value = eval(compile(shown, "cell", "eval"), names) if shown else None
    if hasattr(value, "_repr_html_"):
        print(value._repr_html_())
    elif hasattr(value, "_repr_png_"):
        print("PNG", len(value._repr_png_()))
"""
"""Runs cells as a notebook does and prints what it would show."""


def _cells(notebook: Path, kind: str) -> list[dict[str, Any]]:
    return [c for c in json.loads(notebook.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == kind]


@pytest.fixture(scope="module", params=NOTEBOOKS, ids=lambda p: p.stem)
def notebook(request: pytest.FixtureRequest) -> Path:
    return Path(request.param)


def test_there_are_notebooks() -> None:
    assert NOTEBOOKS


def test_a_notebook_is_one_of_version_4_without_outputs(notebook: Path) -> None:
    data = json.loads(notebook.read_text(encoding="utf-8"))
    assert (data["nbformat"], data["nbformat_minor"]) == (4, 5)
    assert data["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in data["cells"]]
    assert len({*ids}) == len(ids) and all(re.fullmatch(r"[\w-]{1,64}", i) for i in ids)
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in _cells(notebook, "code"))
    assert notebook.stat().st_size < 20_000


@pytest.mark.slow
def test_a_notebook_runs_and_shows_its_videos(notebook: Path, tmp_path: Path) -> None:
    cells = ["".join(cell["source"]) for cell in _cells(notebook, "code")]
    done = subprocess.run(
        [sys.executable, "-c", RUN], input=json.dumps(cells), capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert '<img src="data:image/gif;base64,' in done.stdout
    assert re.search(r"^PNG \d{4,}$", done.stdout, re.M)
    ratios = [int(r) for r in re.findall(r"^tau .*: +(\d+)% replayed", done.stdout, re.M)]
    assert len(ratios) >= 4 and ratios == sorted(ratios) and ratios[0] == 0 < ratios[-1]
