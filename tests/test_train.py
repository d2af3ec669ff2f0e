"""The training command from nothing to a model that generates: seconds long, so that the recipe can't rot."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import Run


def test_train_resume_export_generate(run: Run, tmp_path: Path) -> None:
    short = ["--tokenizer-minutes", "0.03", "--base-minutes", "0.05", "--replay-minutes", "0.05", "--batch", "2"]
    done = run("train", "-o", "made", *short, timeout=400)
    assert done.returncode == 0, done.stderr
    log = tmp_path / "made" / "base" / "log.jsonl"
    first = [json.loads(line) for line in log.read_text().splitlines()]
    assert first[-1]["step"] > 0
    done = run("train", "-o", "made", "--stage", "base", "--base-minutes", "0.12", "--batch", "2", timeout=400)
    assert done.returncode == 0, done.stderr
    assert "resumed at step" in done.stderr
    again = [json.loads(line) for line in log.read_text().splitlines()]
    assert again[: len(first)] == first
    assert again[-1]["step"] > first[-1]["step"]
    done = run("generate", "a red ball", "--model", "made/mini", "--frames", "2", "-o", "a.mp4")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.mp4").exists()


def test_train_refuses_what_it_can_not_do(run: Run) -> None:
    for arguments in (["--stage", "all"], ["--stage", "replay"], ["--device", "tpu"], ["--base-minutes", "-1"]):
        done = run("train", "-o", "made", *arguments)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
