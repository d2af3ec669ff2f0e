"""The placements that the seed chooses from, kept for every story that captions describe.

`fastcar lab placements FILE` writes them; the package brings the file as `placements.json`.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fastcar_lab.worlds.table.captions import caption
from fastcar_lab.worlds.table.lexicon import VOCABULARY, tokenizer_with
from fastcar_lab.worlds.table.placement import of_scene
from fastcar_lab.worlds.table.scene import SIZES, Scene
from fastcar_lab.worlds.table.stories import draw_scene, happens

ROWS = 6  # placements kept for all captions of one signature
_WAYS = frozenset({"left", "right", "front", "back", "slow", "fast"})
_DEEDS = _WAYS | {"moves", "still"}


def _of_any_size(scene: Scene) -> bool:
    """Whether the story happens whatever the sizes of its things, as a prompt may say them."""
    for sizes in itertools.product(SIZES, repeat=len(scene.things)):
        things = tuple(replace(t, size=size) for t, size in zip(scene.things, sizes, strict=True))
        if not happens(replace(scene, things=things)):
            return False
    return True


def _ways_to_say(tokens: Sequence[str], scene: Scene) -> list[list[str]]:
    """A caption's tokens; without directions; and, of things that rest or meet, without more than that."""
    shorter = [[t for t in tokens if t not in _WAYS]]
    if scene.story.rstrip("+") in ("hit", "chain", "front", "behind") or not any(t.moves for t in scene.things):
        shorter.append([t for t in tokens if t not in _DEEDS])
    return [list(tokens), *shorter]


def draw_placements(scenes: int, seed: int = 0) -> dict[str, list[list[list[int]]]]:
    """Token ids of placements by signature, of so many random scenes."""
    rng = random.Random(seed)
    words = tokenizer_with({})
    ids = {token: i for i, token in enumerate(VOCABULARY)}
    by_signature: dict[str, list[list[list[int]]]] = {}
    for _ in range(scenes):
        scene = draw_scene(rng)
        tokens = words.read(caption(scene, rng)).tokens
        names = dict.fromkeys(words.signature(said) for said in _ways_to_say(tokens, scene))
        open_ones = [name for name in names if len(by_signature.get(name, ())) < ROWS]
        if not open_ones or not _of_any_size(scene):
            continue
        for name in open_ones:
            by_signature.setdefault(name, []).append([[ids[t] for t in part] for part in of_scene(scene)])
    return dict(sorted(by_signature.items()))


def write(file: Path) -> None:
    """Write those that the package brings as `placements.json`."""
    text = json.dumps(draw_placements(40_000), separators=(",", ":"))
    file.write_text(text.replace(']],"', ']],\n"') + "\n", encoding="utf-8")
