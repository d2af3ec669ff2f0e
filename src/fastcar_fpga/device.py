"""Boards: their memories, resources and power. Every number has a unit, a source and a kind."""

from __future__ import annotations

import math
from functools import cache
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from fastcar_cli.config.presets import preset_folder, read_preset
from fastcar_cli.errors import RequestError
from fastcar_cli.system.plain_data import checked


class Entry(BaseModel):
    """A part of a file: no other keys than its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


T = TypeVar("T", bound=Entry)


class Constant(Entry):
    """A number with its unit, where it comes from, and what kind of knowledge that is."""

    value: float = Field(ge=0, le=1e9, allow_inf_nan=False)
    unit: str
    source: str = Field(min_length=3)
    kind: Literal["datasheet", "measured", "assumption", "fitted"]


def In(unit: str, *, zero: bool = False, whole: bool = False, most: float = math.inf) -> AfterValidator:
    """The unit that a constant must be given in; whether it may be 0 and must be an integer; the most it may be."""

    def check(constant: Constant | None) -> Constant | None:
        if constant is None:
            return None
        if constant.unit != unit:
            raise ValueError(f"unit is {constant.unit!r}, needed: {unit!r}")
        value = constant.value
        wrong = {"above 0": value == 0 and not zero, "at least 1e-06": 0 < value < 1e-6}
        wrong |= {"an integer": whole and bool(value % 1), f"at most {most:g}": value > most}
        if needed := next((needed for needed in wrong if wrong[needed]), ""):
            raise ValueError(f"value is {value:g}, needed: {needed}")
        return constant

    return AfterValidator(check)


def constants(part: BaseModel, prefix: str = "") -> dict[str, Constant]:
    """Every constant of a file by its dotted path."""
    found: dict[str, Constant] = {}
    for name in type(part).model_fields:
        value = getattr(part, name)
        if isinstance(value, Constant):
            found[prefix + name] = value
        elif isinstance(value, BaseModel):
            found |= constants(value, f"{prefix}{name}.")
    return found


class Bank(Entry):
    """A memory of a board: its channels, and the ports from logic to it, with the clock that they reach.

    energy: of a bit from a cell to the logic.
    """

    capacity: Annotated[Constant, In("GiB")]
    channels: Annotated[Constant, In("1", whole=True)]
    ports: Annotated[Constant, In("1", whole=True)]
    port: Annotated[Constant, In("bits", whole=True)]
    port_clock: Annotated[Constant, In("MHz")]
    energy: Annotated[Constant, In("pJ/bit", zero=True)]


class Power(Entry):
    """board: all of it under load, as published. idle: what flows beside the activity that the emulator counts."""

    board: Annotated[Constant, In("W", zero=True)]
    idle: Annotated[Constant, In("W", zero=True)]


class Resources(Entry):
    """What the logic has."""

    source: str
    LUT: int
    FF: int
    DSP: int
    BRAM36: int
    URAM: int


class Device(Entry):
    """A board; memories by the name of their part."""

    name: str
    title: str
    memories: dict[str, Bank]
    power: Power
    resources: Resources | None = None

    def bank(self, part: str) -> Bank:
        """The memory of this part. Raises RequestError where the board has none."""
        if part not in self.memories:
            raise RequestError(f"device {self.name} has no memory {part}", hint=f"it has {', '.join(self.memories)}")
        return self.memories[part]


def load_entry(kind: type[T], what: str, name: str, folder: str) -> T:
    """A file of presets/fpga/`folder` by name, or a YAML file by path. Raises RequestError naming file and key."""
    shipped = preset_folder() / "fpga" / folder
    data, path = read_preset(what, name, sorted(p.stem for p in shipped.glob("*.yaml")), shipped)
    return checked(kind, data, f"{what} {path}")


@cache
def load_device(name: str) -> Device:
    """A board by name, or a YAML file by path. Raises RequestError naming file and key."""
    return load_entry(Device, "device", name, "devices")
