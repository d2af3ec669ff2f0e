"""Lists of many prompts: what is said of them is short, and soon said."""

from __future__ import annotations

import random
import string
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fastcar_cli.cli.app import app


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    words = ["".join(random.Random(i).choices(string.ascii_lowercase, k=6)) for i in range(4000)]
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"a red ball rolls to the right {word}\n" for word in words))
    return file


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mini", "table"])
def test_notes_on_many_prompts_are_few(prompts: Path, tmp_path: Path, model: str) -> None:
    begin = time.process_time()
    arguments = ["--prompts", str(prompts), "--model", model, "--tau", "-1", "--dry-run", "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(app, ["sweep", *arguments])
    assert done.exit_code == 0, done.output
    assert done.stderr.count("does not know") == 20
    assert "3,980 more notes on prompts are not shown" in done.stderr
    assert time.process_time() - begin < 30
