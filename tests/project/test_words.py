"""Words that docs, messages and comments do without, and what to write instead."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

BANNED = {
    r"(?<!\.)\b(told|tells?|telling)\b": "say, report, show, print, distinguish",
    r"\b(go|goes|going|went|gone)\s+on\b": "resume, continue, predict",
    # What "stands for" something or "stands still" is plain English.
    r"\b(stands?|stood)\b(?!\s+(for|still)\b)": "is, lies, is listed",
    r"\basked\s+for\b": "requested, wanted, or name who requires it",
    r"\bas\s+it\s+was\s+asked\b": "as requested",
    r"\bin\s+the\s+place\s+of\b": "instead of, for",
    r"\b(am|is|are|was|were|be|been|being)\s+handed\b": "gets, receives",
    r"\breckon(s|ed|ing)?\b": "estimate, compute, extrapolate",
    r"\bby\s+the\s+way\b": "leave it out",
    r"\bat\s+hand\b": "available, here",
}
PLACES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "Dockerfile", "pyproject.toml",
          "hatch_build.py", ".ci", "configs", "docs", "examples", "src", "tests")  # fmt: skip
SUFFIXES = {"", ".md", ".py", ".cpp", ".h", ".sv", ".svh", ".js", ".html", ".css", ".yaml", ".sh", ".toml", ".cff",
            ".ipynb"}  # fmt: skip
CAPTIONS = {"words.yaml", "lexicon.py", "captions.py"}
"""Words of the worlds' captions, which people may use."""


def _findings(path: Path) -> Iterator[str]:
    # Names of tests and functions are words with underscores between them.
    text = path.read_text(encoding="utf-8").replace("_", " ")
    for pattern, instead in BANNED.items():
        for match in re.finditer(pattern, text, re.I):
            line = text.count("\n", 0, match.start()) + 1
            yield f"{path.relative_to(ROOT)}:{line}: {match[0]!r}; write: {instead}"


def _written_by_people(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if not any(part.startswith(".") for part in p.relative_to(folder).parts)]


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_no_banned_word(place: str) -> None:
    # Hidden folders inside are what tools wrote: a test beside this one may leave hypothesis's own.
    files = [ROOT / place, *_written_by_people(ROOT / place)]
    unread = {*CAPTIONS, Path(__file__).name}
    texts = [p for p in files if p.is_file() and p.suffix in SUFFIXES and p.name not in unread]
    assert texts
    findings = [finding for path in texts for finding in _findings(path)]
    assert not findings, "\n".join(findings)


@pytest.mark.parametrize(
    "text",
    ["The report tells.", "a sweep goes\non", "what it stands on", "as asked for", "reckoned from 40"],
)
def test_banned_words_are_noticed(text: str) -> None:
    assert any(re.search(pattern, text, re.I) for pattern in BANNED)


@pytest.mark.parametrize("text", ["standard", "understand", "a box stands still", "T stands for frames"])
def test_plain_words_pass(text: str) -> None:
    assert not any(re.search(pattern, text, re.I) for pattern in BANNED)
