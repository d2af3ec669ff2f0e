"""The README's speed table: one column an instruction set, its numbers those of the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.paths import ROOT
from support.tiny import tiny_spec
from typer.testing import CliRunner

from fastcar_cli.cli.app import app
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels import native
from fastcar_lab.bench import passes, summary
from fastcar_lab.bench.cases import PROMPT_TOKENS, Benchmark

pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))


@pytest.mark.slow
def test_the_table_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def layers(*_: object) -> dict[str, object]:
        used.append(native.instruction_set())
        rows = {"int4": 4.0, "ik_llama.cpp Q4_0": 6.0, "ik_llama.cpp IQ4_XS": 5.0, "ik_llama.cpp Q8_0": 1.0}
        return {"lines": {name: {1: {"ms": ms}, 8: {"ms": 2 * ms}} for name, ms in rows.items()}}

    # Layers of 7B width take minutes; the pass of `mini` and its videos are real.
    monkeypatch.setattr("fastcar_lab.bench.window.measure", layers)
    file = tmp_path / "speed.json"
    done = CliRunner().invoke(
        app, ["lab", "speed", "-o", str(file), "--turns", "1", "--models", "mini", "--threads", "1"]
    )
    assert done.exit_code == 0, done.output
    result = json.loads(file.read_text(encoding="utf-8"))
    assert used == list(result["sets"]) == summary.sets()
    text = file.with_suffix(".md").read_text(encoding="utf-8")
    of_passes, of_videos = (part.strip().splitlines() for part in text.split("\n\n"))
    assert all(line.count("|") == len(used) + 2 for line in of_passes) and len(of_videos) == 2 + len(used)
    assert "| ik_llama.cpp IQ4_XS: 5.0 ms |" in text and "| 4.0 ms (1.25 x) |" in text
    video = result["sets"][used[0]]["videos"]["mini"]
    assert f" | {video['dense_s']:.2f} s | {video['faster']['drafts']:.2f} x | " in of_videos[2]
    pass_of_mini = result["sets"][used[0]]["mini"]["lines"]["float32/native/dense"]["ms"]
    assert f"| {pass_of_mini:.2f} ms (" in text


@pytest.mark.slow
def test_passes_are_in_a_table_by_shape_and_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Benchmark, "spec", tiny_spec(times=4))
    monkeypatch.setattr(passes, "CONTEXTS", (PROMPT_TOKENS + 6, PROMPT_TOKENS + 9))
    monkeypatch.setattr(passes, "WINDOWS", (1, 3))
    monkeypatch.setattr(passes, "FROM_TEXT", ("mini",))
    monkeypatch.setattr("fastcar_lab.bench.window.multiply_adds_per_s", lambda instructions: {32: 1e9, 16: 2e9, 8: 3e9})
    file = tmp_path / "passes.json"
    done = CliRunner().invoke(app, ["lab", "speed", "--passes", "-o", str(file), "--turns", "1", "--threads", "1"])
    assert done.exit_code == 0, done.output
    result = json.loads(file.read_text(encoding="utf-8"))
    layers = [(shape, PROMPT_TOKENS + slots) for shape in passes.LAYERS_OF for slots in (6, 9)]
    assert [(part["shape"], part["context"]) for part in result["parts"]] == [*layers, ("mini", 300)]
    text = file.with_suffix(".md").read_text(encoding="utf-8")
    assert text.count("| tokens a pass | 1 | 3 |") == 5
    assert "\n`mini`, 300 tokens of context; " in text
    line = result["parts"][4]["lines"]["int4"]["3"]
    cell = f"{line['gb_s']:.1f} GB/s, {line['of_bandwidth']:.0%}; {line['multiply_adds_g_s']:.0f} G/s, "
    assert text.rstrip().splitlines()[-1].startswith("| int4 |") and cell in text.splitlines()[-1]


def test_the_readme_has_the_table_of_the_stored_run() -> None:
    result = json.loads((ROOT / "docs" / "data" / "readme-speed.json").read_text(encoding="utf-8"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert summary.table(result) in readme
    assert f"commit {result['commit']}" in readme


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["lab", "speed", "-o", str(tmp_path / "a.json"), "--models", "vila-u-7b"])
    assert isinstance(done.exception, RequestError) and "vila-u-7b: unknown" in str(done.exception)
    assert not list(tmp_path.iterdir())
