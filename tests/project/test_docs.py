"""What README and docs promise is so."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import subprocess
import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.paths import ROOT
from support.processes import Run
from support.sweeping import tiny_folder

from fastcar_cli import VideoPipeline
from fastcar_cli.checkpoints.names import BUNDLED
from fastcar_cli.config.keys import MODELS
from fastcar_cli.config.presets import presets

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RECORDS = [ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs" / "data").glob("*.md"))]


def _commands(page: Path) -> list[str]:
    """Lines of bash blocks that call fastcar."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.S)
    return [line for block in blocks for line in block.splitlines() if line.startswith("fastcar ")]


LONG = ("README.md", "fpga.md", "profile.md", "speed.md", "sweep.md", "vila-u.md")


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(p, marks=pytest.mark.slow if p.name in LONG else ()) for p in PAGES if _commands(p)],
    ids=lambda p: p.name,
)
def test_commands_run_in_their_order(run: Run, process: Run, page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FASTCAR_MODEL", raising=False)
    call = process if page.name == "README.md" else run
    for line in _commands(page):
        done = call(*shlex.split(line, comments=True)[1:])
        assert done.returncode == 0, f"{line}\n{done.stderr}"


SNIPPETS = [
    (p.name, i, code)
    for p in PAGES
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", p.read_text(encoding="utf-8"), re.S))
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [pytest.param(code, id=f"{p}-{i}", marks=pytest.mark.slow if p in LONG else ()) for p, i, code in SNIPPETS],
)
def test_python_in_the_docs_runs(tmp_path: Path, code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def _keys(document: dict[str, Any], documented: set[str], before: str = "") -> set[str]:
    """Dotted keys of a document, down to those that the page names."""
    found: set[str] = set()
    for key, value in document.items():
        name = before + key
        deeper = isinstance(value, dict) and name not in documented
        found |= _keys(value, documented, f"{name}.") if deeper else {name}
    return found


def test_the_page_on_json_names_the_keys_of_a_report(run: Run, tmp_path: Path) -> None:
    cells = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "json.md").read_text(encoding="utf-8"), re.M)
    documented = {key for cell in cells for key in re.findall(r"`([\w.]+)`", cell)}
    model, frames = tiny_folder(tmp_path / "model"), np.zeros((8, 64, 64, 3), np.uint8)
    np.savez(tmp_path / "clip.npz", image=frames, action=np.zeros((8, 2), np.float32))
    found: set[str] = set()
    for arguments in (
        ("a red ball", "--model", str(model), "--backend", "fpga-sim"),
        ("--model", "table-actions", "--input", "clip.npz", "--truth"),
    ):
        done = run("generate", *arguments, "--json", "-o", f"{len(found)}.gif")
        assert done.returncode == 0, done.stderr
        found |= _keys(json.loads(done.stdout), documented)
    assert found == documented


def test_quickstart_and_readme_have_commands() -> None:
    assert _commands(ROOT / "README.md")
    assert _commands(ROOT / "docs" / "quickstart.md")


def test_every_command_is_documented(run: Run) -> None:
    commands = set(re.findall(r"^│ ([a-z][a-z-]*(?: [a-z-]+)?)  ", run("--help").stdout, re.M))
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert commands == set(re.findall(r"^## fastcar (.*)$", page, re.M))


def test_the_help_names_every_kind_of_model() -> None:
    assert {*BUNDLED, "vila-u-7b", "ivideogpt-...", "cosmos-predict1-..."} <= {*re.sub("[(),;]", "", MODELS).split()}


def test_tables_of_options_and_keys_are_those_of_the_program() -> None:
    for path, text in runpy.run_path(str(ROOT / "docs" / "tables.py"))["pages"]().items():
        assert path.read_text(encoding="utf-8") == text, "python docs/tables.py writes them"


def test_the_reading_path_of_a_token_has_at_most_1500_lines() -> None:
    path = (ROOT / "docs" / "life-of-a-token.md").read_text(encoding="utf-8").split("\n\n")[1]
    assert "at most 1,500 lines" in path
    lines = {}
    for name, part in re.findall(r"`([\w/]+\.py)`(?: \(`(\w+)`\))?", path):
        source = (ROOT / "src" / "fastcar_cli" / name).read_text(encoding="utf-8")
        tree, kinds = ast.walk(ast.parse(source)), (ast.FunctionDef, ast.ClassDef)
        parts = [n for n in tree if isinstance(n, kinds) and n.name == part]
        lines[name] = sum((n.end_lineno or 0) - n.lineno + 1 for n in parts) if part else source.count("\n")
    assert len(lines) == 9 and min(lines.values()) > 0
    assert sum(lines.values()) <= 1500, lines


def test_the_files_of_a_token_s_life_define_the_names_that_the_page_finds_there() -> None:
    page = (ROOT / "docs" / "life-of-a-token.md").read_text(encoding="utf-8")
    product = ROOT / "src" / "fastcar_cli"
    folders = (product, product / "kernels" / "native" / "source", ROOT)
    for name in re.findall(r"`([\w/]+\.(?:py|h))`", page):
        assert any((folder / name).is_file() for folder in folders), name
    pairs = re.findall(r"`(?:\w+\.)?(\w+)`(?: in|,? \()\s*`([\w/]+\.(?:py|h))`", page)
    assert len(pairs) > 20
    for name, file in pairs:
        source = (product / file).read_text(encoding="utf-8")
        assert re.search(rf"^(?: *(?:def|class)|(?:inline )?void) {name}\b", source, re.M), f"{name} in {file}"


def test_the_defaults_of_a_token_s_life_are_those_of_a_run() -> None:
    page = (ROOT / "docs" / "life-of-a-token.md").read_text(encoding="utf-8")
    pipe = VideoPipeline.from_pretrained("table", device="cpu")
    rows = re.findall(r"^\| (`[a-z].*?) \| (.*?) \|", page, re.M)
    documented = {key: value for keys, values in rows for key, value in zip(*map(_listed, (keys, values)), strict=True)}
    assert len(documented) == 10
    assert documented.pop("runtime.threads") == "2"
    for key, value in documented.items():
        own = attrgetter(key)(pipe.resolved)
        assert value == ("off" if own is None else f"{own:g}" if isinstance(own, float) else str(own)), key


def _listed(cell: str) -> list[str]:
    return cell.replace("`", "").split(", ")


def test_every_preset_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in page for name in presets())


def _anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", [*PAGES, *RECORDS], ids=lambda p: f"{p.parent.name}/{p.name}")
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            linked = page.parent / name if name else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(linked), f"{page.name}: {target}"
