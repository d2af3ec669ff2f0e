"""The check of a GPU, at toy size through Triton's interpreter where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from support.sweeping import tiny_folder
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.errors import RequestError
from fastcar_lab.bench.gpu import TOY, Plan, check
from fastcar_lab.bench.gpu_page import page

pytest.importorskip("triton", reason="triton is not installed: pip install triton (Linux)")
pytestmark = pytest.mark.usefixtures("interpreter")


@pytest.mark.slow
def test_every_part_runs_and_is_on_the_page(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["lab", "gpu-check", "--device", "cpu", "-o", str(tmp_path / "check.json")])
    assert done.exit_code == 0, done.output
    parts = json.loads((tmp_path / "check.json").read_text(encoding="utf-8"))["parts"]
    assert all(outcome["ok"] for outcome in parts.values())
    assert [outcome["tokens"] for name, outcome in parts.items() if "whole run" in name] == [8, 8, 8]
    lines = parts["toy in float32, passes of 2 rows"]["lines"]
    assert [(line["window"], line["replayed"]) for line in lines] == [(1, False), (2, False), (1, True), (2, True)]
    # Two tokens read no more weights than one; a replayed pass reads no MLP.
    assert lines[0]["gb_s"] * lines[0]["ms"] == pytest.approx(lines[1]["gb_s"] * lines[1]["ms"])
    assert lines[2]["gb_s"] * lines[2]["ms"] < lines[0]["gb_s"] * lines[0]["ms"]
    text = (tmp_path / "check.md").read_text(encoding="utf-8")
    assert all(f"| {name} | passed" in text for name in parts)


@pytest.mark.slow
def test_drafts_of_whole_videos_change_no_code(tmp_path: Path) -> None:
    model = str(tiny_folder(tmp_path / "model"))
    plan = Plan(
        device="cpu", models=[], dtypes=["float32"], shapes={}, layers=2, context=20, windows=[1, 2], video=8,
        repeats=1, tests=False, drafted={model: ["a red ball"]}, frames=2,
    )  # fmt: skip
    result = check(plan)
    lines = result["parts"][f"{model} in float32, drafts"]["lines"]
    assert [(line["window"], line["equal"], line["differing"]) for line in lines] == [(1, 1, 0.0), (2, 1, 0.0)]
    assert f"## {model} in float32, drafts, 1 videos" in page(result)


@pytest.mark.slow
def test_a_part_that_fails_is_named_and_the_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> dict[str, object]:
        raise RuntimeError("no kernel image\nmore")

    monkeypatch.setattr("fastcar_lab.bench.gpu.equals_torch", lambda *_: {"ok": False, "why": "3.0% differ"})
    monkeypatch.setattr("fastcar_lab.bench.gpu.time_passes", broken)
    monkeypatch.setattr(
        "fastcar_lab.bench.gpu.time_run",
        lambda *_: {"tokens": 8, "passes": 4, "layers": 2, "decode_s": 1.0, "pixels_s": 2.0},
    )
    monkeypatch.setattr("fastcar_lab.bench.gpu.time_transformers", lambda *_: {"ms": 1.0, "layers": 2})
    plan = Plan(
        device="cpu", models=["nothing"], dtypes=["float32"], shapes={"toy": TOY}, layers=2, context=20, windows=[1, 2],
        video=8, repeats=1, tests=False,
    )  # fmt: skip
    result = check(plan)
    text = page(result)
    assert "| nothing in float32 equals plain torch, 1 tokens a pass | failed: " in text
    assert "| toy in float32 equals plain torch, 1 tokens a pass | failed: 3.0% differ |" in text
    assert "| toy in float32, passes of 1 rows | failed: no kernel image |" in text
    assert (
        "| toy in float32, a whole run, dense | passed: 8 tokens of 2 layers in 1.00 s and 4 passes, pixels in 2.00 s |"
        in text
    )


@pytest.mark.slow
def test_a_shape_that_does_not_fit_leaves_the_other_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastcar_lab.bench.gpu.equals_torch", lambda *_: {})
    monkeypatch.setattr("fastcar_cli.profile.profiler.BUDGET", 1)
    plan = Plan(
        device="cpu", models=["mini"], dtypes=["float32"], shapes={"toy": TOY}, layers=2, context=20, windows=[1, 2],
        video=8, repeats=1, tests=False,
    )  # fmt: skip
    text = page(check(plan))
    assert "| mini in float32 equals plain torch, 1 tokens a pass | passed |" in text
    assert "| toy in float32, passes of 2 rows | failed: one layer at 20 tokens does not fit the memory" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["lab", "gpu-check", "-o", str(tmp_path / "check.json")])
    assert isinstance(done.exception, RequestError) and "no CUDA device" in str(done.exception)
    assert not list(tmp_path.iterdir())
