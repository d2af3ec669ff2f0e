"""Boards: their memories, resources and power. Every number has a unit, a source and a kind."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fastcar_cli.config.presets import preset_folder, read_preset
from fastcar_cli.errors import RequestError
from fastcar_cli.system.plain_data import checked


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


class Bank(Section):
    """A memory of a board: its channels, and the ports from logic to it, with the clock that they reach.

    energy: of a bit from a cell to the logic.
    """

    capacity: Annotated[Constant, In("GiB")]
    channels: Annotated[Constant, In("1", whole=True)]
    ports: Annotated[Constant, In("1", whole=True)]
    port: Annotated[Constant, In("bits", whole=True)]
    port_clock: Annotated[Constant, In("MHz")]
    energy: Annotated[Constant, In("pJ/bit", zero=True)]

    @model_validator(mode="after")
    def _units(self) -> Bank:
        check_constants(self)
        return self


class Power(Section):
    """board: all of it under load, as published. idle: what flows beside the activity that the emulator counts."""

    board: Annotated[Constant, In("W", zero=True)]
    idle: Annotated[Constant, In("W", zero=True)]


class Resources(Section):
    """What the logic has."""

    source: str
    LUT: int
    FF: int
    DSP: int
    BRAM36: int
    URAM: int


class Device(Section):
    """A board; memories by the name of their part."""

    name: str
    title: str
    memories: dict[str, Bank]
    power: Power
    resources: Resources | None = None

    @model_validator(mode="after")
    def _units(self) -> Device:
        check_constants(self)
        return self

    def bank(self, part: str) -> Bank:
        """The memory of this part. Raises RequestError where the board has none."""
        if part not in self.memories:
            raise RequestError(f"device {self.name} has no memory {part}", hint=f"it has {', '.join(self.memories)}")
        return self.memories[part]


@cache
def load_device(name: str) -> Device:
    """A board by name, or a YAML file by path. Raises RequestError naming file and key."""
    folder = preset_folder() / "fpga" / "devices"
    data, path = read_preset("device", name, sorted(p.stem for p in folder.glob("*.yaml")), folder)
    return checked(Device, data, f"device {path}")
