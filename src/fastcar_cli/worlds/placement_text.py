"""Prompts of several things to token ids: what a prompt leaves open of each is drawn from the seed, its place too."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastcar_cli.prompt import Prompt, Reading, text_of
from fastcar_cli.worlds.phrases import PhraseTokenizer

Placements = Mapping[str, Sequence[Sequence[Sequence[int]]]]
"""Placements by signature: of each the ids of the tokens behind every thing, and last of those behind all."""


@dataclass(eq=False)
class PlacementTokenizer(PhraseTokenizer):
    """Closed vocabulary of things, each of which has looks, and places that no word stands for.

    `things` are the tokens that name a thing, `looks` what is said before each of them, `groups` what is said of the
    whole, of which `usual` values go without saying. `placements` are kept for each signature, see `signature`.
    """

    things: Sequence[str]
    looks: Mapping[str, Sequence[str]]
    usual: dict[str, str]
    placements: Placements

    def __post_init__(self) -> None:
        super().__post_init__()
        self.usual = dict(self.usual)
        looks = [token for tokens in self.looks.values() for token in tokens]
        thing, look = (
            "|".join(sorted((p for token in tokens for p in self.phrases[token]), key=len, reverse=True))
            for tokens in (self.things, looks)
        )
        behind = rf"\b({thing}) (?:(?:that|which) )?(?:is|are) ((?:{look})(?: (?:and )?(?:{look}))*)\b"
        self._said_behind = re.compile(behind)
        self._deeds = set(self._drawable).difference(self.things, looks, self._attributes)

    def _arranged(self, words: list[str]) -> list[str]:
        """Looks said behind a thing before it: "a ball that is red and small" as "a red and small ball"."""
        return self._said_behind.sub(r"\2 \1", " ".join(words)).split()

    def to_dict(self) -> dict[str, Any]:
        """What it is made of, as plain data: its own arguments, of which files call placements layouts."""
        data = super().to_dict()
        return data | {"layouts": data.pop("placements")}

    def signature(self, tokens: Sequence[str]) -> str:
        """What a prompt says but for looks: deeds and relations, `thing` for each thing, the first in front."""
        said = ["thing" if t in self.things else t for t in tokens if t in self.things or t in self._deeds]
        first = said.index("thing") if "thing" in said else 0
        return " ".join(said[first:] + said[:first])

    def completed(
        self,
        tokens: Sequence[str],
        looks: Sequence[Mapping[str, str]],
        around: Mapping[str, str],
        placement: Sequence[Sequence[str]],
    ) -> list[str]:
        """The tokens with `looks` of each thing and what is `around` where they don't say it, and with a placement.

        Looks come before their thing in one order, places behind it, the camera's tokens last.
        An empty placement is none.
        """
        out: list[str] = []
        said: list[str] = []
        known, places = iter(looks), iter(placement)
        for token in tokens:
            if any(token in values for values in self.looks.values()):
                said.append(token)
            elif token in self.things:
                look = next(known)
                out += [next((t for t in said if t in values), look[name]) for name, values in self.looks.items()]
                out += [token, *next(places, ())]
                said = []
            else:
                out.append(token)
        out += [around[name] for name, values in self.groups.items() if not any(t in values for t in tokens)]
        return [*out, *next(places, ())]

    def complete(self, reading: Reading, seed: int) -> Reading:
        """The reading with looks, surroundings and a placement drawn from the seed where the prompt leaves them open.

        A prompt of which no placement is kept has none: then the model places what it draws. One without any token, or
        with too many, stays as it is.
        """
        rng = random.Random(seed)
        count = sum(t in self.things for t in reading.tokens)
        looks = [{name: rng.choice(values) for name, values in self.looks.items()} for _ in range(count)]
        around = {name: rng.choice(values) for name, values in self.groups.items()} | self.usual
        rows = self.placements.get(self.signature(reading.tokens))
        placement = [[self.vocabulary[i] for i in ids] for ids in rng.choice(rows)] if rows else ()
        tokens = self.completed(reading.tokens, looks, around, placement)
        if not reading.tokens or len(tokens) > self.length - 2:
            return reading
        drawn = Counter(tokens) - Counter(reading.tokens)
        return Reading(self.ids_of(tokens), tuple(tokens), reading.unknown, tuple(drawn.elements()))

    def notices(self, prompt: Prompt, model: str) -> list[str]:
        """Words the model does not know, and whether it has to place things by itself. Raises as its base does."""
        notices = super().notices(prompt, model)
        text = text_of(prompt, f"the model {model!r}")
        if self.placements and self.signature(self.read(text).tokens) not in self.placements:
            notices.append(f"the model {model!r} knows no places for what {text!r} says and draws it where it likes")
        return notices


def phrase_tokenizer(text: Mapping[str, Any]) -> PhraseTokenizer:
    """The tokenizer of what `to_dict` gives. Raises KeyError, TypeError or ValueError for anything else."""
    if "layouts" not in text:
        return PhraseTokenizer(**text)
    return PlacementTokenizer(**{"placements" if key == "layouts" else key: value for key, value in text.items()})
