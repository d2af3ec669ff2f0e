"""Accelerator presets: YAML in which every constant has a unit and a source."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fastcar_cli.formats import GROUP
from fastcar_cli.plain_data import checked
from fastcar_cli.presets import preset_folder, read_preset

MAX_FITTED = 2
"""Constants of a preset that may be fitted to a measurement."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Constant(_Part):
    """A number with its unit, where it comes from, and what kind of knowledge that is."""

    value: float = Field(ge=0, allow_inf_nan=False)
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


Weights = Literal["lockstep", "multicast", "private"]
"""How cores get a layer's weights: layer.py says what each means."""


class Hbm(_Part):
    """Memory: pseudo-channels shared by the cores, or dealt to them where weights are private.

    window: tiles a core's buffer holds under multicast; otherwise it has two halves.
    """

    capacity: Annotated[Constant, In("GiB")]
    channels: Annotated[Constant, In("1")]
    channel_bandwidth: Annotated[Constant, In("GB/s")]
    efficiency: Annotated[Constant, In("1", most=1)]
    beat: Annotated[Constant, In("bytes", whole=True)]
    burst: Annotated[Constant, In("beats", whole=True)]
    latency: Annotated[Constant, In("cycles", zero=True, whole=True)]
    weights: Weights
    window: Annotated[Constant | None, In("tiles", whole=True)] = None

    @model_validator(mode="after")
    def _window(self) -> Hbm:
        if (self.weights == "multicast") != (self.window is not None):
            raise ValueError("weights 'multicast' need window, others have none")
        return self


class Core(_Part):
    """One core: MAC array, vector unit, local weight buffer."""

    mac_array: Annotated[Constant, In("MAC/cycle")]
    utilisation: Annotated[Constant, In("1", most=1)]
    vector_lanes: Annotated[Constant, In("elements/cycle")]
    buffer: Annotated[Constant, In("KiB")]


class Format(_Part):
    """Numbers: `float` passes values through, in any bits; others hold weights and int8 activations (formats.py)."""

    kind: Literal["float", "int8", "int8-exact", "int4"]
    weight_bits: int | float = Field(ge=2, le=32)
    kv_bits: int = Field(ge=4, le=32)

    @model_validator(mode="after")
    def _fits(self) -> Format:
        if self.kind == "int4" and self.weight_bits != 4:
            raise ValueError(f"kind 'int4' needs weight_bits 4, given {self.weight_bits}")
        return self

    @property
    def stored_bits(self) -> float:
        """Bits of a weight in memory: those of int4 have a scale in float16 for each 32."""
        return self.weight_bits + (16 / GROUP if self.kind == "int4" else 0)


class Drs(_Part):
    """Cost of Dynamic Resource Scheduling.

    dispatch: cycles a dispatched packet takes; left out, one for each of its words. fetch: a dropped packet
    is jumped over in `drop` cycles (skip), or passes like a dispatched one (stream). queue: packets a core holds.
    """

    remap: Annotated[Constant, In("cycles/layer", zero=True, whole=True)]
    dispatch: Annotated[Constant | None, In("cycles/row", zero=True, whole=True)] = None
    fetch: Literal["skip", "stream"]
    drop: Annotated[Constant, In("cycles/row", zero=True, whole=True)]
    queue: Annotated[Constant, In("packets", whole=True)]


class Rest(_Part):
    """Depth transformer and heads: timed by the core model, or one constant a step."""

    mode: Literal["modelled", "constant"]
    seconds_per_step: Annotated[Constant | None, In("s/step", zero=True)] = None

    @model_validator(mode="after")
    def _needs(self) -> Rest:
        if (self.mode == "constant") != (self.seconds_per_step is not None):
            raise ValueError("mode 'constant' needs seconds_per_step, mode 'modelled' has none")
        return self


class Energy(_Part):
    """Both energy models."""

    board_power: Annotated[Constant, In("W", zero=True)]
    hbm: Annotated[Constant, In("pJ/bit", zero=True)]
    mac: Annotated[Constant, In("pJ/MAC", zero=True)]
    vector: Annotated[Constant, In("pJ/element", zero=True)]
    buffer: Annotated[Constant, In("pJ/byte", zero=True)]
    background: Annotated[Constant, In("W", zero=True)]


class Preset(_Part):
    """An accelerator."""

    name: str
    title: str
    cores: int = Field(ge=1, le=32)
    clock: Annotated[Constant, In("MHz")]
    core: Core
    hbm: Hbm
    format: Format
    drs: Drs
    rest: Rest
    energy: Energy

    @model_validator(mode="after")
    def _check(self) -> Preset:
        for path, constant, wanted in _constants(self):
            if constant.unit != wanted.unit:
                raise ValueError(f"{path}.unit is {constant.unit!r}, needed: {wanted.unit!r}")
            needed = (
                (constant.value == 0 and not wanted.zero, "above 0"),
                (wanted.whole and bool(constant.value % 1), "an integer"),
                (constant.value > wanted.most, f"at most {wanted.most:g}"),
            )
            for wrong, what in needed:
                if wrong:
                    raise ValueError(f"{path}.value is {constant.value:g}, needed: {what}")
        fitted = [path for path, c in constants(self).items() if c.kind == "fitted"]
        if len(fitted) > MAX_FITTED:
            raise ValueError(f"{len(fitted)} fitted constants ({', '.join(fitted)}), at most {MAX_FITTED}")
        return self

    @property
    def bytes_per_cycle(self) -> float:
        """HBM bytes a cycle, all cores together."""
        h = self.hbm
        return h.channels.value * h.channel_bandwidth.value * 1e9 * h.efficiency.value / (self.clock.value * 1e6)

    @property
    def macs_per_cycle(self) -> float:
        """MACs a cycle of one core."""
        return self.core.mac_array.value * self.core.utilisation.value

    @property
    def window(self) -> int:
        """Tiles a core's weight buffer holds."""
        return 2 if self.hbm.window is None else int(self.hbm.window.value)

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile: the weight buffer in equal parts."""
        return max(1, int(self.core.buffer.value * 1024) // self.window)

    @property
    def seconds_per_cycle(self) -> float:
        """Length of a cycle."""
        return 1e-6 / self.clock.value


def _constants(part: BaseModel, prefix: str = "") -> Iterator[tuple[str, Constant, In]]:
    """Every constant of a preset: its dotted path, itself, and what is wanted of it."""
    for name, field in type(part).model_fields.items():
        value = getattr(part, name)
        if isinstance(value, Constant):
            yield prefix + name, value, next(m for m in field.metadata if isinstance(m, In))
        elif isinstance(value, BaseModel):
            yield from _constants(value, f"{prefix}{name}.")


def constants(preset: Preset) -> dict[str, Constant]:
    """Every constant of a preset by its dotted path."""
    return {path: constant for path, constant, _ in _constants(preset)}


def fpga_presets() -> list[str]:
    """Names of the shipped accelerators."""
    return sorted(p.stem for p in (preset_folder() / "fpga").glob("*.yaml"))


def load_preset(name: str) -> Preset:
    """A shipped preset by name or a YAML file by path. Raises RequestError naming file and key."""
    data, path = read_preset("accelerator preset", name, fpga_presets(), preset_folder() / "fpga")
    return checked(Preset, data, f"accelerator preset {path}")
