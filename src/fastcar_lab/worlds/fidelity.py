"""Does a video show what its prompt says? For models that draw a synthetic world of ours, see `fastcar_cli.plugins`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.prompt import PromptReader
from fastcar_cli.worlds.phrases import PhraseTokenizer
from fastcar_lab.worlds.mini import scene as mini
from fastcar_lab.worlds.table import scene as table
from fastcar_lab.worlds.table.lexicon import PHRASES as TABLE_PHRASES

Judge = Callable[[NDArray[np.uint8], Sequence[str]], dict[str, bool | None]]


@dataclass(frozen=True)
class CaptionedWorld:
    """See `plugins.World`."""

    name: str
    judge: Judge

    def unseen_captions(self, count: int, seed: int) -> list[str]:
        """Captions that training left out."""
        from fastcar_lab.worlds.mini import evaluate
        from fastcar_lab.worlds.table import evaluate as table_evaluate

        if self.name == "mini":
            return [text for _, text in evaluate.held_out_captions(count, seed)]
        return [text for _, text in table_evaluate.held_out_captions(count, seed)]


def judge_mini(video: NDArray[np.uint8], tokens: Sequence[str]) -> dict[str, bool | None]:
    """See `plugins.World`; an attribute named twice is left open too."""
    from fastcar_lab.worlds.mini.analyser import analyse, judge

    wanted = {}
    for name, values in mini.ATTRIBUTES.items():
        named = {t for t in tokens if t in values}
        if len(named) == 1:
            wanted[name] = named.pop()
    right: dict[str, Any] = judge(analyse(video), wanted)
    by_name = {name: right.get(name) for name in mini.ATTRIBUTES}
    return {**by_name, "persists": right["persists"], "all_right": right["all"]}


def judge_table(video: NDArray[np.uint8], tokens: Sequence[str]) -> dict[str, bool | None]:
    """See `plugins.World`."""
    from fastcar_lab.worlds.table.analyser import analyse, judge
    from fastcar_lab.worlds.table.said import said_in

    said = said_in(tokens)
    right: dict[str, bool | None] = dict(judge(analyse(video), said))
    all_right = right.pop("all")
    for name in ("ground", "light"):
        if getattr(said, name) is None:
            right[name] = None
    return {**right, "all_right": all_right}


MINI = CaptionedWorld("mini", judge_mini)
TABLE = CaptionedWorld("table", judge_table)


def world_of(reader: PromptReader, height: int, width: int) -> CaptionedWorld | None:
    """The world of which a model speaks that reads prompts so, in frames of a size that its analyser reads."""
    if not isinstance(reader, PhraseTokenizer):
        return None
    if reader.phrases == TABLE_PHRASES:
        return TABLE if height == width == table.SIDE else None
    groups = {name: set(values) for name, values in reader.groups.items()}
    known = groups == {name: set(values) for name, values in mini.ATTRIBUTES.items()}
    return MINI if known and not height % mini.SIDE and not width % mini.SIDE else None
