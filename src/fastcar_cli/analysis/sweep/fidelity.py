"""Does the video of a cell show what its prompt says? For models that draw the synthetic world."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.models.text import PhraseTokenizer, PromptReader
from fastcar_cli.world.scene import ATTRIBUTES, SIDE


def draws_the_world(tokenizer: PromptReader, height: int, width: int) -> bool:
    """Whether a model speaks of the world's attributes and its frames are of a size that the analyser reads."""
    if not isinstance(tokenizer, PhraseTokenizer) or height % SIDE or width % SIDE:
        return False
    return {k: set(v) for k, v in tokenizer.groups.items()} == {k: set(v) for k, v in ATTRIBUTES.items()}


def fidelity_of(video: NDArray[np.uint8], tokens: list[str]) -> dict[str, bool | None]:
    """Right or wrong for each attribute, judged against a completed reading (its tokens).

    None for an attribute that the reading leaves open or names twice. `persists` is True where every frame holds
    exactly one object of one look; `all_right` joins it with every attribute that is judged.
    """
    from fastcar_cli.world.analyser import analyse, judge

    wanted = {}
    for name, values in ATTRIBUTES.items():
        named = {t for t in tokens if t in values}
        if len(named) == 1:
            wanted[name] = named.pop()
    right: dict[str, Any] = judge(analyse(video), wanted)
    found = {name: right.get(name) for name in ATTRIBUTES}
    return {**found, "persists": right["persists"], "all_right": right["all"]}
