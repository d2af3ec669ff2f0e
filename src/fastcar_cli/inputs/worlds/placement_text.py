"""Prompts with several objects to token ids; the seed chooses attributes and positions that a prompt leaves open."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import field
from difflib import SequenceMatcher
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic.dataclasses import dataclass

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import Prompt, Reading, text_of
from fastcar_cli.inputs.worlds.phrases import OUT_OF_PLACE, PhraseTokenizer
from fastcar_cli.system.plain_data import WHOLE, Count, checked

Placements = dict[str, list[list[list[Count]]]]
"""Placements by signature: a placement lists the ids of the tokens after each object, then those at the end."""

_SAID_OTHERWISE = {
    r"(?:camera )?pan(?:s|ning)? (?:(?:slowly|to|the) )*(left|right)": r"camera pans \1",
    # Not "towards each other", which says more than that two objects move.
    r"(hit|hitting|strike|striking|with|into|pass|passing) (?:each other|one another)": r"\1",
    r"on marble": f"on marble{OUT_OF_PLACE}",  # the ground, not a marble that rolls
    r"(?:collid(?:es?|ing)|crash(?:es)?|bumps?)(?! with| into)": "hits",
}
"""Phrases that people write, and the vocabulary's words for them."""

_COUNTS = {"two": 2, "2": 2, "pair of": 2, "couple of": 2, "three": 3, "3": 3}


