"""A run reads the model's configuration and every prompt once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.processes import Run

from fastcar_cli.inputs.worlds.phrases import PhraseTokenizer

opened: list[str] = []
"""Files of this process, while a test watches."""
watched = False


def _opened(event: str, given: tuple[Any, ...]) -> None:
    if watched and event == "open":
        opened.append(str(given[0]))


def test_configuration_and_prompt_are_read_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = PhraseTokenizer.parse

    def counted(self: PhraseTokenizer, text: str) -> Any:
        parsed.append(text)
        return parse(self, text)

    monkeypatch.setattr(PhraseTokenizer, "parse", counted)
    sys.addaudithook(_opened)
    monkeypatch.setattr(sys.modules[__name__], "watched", True)
    done = run("generate", "a red ball", "a blue cube", "--model", "table", "--frames", "1", "-o", "videos")
    monkeypatch.undo()
    assert done.returncode == 0, done.stderr
    # Parsed once; the identity of the weights hashes every file.
    files = [Path(name) for name in opened]
    assert len([f for f in files if f.name == "config.json" and f.parent.name == "table"]) == 2
    assert sorted(parsed) == ["a blue cube", "a red ball"]
