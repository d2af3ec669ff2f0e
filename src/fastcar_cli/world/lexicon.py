"""The words of the world (words.yaml): what the bundled model's text tokenizer knows, and what captions say.

Every attribute value has one token and several ways to say it. Words that carry no attribute
("a", "moves", "across") are known and left out; anything else is unknown and reported.
"""

from __future__ import annotations

from importlib import resources

import yaml

_WORDS = yaml.safe_load((resources.files("fastcar_cli.world") / "words.yaml").read_text(encoding="utf-8"))


def _ways(of: str) -> dict[str, tuple[str, ...]]:
    """The ways to say each value, in their order."""
    return {value: tuple(ways.split(", ")) for value, ways in _WORDS[of].items()}


PHRASES, MOVES, PLACES = _ways("phrases"), _ways("moves"), _ways("places")
FILLERS = frozenset(_WORDS["fillers"].split())
"""Known words that say nothing the model can draw; they get no token."""

SPECIALS = ("<pad>", "<bos>", "<vi_start>")
VOCABULARY: tuple[str, ...] = (*SPECIALS, *PHRASES)
"""Token strings by id: specials first, then one token for every attribute value."""
