"""What a package index shows of the project."""

from __future__ import annotations

import re
from typing import Any

import pytest
from support.paths import ROOT


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 reads no TOML")
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8")))


def _described(project: dict[str, Any]) -> str:
    """README with the fragments and substitutions of pyproject.toml, as the build makes the long description."""
    hook = project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]
    parts = [f.get("text") or (ROOT / f["path"]).read_text(encoding="utf-8") for f in hook["fragments"]]
    text = "".join(parts)
    for substitution in hook["substitutions"]:
        text = re.sub(substitution["pattern"], substitution["replacement"], text)
    return text


def test_links_and_pictures_of_the_description_need_no_repository(project: dict[str, Any]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]*)\)", _described(project))
    assert {*targets} == {t for t in re.findall(r"\]\(([^)]*)\)", readme) if t.startswith("https://")}
    assert targets


def test_the_description_keeps_the_words_of_the_readme(project: dict[str, Any]) -> None:
    text = _described(project)
    assert text.startswith("# fastcar\n")
    for words in (
        "one forward pass verifies several guesses",
        "quickstart, many videos",
        "## How fast",
        "| bundled |",
    ):
        assert words.lower() in text.lower(), words


def test_addresses_of_the_project_are_whole(project: dict[str, Any]) -> None:
    assert all(url.startswith("https://") for url in project["project"]["urls"].values())
