"""Boards: their memories, resources and power, from data sheets; a preset is an accelerator on one of them."""

from __future__ import annotations

from functools import cache
from typing import Annotated

from pydantic import model_validator

from fastcar_cli.config.presets import preset_folder, read_preset
from fastcar_cli.errors import RequestError
from fastcar_cli.system.plain_data import checked
from fastcar_fpga.constants import Constant, In, Section, check_constants


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
