"""Numbers of the YAML files of the emulated accelerator: each has a unit, a source and a kind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A part of a file: no other keys than its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Constant(Section):
    """A number with its unit, where it comes from, and what kind of knowledge that is."""

    value: float = Field(ge=0, le=1e9, allow_inf_nan=False)
    unit: str
    source: str = Field(min_length=3)
    kind: Literal["datasheet", "measured", "assumption", "fitted"]


@dataclass(frozen=True)
class In:
    """The unit that a constant must be given in; whether it may be 0 and must be an integer; the most it may be."""

    unit: str
    zero: bool = False
    whole: bool = False
    most: float = math.inf


def _constants(part: BaseModel, prefix: str = "") -> Iterator[tuple[str, Constant, In]]:
    """Every constant of a preset: its dotted path, itself, and what is wanted of it."""
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, Constant):
            yield prefix + name, value, next(m for m in field.metadata if isinstance(m, In))
        elif isinstance(value, BaseModel):
            yield from _constants(value, f"{prefix}{name}.")


def constants(part: BaseModel) -> dict[str, Constant]:
    """Every constant of a file by its dotted path."""
    return {path: constant for path, constant, _ in _constants(part)}


def check_constants(part: BaseModel) -> None:
    """Refuse a constant in another unit, or beyond what `In` allows. Raises ValueError naming its path."""
    for path, constant, wanted in _constants(part):
        if constant.unit != wanted.unit:
            raise ValueError(f"{path}.unit is {constant.unit!r}, needed: {wanted.unit!r}")
        needed = (
            (constant.value == 0 and not wanted.zero, "above 0"),
            (0 < constant.value < 1e-6, "at least 1e-06"),
            (wanted.whole and bool(constant.value % 1), "an integer"),
            (constant.value > wanted.most, f"at most {wanted.most:g}"),
        )
        for wrong, what in needed:
            if wrong:
                raise ValueError(f"{path}.value is {constant.value:g}, needed: {what}")
