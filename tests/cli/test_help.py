"""What a stranger finds: groups, defaults and examples in the help, values that a shell completes."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer
from support.processes import Run

from fastcar_cli.cli.app import COMMANDS, app
from fastcar_cli.config.run_config import settings

NAMED = [*COMMANDS, "train"]


def _examples(text: str) -> list[str]:
    return [line.strip() for line in text.partition(" Examples:\n")[2].splitlines() if line.strip()]


@pytest.mark.parametrize("name", NAMED)
def test_help_ends_with_three_examples_that_the_command_understands(run: Run, name: str) -> None:
    lines = _examples(run(*name.split(), "--help").stdout)
    assert len(lines) == 3
    group: Any = typer.main.get_command(app)
    root = typer.Context(group)
    for line in lines:
        words = [w for w in shlex.split(line.partition(" > ")[0]) if not w.startswith("FASTCAR_")]
        count = len(name.split()) + 1
        assert words[:count] == ["fastcar", *name.split()]
        group.get_command(root, name).make_context(name, words[count:], root)


def test_the_first_help_has_examples_too(run: Run) -> None:
    assert len(_examples(run("--help").stdout)) == 3


@pytest.mark.parametrize("name", ["generate", "sweep", "profile", "convert"])
def test_options_are_in_a_handful_of_groups(run: Run, name: str) -> None:
    panels = re.findall(r"^╭─ (.*?) ─", run(name, "--help").stdout, re.M)
    assert "Options" not in panels
    assert 3 <= len(set(panels) - {"Arguments"}) <= 7
    assert len(panels) == len(set(panels))


def test_every_common_option_of_a_setting_shows_its_default(run: Run) -> None:
    text = " ".join(re.sub(r"[│╭╮╰╯─]", " ", run("generate", "--help").stdout).split())
    for setting in settings().values():
        if setting.flag is not None and setting.common:
            option = text[text.index(f" {setting.flag} ") :]
            assert f"[default: {setting.default}]" in option[: option.index("]") + 1], setting.flag
    assert "0 to -4 is useful" in text


def test_rarer_options_are_keys_and_still_understood(run: Run) -> None:
    shown, keys = run("generate", "--help").stdout, run("config", "--keys").stdout
    for setting in settings().values():
        assert setting.key in keys
        if setting.flag is not None and not setting.common:
            assert f" {setting.flag} " not in shown
    assert run("generate", "a ball", "--top-k", "5", "--start", "-1").returncode == 2
    assert "--input" in run("generate", "a ball", "--start", "1").stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("generate --model ta", ["table", "table-dense", "table-actions"]),
        ("generate --draft ", ["off", "frame", "jacobi", "auto"]),
        ("generate --backend f", ["fpga-sim"]),
        ("generate --fpga edge-s", ["edge-small"]),
        ("generate --set replay.t", ["replay.tau=", "replay.tas="]),
        ("sweep --score tas,in", ["tas,input"]),
        ("profile --dtype fl", ["float32", "float16"]),
        ("convert --dtype ", ["int4", "int8", "bfloat16"]),
        ("config --config mini", ["mini", "mini-dense"]),
        ("fpga rtl --preset edge-s", ["edge-small"]),
        ("models show table-a", ["table-actions"]),
        ("pull vila", ["vila-u-7b"]),
        ("generate --replay", ["--replay-ratio"]),
        ("gen", ["generate"]),
    ],
)
def test_a_shell_completes_values_without_torch(
    process: Run, monkeypatch: pytest.MonkeyPatch, line: str, values: list[str]
) -> None:
    monkeypatch.setenv("_FASTCAR_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"fastcar {line}")
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" "))))
    monkeypatch.setenv("PYTHONPROFILEIMPORTTIME", "1")
    done = process()
    assert done.stdout.split() == values
    assert "fastcar_cli.cli.app" in done.stderr
    assert not re.search(r"\| +(torch|numpy)\b", done.stderr)


def test_the_script_for_a_shell_is_printed(process: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    done = process("--show-completion", "bash")
    assert done.returncode == 0
    assert "_FASTCAR_COMPLETE=complete_bash" in done.stdout
