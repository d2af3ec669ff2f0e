"""The synthetic worlds that the bundled models draw, a folder each: see `protocol.World`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fastcar_cli.inputs.prompt import PromptReader
    from fastcar_lab.worlds.protocol import CaptionedWorld, World


def names() -> list[str]:
    """Names of all worlds, which are those of their models."""
    return [module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__) if module.ispkg]


def world(name: str) -> World:
    """The world of a name."""
    world: World = importlib.import_module(f"{__name__}.{name.replace('-', '_')}.world").WORLD
    return world


def world_of(reader: PromptReader, height: int, width: int) -> CaptionedWorld | None:
    """The world of which a model speaks that reads prompts so and draws frames of this size; None of none of ours."""
    from fastcar_lab.worlds.protocol import CaptionedWorld

    captioned = [w for name in names() if isinstance(w := world(name), CaptionedWorld)]
    return next((w for w in captioned if w.recognises(reader, height, width)), None)


def shares(judgements: Iterable[Mapping[str, bool]]) -> dict[str, float]:
    """Share of right answers for each key over many videos."""
    rows = list(judgements)
    return {key: sum(r[key] for r in rows) / len(rows) for key in rows[0]} if rows else {}