@dataclass(eq=False, config=WHOLE)
class PlacementTokenizer(PhraseTokenizer):
    """Closed vocabulary of objects with attributes, and of placements, which have no words.

    things: tokens that name an object. looks: by attribute, the tokens that describe an object and precede it. groups:
    by attribute, the tokens that describe the whole scene; usual: their default values. layouts: placements by
    `signature`. only: for a token of a placement, the objects that may have it (a ball has no rotation).
    """

    things: Sequence[str]
    looks: Mapping[str, Sequence[str]]
    usual: dict[str, str]
    layouts: Placements
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        values = (token for named in (self.looks, self.only) for tokens in named.values() for token in tokens)
        self._check([*self.things, *self.usual.values(), *self.only, *values])
        most = max((i for rows in self.layouts.values() for row in rows for ids in row for i in ids), default=0)
        if most >= len(self.vocabulary):
            raise ValueError(f"layouts: token id {most}, but the vocabulary has {len(self.vocabulary)} tokens")
        looks = [token for tokens in self.looks.values() for token in tokens]
        thing, look, ground, motion = (
            "|".join(sorted((p for t in tokens for p in self.phrases.get(t, ())), key=len, reverse=True))
            for tokens in (self.things, looks, self.groups["ground"], ("moves", "bounces", "turns"))
        )
        after = rf"\b({thing}) (?:(?:that|which) )?(?:is|are) ((?:{look})(?: (?:and )?(?:{look}))*)\b"
        self._looks_after = re.compile(after)
        self._several = re.compile(rf"\b({thing})e?s\b")
        self._counted = re.compile(rf"\b({'|'.join(_COUNTS)}) ((?:(?:{look}) (?:and )?)*(?:{thing}))\b")
        # In "a gray cube" the word names a colour, not the ground.
        self._colour = re.compile(rf"(?<!on )(?<!onto )(?<!over )\b({ground})(?= (?:(?:{look}) )*(?:{thing})\b)")
        self._denied = re.compile(rf"\b(?:(?:does|do|is|are) not|(?:does|do|is|are)n't|never) (?:{motion})\b")
        self._most = max((k.split().count("thing") for k in self.layouts), default=0)
        self._scene = lru_cache(maxsize=1024)(self._nearest)
        self._deeds = set(self._drawable).difference(self.things, looks, self._attributes)

    def _arranged(self, words: list[str]) -> list[str]:
        """Put attributes before their object ("a red ball" for "a ball that is red"), and list objects one by one."""
        text = " ".join(words)
        for said, meant in _SAID_OTHERWISE.items():
            text = re.sub(rf"\b{said}\b", meant, text)
        text = self._several.sub(r"\1", text)
        text = self._looks_after.sub(r"\2 \1", self._denied.sub("does not move", text))
        text = self._counted.sub(lambda m: " ".join([m[2]] * _COUNTS[m[1]]), text)
        return self._colour.sub(lambda m: " ".join(w + OUT_OF_PLACE for w in m[1].split()), text).split()

    def signature(self, tokens: Sequence[str]) -> str:
        """A prompt's actions and relations with `thing` for each object, rotated so that an object comes first."""
        said = ["thing" if t in self.things else t for t in tokens if t in self.things or t in self._deeds]
        first = said.index("thing") if "thing" in said else 0
        return " ".join(said[first:] + said[:first])

    def _nearest(self, signature: str) -> list[str] | None:
        """The words of the closest signature with a placement; None if it has its own or none has as many objects."""
        wanted = signature.split()
        if signature in self.layouts or "thing" not in wanted:
            return None
        near = [p for p in map(str.split, self.layouts) if p.count("thing") == wanted.count("thing")]

        def likeness(words: list[str]) -> tuple[float, float]:
            said, here = Counter(wanted), Counter(words)
            # An object that stands still changes the scene least.
            differs = sum(0.5 if word == "still" else 1 for word in ((said - here) + (here - said)).elements())
            return -differs, SequenceMatcher(None, wanted, words).ratio()

        return max(near, key=likeness, default=None)

    def _planned(self, tokens: Sequence[str]) -> tuple[str, ...]:
        """The tokens with the actions of the closest scene that has a placement, in that scene's order."""
        scene = self._scene(self.signature(tokens))
        if scene is None:
            return tuple(tokens)

        things: list[list[str]] = [[]]
        for token in tokens:
            if token in self.things or any(token in values for values in self.looks.values()):
                things[-1].append(token)
                things += [[]] if token in self.things else []
        parts = iter(things)
        around = [t for t in tokens if any(t in values for values in self.groups.values())]
        deeds = [next(parts) if word == "thing" else [word] for word in scene]
        return (*(token for part in deeds for token in part), *around)

    def completed(
        self,
        tokens: Sequence[str],
        looks: Sequence[Mapping[str, str]],
        around: Mapping[str, str],
        placement: Sequence[Sequence[str]],
    ) -> list[str]:
        """Add what the tokens lack: `looks` before each object, its placement after it, and the scene `around`."""
        out: list[str] = []
        said: list[str] = []
        known, places = iter(looks), iter(placement)
        for token in tokens:
            if any(token in values for values in self.looks.values()):
                said.append(token)
            elif token in self.things:
                look = next(known)
                out += [next((t for t in said if t in values), look[name]) for name, values in self.looks.items()]
                out += [token, *(t for t in next(places, ()) if token in self.only.get(t, (token,)))]
                said = []
            else:
                out.append(token)
        out += [around[name] for name, values in self.groups.items() if not any(t in values for t in tokens)]
        return [*out, *next(places, ())]

    def complete(self, reading: Reading, seed: int) -> Reading:
        """Choose missing attributes, scene and placement with the seed. A prompt without a stored placement is replaced
        by the closest prompt that has one. A prompt without known tokens, or with too many, is returned unchanged.
        """
        rng = random.Random(seed)
        said = self._planned(reading.tokens)
        count = sum(t in self.things for t in said)
        looks = [{name: rng.choice(values) for name, values in self.looks.items()} for _ in range(count)]
        around = {name: rng.choice(values) for name, values in self.groups.items()} | self.usual
        rows = self.layouts.get(self.signature(said))
        placement = [[self.vocabulary[i] for i in ids] for ids in rng.choice(rows)] if rows else ()
        tokens = self.completed(said, looks, around, placement)
        if not reading.tokens or len(tokens) > self.length - 2:
            return reading
        drawn = Counter(tokens) - Counter(reading.tokens)
        return Reading(self.ids_of(tokens), tuple(tokens), reading.unknown, tuple(drawn.elements()))

    def notices(self, prompt: Prompt, model: str) -> list[str]:
        """Like the base class, and a note on a replaced scene. Raises RequestError for no or too many objects."""
        notices = super().notices(prompt, model)
        text = text_of(prompt, f"the model {model!r}")
        reading = self.read(text)
        tokens = reading.tokens
        count = sum(t in self.things for t in tokens)
        if self.layouts and not 0 < count <= self._most:
            said = f"{count} objects" if count else "no object"
            unknown = f"unknown words: {', '.join(reading.unknown)}; " if reading.unknown else ""
            said = f"the prompt {text!r} names {said}, but the model {model!r} draws 1 to {self._most}"
            raise RequestError(said, hint=f"{unknown}known objects: {', '.join(self.things)}")
        if (said := " ".join(self._planned(tokens))) != " ".join(tokens):
            unplaced = " ".join(tokens)
            notices.append(f"the model {model!r} can't place the objects of {unplaced!r} and draws {said!r} instead")
        after = [*tokens[max(i for i, t in enumerate(tokens) if t in self.things) + 1 :]] if count else []
        lost = [t for t in after if any(t in values for values in self.looks.values())]
        if lost:
            notices.append(f"the model {model!r} ignores {', '.join(lost)}, because no object follows in the prompt")
        return notices


def phrase_tokenizer(text: Mapping[str, Any], file: Path | str = "text") -> PhraseTokenizer:
    """The tokenizer from the data of `to_dict`. Raises RequestError, KeyError or TypeError."""
    return checked(PlacementTokenizer if "layouts" in text else PhraseTokenizer, text, file, "text")
