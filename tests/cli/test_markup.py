"""Text of users is printed as it is: brackets are no markup, in any command."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest
from support.processes import Run
from typer.testing import CliRunner

import fastcar_cli
from fastcar_cli.cli.app import app
from fastcar_cli.cli.profile import show as show_profile
from fastcar_cli.cli.render import Results, console, note, progress
from fastcar_cli.cli.sweep import show_plan

ODD = "[bold]a car[/b] [/] :smile: [red]"


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.chdir(tmp_path)


def test_a_prompt_with_brackets(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["generate", f"a red ball {ODD}", "--frames", "1", "--seed", "1", "--tau", "-1"])
    assert done.exit_code == 0, done.exception
    assert f"a red ball {ODD}" in done.stdout
    [file] = tmp_path.iterdir()
    assert file.name in done.stdout


def test_a_path_with_brackets(tmp_path: Path) -> None:
    folder = tmp_path / "[b]out"
    folder.mkdir()
    done = CliRunner().invoke(app, ["generate", "a car", "--frames", "1", "-o", f"{folder.name}/[i].gif"])
    assert done.exit_code == 0, done.exception
    assert "[b]out/[i].gif" in done.stdout


def test_a_sweep_in_a_folder_with_brackets() -> None:
    arguments = ["sweep", f"a car {ODD}", "--tau", "0", "--frames", "2", "--repeats", "1", "--metrics", "psnr"]
    done = CliRunner().invoke(app, [*arguments, "-o", "[/b]"])
    assert done.exit_code == 0, done.exception
    assert "cells in [/b]:" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "a car", "--model", ODD], ODD),
        (["generate", "a car", "--config", "[/b].yaml"], "[/b].yaml"),
        (["generate", "a car", "--set", f"replay.gate={json.dumps(ODD)}"], ODD),
        (["generate", "a car", "--from", "[/b].mp4"], "[/b].mp4"),
        (["fpga", "[/b].npz"], "[/b].npz"),
        (["profile", "--compare", "[/b].json"], "[/b].json"),
        (["config", "--config", "[/b].yaml"], "[/b].yaml"),
        (["train", "-o", "x", "--stage", "[/b]"], "[/b]"),
    ],
)
def test_an_error_shows_what_was_given(run: Run, arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2 and message in done.stderr


@pytest.mark.parametrize("arguments", [["[/b]"], ["fpga", "--[/b]"]])
def test_an_error_of_the_parser_shows_what_was_given(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert "[/b]" in done.stderr


def test_tables_and_notes(capsys: pytest.CaptureFixture[str]) -> None:
    out = console()
    note(out, ODD, "stopped")
    with progress(out) as bar:
        bar.add_task(ODD, total=1)
    axes = {
        "prompts": [ODD],
        "seeds": [0],
        "tau": [None],
        "ratio": [],
        "window": [None],
        "gate": [ODD],
        "backend": [ODD],
    }
    axes |= {"score": [ODD], "draft": [ODD]}
    document = {"plan": {**axes, "repeats": 1}, "cells": 1, "decodes": 1, "left": 1, "expected_s": None}
    show_plan(Results(), {**document, "shard": ODD})
    show_profile({"machine": {"device": ODD}, "lengths": [], "replay": {}})
    shown = capsys.readouterr()
    assert (shown.out.count(ODD), shown.err.count(ODD)) == (6, 1)


def test_one_console() -> None:
    """Whoever makes a console of their own, or reads text as markup, leaves this door open."""
    for path in Path(fastcar_cli.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "rich.console" and path.name != "render.py":
                # As a type only.
                assert path.name in ("sweep.py", "play_terminal.py"), path
            if isinstance(node, (ast.ImportFrom, ast.Import)):
                assert not {a.name for a in node.names} & {"rich.markup", "rich.print"}, path
            if isinstance(node, ast.Attribute):
                assert node.attr != "from_markup", path
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Console":
                assert {k.arg for k in node.keywords} >= {"markup", "emoji"}, path
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "TextColumn":
                assert "markup" in {k.arg for k in node.keywords}, path
