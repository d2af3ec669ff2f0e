"""Prompts of a closed vocabulary to token ids: each known phrase is one token."""

from __future__ import annotations

import difflib
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from typing import Annotated, Any

from pydantic import Field
from pydantic.dataclasses import dataclass

from fastcar_cli.errors import RequestError
from fastcar_cli.inputs.prompt import OnProgress, Prompt, Reading, text_of
from fastcar_cli.system.plain_data import WHOLE

_AFTER_IN = ("from", "and", "then", "while")
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)?")
OUT_OF_PLACE = "~"
_OBJECT_GROUPS = 3
"""Number of groups that describe the object (size, color, shape); motion and background follow them."""


@dataclass(eq=False, config=WHOLE)
class PhraseTokenizer:
    """Closed vocabulary: each known phrase is one token, fillers are skipped, the rest is unknown. Ids are `<bos>`,
    padding up to the fixed length, the tokens, `<vi_start>`.
    """

    vocabulary: Sequence[str]
    phrases: Mapping[str, Sequence[str]]
    fillers: Sequence[str]
    length: Annotated[int, Field(strict=True, ge=2, le=4096)]
    groups: Mapping[str, Annotated[Sequence[str], Field(min_length=1)]]

    def __post_init__(self) -> None:
        self._check([*self.phrases, *(token for tokens in self.groups.values() for token in tokens)])
        self._ids = {token: i for i, token in enumerate(self.vocabulary)}
        self._phrases = {tuple(_words(p)): token for token, phrases in self.phrases.items() for p in phrases}
        for token in self.groups.get("shape", ()):
            for phrase in self.phrases.get(token, ()):
                self._phrases.setdefault(tuple(_words(f"{phrase}{'es' if phrase[-1] in 'sx' else 's'}")), token)
        self._longest = max(map(len, self._phrases))
        self._single = sorted({w for p in self._phrases for w in p}.difference(self.fillers))
        self._drawable = [t for t in self.vocabulary if t in self.phrases]
        self._attributes = {token for tokens in self.groups.values() for token in tokens}
        # `notices` and the decode read the same prompts.
        self._read = lru_cache(maxsize=1024)(self.parse)
        self._alone = [p[0] for p in sorted(self._phrases) if len(p) == 1]

    def _check(self, tokens: Iterable[str]) -> None:
        known = {*self.vocabulary}
        if (other := next((token for token in tokens if token not in known), None)) is not None:
            raise ValueError(f"{other!r} is not in the vocabulary")

    def to_dict(self) -> dict[str, Any]:
        """The constructor's arguments as plain data."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def read(self, prompt: Prompt, on_progress: OnProgress | None = None) -> Reading:
        """Token ids of a prompt; unknown words are listed, not guessed. Raises RequestError if too long."""
        return self._read(text_of(prompt))

    def parse(self, text: str) -> Reading:
        """Like `read`, which caches the result."""
        words = self._arranged(_words(text))
        tokens, unknown, i = list[str](), list[str](), 0
        while i < len(words):
            for n in range(min(self._longest, len(words) - i), 0, -1):
                token = self._phrases.get(tuple(words[i : i + n]))
                if token is not None and self._ends(words, i + n):
                    tokens.append(token)
                    i += n
                    break
            else:
                word = words[i].rstrip(OUT_OF_PLACE)
                if words[i] not in self.fillers and word not in unknown:
                    unknown.append(word)
                i += 1
        room = self.length - 2
        if len(tokens) > room:
            raise RequestError(f"the prompt is too long: {len(tokens)} known words", allowed=f"at most {room}")
        return Reading(self.ids_of(tokens), tuple(tokens), tuple(unknown))

    def _arranged(self, words: list[str]) -> list[str]:
        """Reorder the words for parsing; a word without meaning at its position gets the suffix OUT_OF_PLACE."""
        return words

    def _ends(self, words: Sequence[str], end: int) -> bool:
        """Whether a phrase may end before `words[end]`: "rolls in" may before "slowly", not before "front of"."""
        if words[end - 1] != "in" or end == len(words) or words[end] in _AFTER_IN:
            return True
        nexts = (self._phrases.get(tuple(words[end : end + n])) for n in range(1, self._longest + 1))
        return any(token is not None and token not in self._attributes for token in nexts)

    def complete(self, reading: Reading, seed: int) -> Reading:
        """Choose a value with the seed for each attribute that the prompt leaves open, unless the prompt has no token.
        Attributes of the object precede the prompt's tokens; motion and background follow them.
        """
        rng = random.Random(seed)
        before, after = list[str](), list[str]()
        for index, values in enumerate(self.groups.values()):
            choice = rng.choice(values)
            if not any(t in values for t in reading.tokens):
                (before if index < _OBJECT_GROUPS else after).append(choice)
        tokens = (*before, *reading.tokens, *after)
        if not reading.tokens or len(tokens) > self.length - 2:
            return reading
        return Reading(self.ids_of(tokens), tokens, reading.unknown, (*before, *after))

    def blank(self) -> tuple[int, ...]:
        """Ids of the blank prompt (the unconditional row)."""
        return self.ids_of(())

    def ids_of(self, tokens: Sequence[str]) -> tuple[int, ...]:
        """Ids of a prompt of these tokens. Raises KeyError for tokens outside the vocabulary."""
        padding = ["<pad>"] * (self.length - 2 - len(tokens))
        return tuple(self._ids[t] for t in ("<bos>", *padding, *tokens, "<vi_start>"))

    def notices(self, prompt: Prompt, model: str) -> list[str]:
        """Notes on unknown words and on attributes named twice. Raises RequestError if no word is known."""
        prompt = text_of(prompt, f"the model {model!r}")
        reading = self.read(prompt)
        if not reading.tokens:
            hint = f"name one of: {', '.join(self._drawable)}"
            raise RequestError(f"the model {model!r} knows no word of {prompt!r}", hint=hint)
        notices = []
        for word in reading.unknown:
            if word in self._single:
                notices.append(f"the model {model!r} does not understand {word!r} here and ignores it")
                continue
            words = difflib.get_close_matches(word, self._alone, cutoff=0.75)
            near = f"; similar known words: {', '.join(words)}" if words else ""
            notices.append(f"the model {model!r} does not know {word!r} and ignores it{near}")
        shapes = self.groups.get("shape", ())
        if shapes and reading.unknown and not {*shapes} & {*reading.tokens}:
            notices.append(f"the prompt names none of {', '.join(shapes)}; the seed chooses what {model!r} draws")
        for name, tokens in self.groups.items():
            values = [t for t in tokens if t in reading.tokens]
            if len(values) > 1:
                named = ", ".join(values)
                notices.append(f"the model {model!r} draws one object with one {name}; the prompt names {named}")
        return notices

    def conditions(self, prompts: Sequence[Prompt], frames: int) -> None:
        """See `PromptReader`: there are no conditions besides the text."""


def _words(text: str) -> list[str]:
    return [w.replace("’", "'") for w in _WORD.findall(text.lower())]
