"""The import graph of the package, from its sources: module level and inside functions."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

import fastcar_cli

SOURCE = Path(fastcar_cli.__file__).parents[1]
PACKAGES = [SOURCE / name for name in ("fastcar_cli", "fastcar_fpga", "fastcar_lab")]


def _sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from package.rglob("*.py")


def _modules() -> dict[str, Path]:
    found = {}
    for path in _sources():
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imports() -> dict[str, set[str]]:
    """Modules of the package that each module imports, wherever in it the import is."""
    modules = _modules()
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        wanted: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0 and node.module, f"{name}: relative imports are not followed here"
                # `from package import module` names a module, `from module import thing` does not.
                wanted |= {m if (m := f"{node.module}.{a.name}") in modules else node.module for a in node.names}
        graph[name] = {m for m in wanted if m in modules and m != name}
    return graph


def _circle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        return list(e.args[1])
    return []


def test_no_circle_of_imports() -> None:
    graph = _imports()
    assert len(graph) > 100
    assert _circle(graph) == []


def test_a_circle_would_be_found() -> None:
    assert _circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) != []


def test_the_layers_of_pyproject_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert lint_imports(no_cache=True) == 0


NEWER_THAN_3_10 = {
    "typing": {"Self", "Never", "LiteralString", "NotRequired", "Required", "TypeVarTuple", "Unpack", "assert_never",
               "assert_type", "override", "reveal_type"},
    "enum": {"StrEnum"}, "datetime": {"UTC"}, "itertools": {"batched"}, "contextlib": {"chdir"},
}  # fmt: skip


def test_nothing_is_imported_that_the_oldest_python_lacks() -> None:
    for path in _sources():
        tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 10))
        guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "sys.version_info >=" in ast.unparse(n.test)]
        newer_only = {id(node) for guard in guards for part in guard.body for node in ast.walk(part)}
        for node in ast.walk(tree):
            if id(node) in newer_only:
                continue
            if isinstance(node, ast.ImportFrom):
                newer = NEWER_THAN_3_10.get(str(node.module), set()) & {alias.name for alias in node.names}
                assert not newer, f"{path}: {newer}"
            elif isinstance(node, ast.Import):
                assert "tomllib" not in {alias.name for alias in node.names}, path


@pytest.mark.slow
def test_importing_the_package_sets_no_environment_variable() -> None:
    code = (
        "import os; before = dict(os.environ); import fastcar_cli.pipeline.pipeline; print(dict(os.environ) == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.slow
def test_loading_a_model_does_not_import_torchs_compiler() -> None:
    """It takes as long as a whole video of `mini`; the meta device and decorators bring it in."""
    code = (
        "import sys; from fastcar_cli.models import load; from fastcar_cli.checkpoints.names import BUNDLED;"
        "print([m for m in BUNDLED if load(m) and 'torch._dynamo' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
