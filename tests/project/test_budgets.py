"""Limits on what grows by itself: lines, options, loose files, words of the README, long functions, equal names."""

from __future__ import annotations

import ast
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from support.paths import ROOT

from fastcar_cli.cli.app import COMMANDS, app

SOURCE = ROOT / "src"
LINES = {".py", ".h", ".cpp", ".html", ".js", ".css", ".yaml"}
MOST_LINES = 29_933
"""Of fastcar_cli and fastcar_fpga together."""
MOST_LABORATORY_LINES = 20_379
MOST_OPTIONS = 40
"""In the help of `fastcar generate`."""
MOST_WORDS = 1_200
"""Of README.md, code and tables included."""
LOOSE = {"__init__.py", "__main__.py", "_version.py", "errors.py", "video.py", "py.typed"}
"""Files of fastcar_cli outside its packages."""
LONGEST = 80
"""Lines of a function, docstring included."""
TWICE: set[str] = set()
"""Classes of two modules; none joins them."""

OPTIONS = {
    "generate": """
        --actions --backend --cfg --config --continue --debug --draft --draft-window --dry-run --dtype --engine
        --example --force --format --fpga --frames --from --input --json --keep-going --kv-dtype --model --output
        --preview --prompts --quiet --replay-ratio --samples --score --seed --seeds --set --shard --tau --temperature
        --text-embedding --trace --truth --window
    """,
    "convert": "--calibrate --debug --depth-dtype --dtype --format --json --output --quiet --threads",
    "profile": """
        --backend --compare --debug --decode --device --dry-run --dtype --executor --format --fpga --json --model
        --repeats --replay-ratio --rows --save --seed --seq --tau --threads
    """,
    "sweep": """
        --actions --axis --backend --config --debug --draft --draft-window --dry-run --engine --format
        --frames --gate --input --json --key --lpips-weights --metrics --model --output --prompts --quiet
        --repeats --replay-ratio --score --seeds --set --shard --start --step --tau --window
    """,
    "play": """
        --actions --debug --draft --format --fps --frames --input --json --model --no-browser --output --port --quiet
        --seed --tau --terminal
    """,
    "demo": "--debug --no-browser --port",
    "fpga": """
        --debug --drafts --explain --format --frames --json --model --pair-correlation --preset --profile
        --prompt-tokens --replay --report --rows --seed --sinks --spread --table --window
    """,
    "fpga rtl": "--check --debug --format --json --output --passes --preset --saif --synth",
    "models": "--debug --format --json",
    "models show": "--debug --format --json",
    "pull": "--debug",
    "presets": "--debug --format --json",
    "config": "--config --debug --format --json --keys --set --where",
}
"""Options in the help of each command. A new option is added here in the same commit."""


def _files(*folders: str) -> list[Path]:
    """Files under version control, or all where there is none."""
    try:
        listed = subprocess.run(["git", "ls-files", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
        files = [ROOT / name for name in listed.stdout.splitlines()]
    except (OSError, subprocess.CalledProcessError):
        files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return [path for path in files if path.is_file()]


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n")


def _shown(name: str) -> str:
    group: Any = typer.main.get_command(app)
    root = typer.Context(group)
    command = group.get_command(root, name).make_context("", [], root, resilient_parsing=True).command
    shown = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    return " ".join(sorted(max(p.opts, key=len) for p in shown if p.name != "help"))


def _definitions(*packages: str) -> Iterator[tuple[Path, Any]]:
    for package in packages:
        for path in (SOURCE / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    yield path.relative_to(SOURCE), node


def test_lines_of_the_product() -> None:
    assert sum(_lines(f) for f in _files("src/fastcar_cli", "src/fastcar_fpga") if f.suffix in LINES) <= MOST_LINES


def test_lines_of_the_laboratory() -> None:
    assert sum(_lines(f) for f in _files("src/fastcar_lab")) <= MOST_LABORATORY_LINES


@pytest.mark.parametrize("name", COMMANDS)
def test_the_options_of_a_command_are_those_listed(name: str) -> None:
    assert _shown(name) == " ".join(OPTIONS[name].split())


def test_the_help_of_generate_is_short() -> None:
    assert len(_shown("generate").split()) + len(["--help"]) <= MOST_OPTIONS


def test_words_of_the_readme() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= MOST_WORDS


def test_every_module_is_in_a_package() -> None:
    assert {p.name for p in _files("src/fastcar_cli") if p.parent == SOURCE / "fastcar_cli"} == LOOSE


def test_no_function_is_long() -> None:
    functions = [(p, n) for p, n in _definitions("fastcar_cli", "fastcar_fpga") if not isinstance(n, ast.ClassDef)]
    long = {f"{path.as_posix()}: {node.name}" for path, node in functions if node.end_lineno - node.lineno >= LONGEST}
    assert long == set()


def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path, node in _definitions("fastcar_cli", "fastcar_fpga"):
        if isinstance(node, ast.ClassDef):
            places[node.name].append(str(path))
    assert {name: where for name, where in places.items() if len(where) > 1 and name not in TWICE} == {}
