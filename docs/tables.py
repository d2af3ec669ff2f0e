"""The tables of options and keys in cli.md and configuration.md, from the program itself: `python docs/tables.py`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from fastcar_cli.cli.app import app
from fastcar_cli.cli.flags import EXAMPLES
from fastcar_cli.config.run_config import settings

DOCS = Path(__file__).parent


def _put(page: str, header: list[str], rows: list[list[str]]) -> str:
    """A page with these rows in its table of this header."""
    first = f"| {' | '.join(header)} |\n"
    table = f"{first}|{'---|' * len(header)}\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return re.sub(rf"{re.escape(first)}(?:\|.*\n)*", lambda _: table, page)


def _option(option: Any) -> list[str]:
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))
    default = "" if option.default is None or option.is_flag else f" [default: {option.default}]"
    return [names, option.help.replace("\\[", "[") + (" [required]" if option.required else default)]


def _options(page: str) -> str:
    group: Any = typer.main.get_command(app)

    def table(section: re.Match[str]) -> str:
        root = typer.Context(group)
        command = group.get_command(root, section[1]).make_context("", [], root, resilient_parsing=True).command
        if hasattr(command, "commands"):
            rows = [[f"`{name}`", sub.help] for name, sub in command.commands.items()]
            return _put(section[0], ["command", "meaning"], rows)
        shown = [p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"]
        text = _put(section[0], ["option", "meaning"], [_option(p) for p in shown])
        # The examples of the help are above the table.
        text = re.sub(r"```\n(?:.*\n)*?```\n\n", "", text, count=1)
        return text.replace("| option |", f"```\n{EXAMPLES[section[1]]}\n```\n\n| option |", 1)

    return re.sub(r"^## fastcar (.*)\n(?:(?!## ).*\n)*", table, page, flags=re.M)


def _keys(page: str) -> str:
    rows = []
    for key, setting in settings().items():
        rows.append([f"`{key}`", setting.default, "" if setting.flag is None else f"`{setting.flag}`", setting.help])
    return _put(page, ["key", "default", "option", "meaning"], rows)


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    made = {DOCS / "cli.md": _options, DOCS / "configuration.md": _keys}
    return {path: make(path.read_text(encoding="utf-8")) for path, make in made.items()}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
