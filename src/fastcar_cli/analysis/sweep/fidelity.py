"""Does the video of a cell show what its prompt says? For models that draw a synthetic world of ours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.models.text import PhraseTokenizer
from fastcar_cli.pipeline import VideoPipeline
from fastcar_cli.world import scene as mini
from fastcar_cli.world.table import scene as table
from fastcar_cli.world.table.lexicon import PHRASES as TABLE_PHRASES

Judge = Callable[[NDArray[np.uint8], Sequence[str]], dict[str, bool | None]]
"""Right or wrong for each thing that can be said, given a video [T, H, W, 3] and the tokens of a completed reading;
None for what the reading leaves open. `persists` tells whether objects stay what they are, `all_right` joins all."""


def world_of(pipe: VideoPipeline) -> str | None:
    """The bundled model, mini or table, of whose world a model speaks in frames of a size that its analyser reads."""
    tokenizer, height, width = pipe.model.tokenizer, pipe.height, pipe.width
    if not isinstance(tokenizer, PhraseTokenizer):
        return None
    if tokenizer.phrases == TABLE_PHRASES:
        return "table" if height == width == table.SIDE else None
    groups = {name: set(values) for name, values in tokenizer.groups.items()}
    known = groups == {name: set(values) for name, values in mini.ATTRIBUTES.items()}
    return "mini" if known and not height % mini.SIDE and not width % mini.SIDE else None


def unseen_captions(world: str | None, count: int, seed: int) -> list[str]:
    """Captions that training left out, of a world that `world_of` names; none of another."""
    from fastcar_cli.world import evaluate
    from fastcar_cli.world.table import evaluate as table_evaluate

    if world == "mini":
        return [text for _, text in evaluate.held_out_captions(count, seed)]
    return [text for _, text in table_evaluate.held_out_captions(count, seed)] if world == "table" else []


def judge_of(world: str) -> Judge:
    """What judges videos of a world that `world_of` names."""
    return {"mini": judge_mini, "table": judge_table}[world]


def judge_mini(video: NDArray[np.uint8], tokens: Sequence[str]) -> dict[str, bool | None]:
    """See `Judge`; an attribute named twice is left open too."""
    from fastcar_cli.world.analyser import analyse, judge

    wanted = {}
    for name, values in mini.ATTRIBUTES.items():
        named = {t for t in tokens if t in values}
        if len(named) == 1:
            wanted[name] = named.pop()
    right: dict[str, Any] = judge(analyse(video), wanted)
    found = {name: right.get(name) for name in mini.ATTRIBUTES}
    return {**found, "persists": right["persists"], "all_right": right["all"]}


def judge_table(video: NDArray[np.uint8], tokens: Sequence[str]) -> dict[str, bool | None]:
    """See `Judge`."""
    from fastcar_cli.world.table.analyser import analyse, judge
    from fastcar_cli.world.table.said import said_in

    said = said_in(tokens)
    right: dict[str, bool | None] = dict(judge(analyse(video), said))
    all_right = right.pop("all")
    for name in ("ground", "light"):
        if getattr(said, name) is None:
            right[name] = None
    return {**right, "all_right": all_right}
