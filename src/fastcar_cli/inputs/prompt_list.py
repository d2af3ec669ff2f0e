"""Files of prompts: one a line, or JSON as VBench has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from fastcar_cli.errors import RequestError, Text
from fastcar_cli.system.files import read_text
from fastcar_cli.system.plain_data import parse_json


class Listed(NamedTuple):
    """The prompts of a file by their number, what it numbers, and how many entries repeat a prompt before them."""

    prompts: dict[int, str]
    unit: str
    repeated: int = 0


def prompts_in(file: Path, where: Text) -> Listed:
    """The prompts of a text file, one a line, without empty lines and those that begin with #, or of JSON.

    A .json file holds a list, a .jsonl file an entry a line: texts, or objects with "prompt_en" (as VBench has them)
    or "prompt"; a repeated one counts once there. Raises RequestError that begins with `where`.
    """
    text = read_text(file, where, "utf-8-sig")
    numbered = ((number, line.strip()) for number, line in enumerate(text.split("\n"), 1))
    lines = {number: line for number, line in numbered if line and not line.startswith("#")}
    if file.suffix.lower() in (".json", ".jsonl"):
        try:
            # JSON that comes through a pipe has no suffix of its own.
            by_line = file.suffix.lower() == ".jsonl" or (len(lines) > 1 and all(map(_is_json, lines.values())))
            entries = [parse_json(line) for line in lines.values()] if by_line else parse_json(text)
        except ValueError as e:
            raise RequestError(f"is not valid JSON: {e}", where=where) from None
        if not isinstance(entries, list):
            raise RequestError(f"the top level is a {type(entries).__name__}, needed: a list", where=where)
        texts = [_text(entry, i, where) for i, entry in enumerate(entries)]
        single = [*dict.fromkeys(texts)]
        listed = Listed(dict(enumerate(single, 1)), "prompt", len(texts) - len(single))
    else:
        listed = Listed(lines, "line")
        if any(_is_json(part) for part in (text, *[*lines.values()][:1])):
            raise RequestError("holds JSON", where=where, hint="name the file .json, or .jsonl with an entry a line")
    if not listed.prompts:
        raise RequestError("holds no prompt", where=where, hint="one prompt a line; # begins a comment")
    return listed


def _text(entry: Any, number: int, where: Text) -> str:
    value = entry.get("prompt_en", entry.get("prompt")) if isinstance(entry, dict) else entry
    if not isinstance(value, str) or not value.strip():
        raise RequestError(f"entry {number} has no text under 'prompt_en' or 'prompt'", where=where)
    return value.strip()


def _is_json(text: str) -> bool:
    try:
        return text.lstrip()[:1] in ("[", "{") and bool(parse_json(text))
    except ValueError:
        return False
