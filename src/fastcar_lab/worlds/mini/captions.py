"""The words of the world (words.yaml): what the bundled model's text tokenizer knows, and captions that say them.

Every attribute value has one token and several ways to say it. Words that carry no attribute ("a", "moves", "across")
are known and left out; anything else is unknown and reported. Captions come in many phrasings, for training and for
measuring fidelity.
"""

from __future__ import annotations

import random
from importlib import resources

import yaml

from fastcar_lab.worlds.mini.scene import Scene

_WORDS = yaml.safe_load((resources.files("fastcar_lab.worlds.mini") / "words.yaml").read_text(encoding="utf-8"))


def _ways(of: str) -> dict[str, tuple[str, ...]]:
    """The ways to say each value, in their order."""
    return {value: tuple(ways.split(", ")) for value, ways in _WORDS[of].items()}


PHRASES, MOVES, PLACES = _ways("phrases"), _ways("moves"), _ways("places")
FILLERS = frozenset(_WORDS["fillers"].split())  # known words that say nothing the model can draw; they get no token

SPECIALS = ("<pad>", "<bos>", "<vi_start>")
VOCABULARY: tuple[str, ...] = (*SPECIALS, *PHRASES)
"""Token strings by id: specials first, then one token for every attribute value."""


def caption(scene: Scene, rng: random.Random, *, drop: float = 0.0) -> str:
    """One of many ways to describe a scene; each attribute is left out with probability `drop`."""
    shape = rng.choice(PHRASES[scene.shape][:5])
    size = "" if rng.random() < drop else rng.choice(PHRASES[scene.size][:4]) + " "
    color = "" if rng.random() < drop else rng.choice(PHRASES[scene.color][:2]) + " "
    thing = "object" if rng.random() < drop else shape
    move = "" if rng.random() < drop else rng.choice(MOVES[scene.motion])
    where = "" if rng.random() < drop else rng.choice(PLACES[scene.background])
    noun = f"{rng.choice(('a', 'the', 'one'))} {size}{color}{thing}"
    orders = (
        f"{noun} {move} {where}",
        f"{noun} {move} {where}",
        f"{where} {noun} {move}",
        f"{noun} {where} {move}",
        f"a video of {noun} {move} {where}",
        f"{color}{size}{thing} {move} {where}",
    )
    return " ".join(rng.choice(orders).split())
