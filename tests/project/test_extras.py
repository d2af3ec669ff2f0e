"""A plain install: what needs an optional package says which extra brings it, everything else works without."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from support.paths import ROOT
from support.sweeping import BALL, TINY_METRICS, sweep, tiny_folder
from typer.testing import CliRunner, Result

from fastcar_cli.cli.app import app
from fastcar_cli.errors import RequestError
from fastcar_cli.system import plugins


@pytest.fixture(autouse=True)
def _plain_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No optional package can be imported."""
    for name in list(sys.modules):
        if name.split(".")[0] in plugins.EXTRAS:
            monkeypatch.delitem(sys.modules, name)
    for name in plugins.EXTRAS:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.chdir(tmp_path)


def _fastcar(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_every_extra_is_in_pyproject() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    declared = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    for package, extra in plugins.EXTRAS.items():
        named = {"llama_cpp": "llama-cpp-python", "ik_llama_cpp": "ik-llama-cpp-python"}.get(package, package)
        assert re.search(rf'^{extra} = \[.*"{named}\b', declared, re.M), package
        assert not re.search(rf'^    "{package}\b', text.split("[project.optional-dependencies]")[0], re.M)


@pytest.mark.parametrize("package", plugins.EXTRAS)
def test_a_missing_package_is_named_with_its_extra(package: str) -> None:
    extra = plugins.EXTRAS[package]
    with pytest.raises(RequestError, match=rf"that needs the extra fastcar\[{extra}\]") as error:
        plugins.need(package, "that")
    assert error.value.hint == f"run pip install 'fastcar[{extra}]'"


def test_claims_ask_for_their_plots_before_they_decode(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["lab", "claims", "--model", "mini", "--prompts", "1", "--seeds", "1", "-o", "claims"]
    )
    assert isinstance(done.exception, RequestError)
    assert "the page of the claims needs the extra fastcar[plots]" in str(done.exception)
    assert not (tmp_path / "claims").exists()


@pytest.mark.slow
def test_commands_work_and_a_sweep_says_what_its_parquet_file_needs(tmp_path: Path) -> None:
    model = tiny_folder(tmp_path / "model")
    assert _fastcar("generate", BALL, "--model", model, "--tau", "0", "-o", "a.mp4").exit_code == 0
    assert _fastcar("fpga", "--preset", "paper-u280", "--replay", "0.5").exit_code == 0
    assert _fastcar("profile", "--model", model, "--seq", "32", "--repeats", "1").exit_code == 0
    (tmp_path / "d").mkdir()
    done = sweep(BALL, "--tau", "off,0", "--repeats", "1", "--metrics", TINY_METRICS, "--model", model, "-o", "d")
    assert done.exit_code == 0, done.exception
    assert "results.parquet needs the extra fastcar[parquet]" in " ".join(done.stderr.split())
    assert "parquet" not in done.stdout
    assert sorted(p.name for p in (tmp_path / "d").glob("results.*")) == ["results.csv", "results.json"]
