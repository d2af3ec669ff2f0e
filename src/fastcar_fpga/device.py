"""Boards (memories, resources and power; every number has a unit, a source and a kind), and the timing of DRAM.

The DRAM model has banks, rows, bank groups, bursts, refresh, and the ports in front of it. All channels do the same in
parallel. Times are whole picoseconds, as in the harness of the RTL (`dram.h`).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from fastcar_cli.config.presets import preset_folder, read_preset
from fastcar_cli.errors import RequestError
from fastcar_cli.system.plain_data import checked


class Entry(BaseModel):
    """A section of a file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


T = TypeVar("T", bound=Entry)


class Constant(Entry):
    """A number with its unit, its source, and the kind of that source."""

    value: float = Field(ge=0, le=1e9, allow_inf_nan=False)
    unit: str
    source: str = Field(min_length=3)
    kind: Literal["datasheet", "measured", "assumption", "fitted"]


def In(unit: str, *, zero: bool = False, whole: bool = False, most: float = math.inf) -> AfterValidator:
    """A check of a constant: its unit, whether it may be 0, whether it must be an integer, and its maximum."""

    def check(constant: Constant | None) -> Constant | None:
        if constant is None:
            return None
        if constant.unit != unit:
            raise ValueError(f"unit is {constant.unit!r}, expected {unit!r}")
        value = constant.value
        wrong = {"above 0": value == 0 and not zero, "at least 1e-06": 0 < value < 1e-6}
        wrong |= {"an integer": whole and bool(value % 1), f"at most {most:g}": value > most}
        if needed := next((needed for needed in wrong if wrong[needed]), ""):
            raise ValueError(f"value is {value:g}, expected {needed}")
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
    """A memory of a board: its channels, and the ports from logic to it, with the clock that they reach."""

    capacity: Annotated[Constant, In("GiB")]
    channels: Annotated[Constant, In("1", whole=True)]
    ports: Annotated[Constant, In("1", whole=True)]
    port: Annotated[Constant, In("bits", whole=True)]
    port_clock: Annotated[Constant, In("MHz")]
    energy: Annotated[Constant, In("pJ/bit", zero=True)]  # from a cell to the logic


class Power(Entry):
    """board: the total under load, as published. idle: power besides the activity that the emulator counts."""

    board: Annotated[Constant, In("W", zero=True)]
    idle: Annotated[Constant, In("W", zero=True)]


class Resources(Entry):
    """Resources of the logic."""

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
        """The memory of this part. Raises RequestError if the board has none."""
        if part not in self.memories:
            raise RequestError(f"device {self.name} has no memory {part}", hint=f"use {' or '.join(self.memories)}")
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


Order = Literal["groups", "rows"]
"""Where the next burst of a stream lies: in the next bank group (groups), or in the same row of a bank (rows)."""

Positive = Annotated[float, Field(gt=0, le=1e5)]  # bounded, so that a stream comes to its next refresh soon
_INTERVALS = 8


class DramTiming(Entry):
    """Nanoseconds, except tCCD_S and tCCD_L: clocks between two reads, in different bank groups and in one."""

    tRCD: Positive
    tRP: Positive
    tRAS: Positive
    tRTP: Positive
    tRRD_S: Positive
    tRRD_L: Positive
    tFAW: Positive
    tCL: Positive
    tRFC: Positive
    tREFI: Positive
    tCCD_S: int = Field(ge=1, le=1000)
    tCCD_L: int = Field(ge=1, le=1000)

    @model_validator(mode="after")
    def _between(self) -> DramTiming:
        if self.tREFI <= (least := self.tRFC + self.tRP + self.tRCD):
            raise ValueError(f"tREFI is {self.tREFI:g}, expected above tRFC + tRP + tRCD = {least:g}")
        return self


class Part(Entry):
    """A channel of a memory: width in bits, rate in MT/s, burst in transfers, bytes of a row, banks of a group."""

    name: str
    source: str = Field(min_length=3)
    width: int = Field(ge=8)
    rate: Positive
    burst: int = Field(ge=1)
    groups: int = Field(ge=1)
    banks: int = Field(ge=1)
    row: int = Field(ge=64)
    timing: DramTiming

    @model_validator(mode="after")
    def _whole(self) -> Part:
        if self.width * self.burst % 8 or self.row % self.burst_bytes:
            burst = f"{self.width} bits x {self.burst} transfers = {self.width * self.burst / 8:g} bytes"
            raise ValueError(f"row is {self.row} bytes, expected a multiple of a burst ({burst}, which must be whole)")
        return self

    @property
    def burst_bytes(self) -> int:
        """Bytes of a burst."""
        return self.width * self.burst // 8

    @property
    def bank_bursts(self) -> int:
        """Bursts of a row in each bank group, after which a stream comes to the next bank."""
        return self.row // self.burst_bytes * self.groups

    @property
    def peak(self) -> float:
        """GB/s of a channel."""
        return self.width * self.rate / 8e3


@cache
def load_part(name: str) -> Part:
    """A memory part by name or a YAML file by path. Raises RequestError naming file and key, even a missing timing."""
    return load_entry(Part, "memory part", name, "memory")


@dataclass(frozen=True)
class ReadStream:
    """How streams read a channel; `streams` are served in turn, `turn` bursts each, and lie `apart` bursts apart."""

    part: Part
    order: Order
    port: int  # picoseconds of a burst in its share of the ports
    ahead: int  # bursts requested and not delivered yet
    chunk: int = 0  # bursts in a row; 0: endless
    stride: int = 0  # bursts from the first of a chunk to the first of the next
    streams: int = 1
    turn: int = 1
    apart: int = 0

    def burst(self, count: int) -> int:
        """The index in the channel of the burst that is served after `count` others."""
        turns, within = divmod(count, self.turn)
        own = turns // self.streams * self.turn + within
        chunk, rest = divmod(own, self.chunk) if self.chunk else (0, own)
        return chunk * self.stride + rest + turns % self.streams * self.apart


class Dram:
    """A channel with the state of its banks; `refreshes` counts the refreshes that were due."""

    def __init__(self, stream: ReadStream) -> None:
        part, t = stream.part, stream.part.timing
        clock = 2e6 / part.rate
        self.stream = stream
        self.columns = part.row // part.burst_bytes
        self.ccd = tuple(round(max(n, part.burst / 2) * clock) for n in (t.tCCD_S, t.tCCD_L))
        self.data = round(part.burst / 2 * clock)
        ns = (t.tRCD, t.tRP, t.tRAS, t.tRTP, t.tRRD_S, t.tRRD_L, t.tFAW, t.tCL, t.tRFC, t.tREFI)
        self.rcd, self.rp, self.ras, self.rtp, self.rrd_s, self.rrd_l, self.faw, self.cl, self.rfc, self.refi = (
            round(1000 * n) for n in ns
        )
        self._new: int | None = None
        self.refreshes, self.closed, self.last = 0, 0, (-(10**9), 0)
        self.open: dict[tuple[int, int], tuple[int, int, int]] = {}
        self.activated: deque[tuple[int, int]] = deque([(-(10**9), 0)] * 4, 4)
        self.delivered: deque[int] = deque([0] * stream.ahead, stream.ahead)

    def place(self, burst: int) -> tuple[int, int, int]:
        """Bank group, bank and row of a burst of the channel."""
        part = self.stream.part
        if self.stream.order == "groups":
            group, rest = burst % part.groups, burst // part.groups // self.columns
        else:
            rest, group = divmod(burst // self.columns, part.groups)
        return group, rest % part.banks, rest // part.banks

    def read(self, burst: int, at: int = 0) -> int:
        """The time when a burst, requested at `at` or as soon as there is room for it, has passed the port."""
        at = max(at, self.delivered[0])
        group, bank, row = self.place(burst)
        while (command := self._command(at, group, bank, row)) >= (self.refreshes + 1) * self.refi:
            self.refreshes += 1
            quiet = max(self.refreshes * self.refi, self.last[0] + self.rtp)
            self.closed = quiet + (self.rp if self.open else 0) + self.rfc
            self.open.clear()
        if self._new is not None:
            self.activated.append((self._new, group))
        activated = self.open[group, bank][1] if self._new is None else self._new
        self.open[group, bank] = (row, activated, command)
        self.last = (command, group)
        done = max(command + self.cl + self.data, self.delivered[-1] + self.stream.port)
        self.delivered.append(done)
        return done

    def _command(self, at: int, group: int, bank: int, row: int) -> int:
        """The earliest time of a burst's read command."""
        last, last_group = self.last
        earliest = max(at, self.closed, last + self.ccd[last_group == group])
        held = self.open.get((group, bank))
        self._new = None
        if held is not None and held[0] == row:
            return max(earliest, held[1] + self.rcd)
        ready = max(at, self.closed)
        if held is not None:
            ready = max(ready, held[2] + self.rtp, held[1] + self.ras) + self.rp
        before, before_group = self.activated[-1]
        gap = self.rrd_l if before_group == group else self.rrd_s
        self._new = max(ready, before + gap, self.activated[0][0] + self.faw)
        return max(earliest, self._new + self.rcd)


@lru_cache(maxsize=256)
def share(stream: ReadStream) -> float:
    """The share of a channel's peak that endless streams reach, over whole intervals between refreshes."""
    dram, count, begin = Dram(stream), 0, (0, 0, 0)
    while True:
        done, before = dram.read(stream.burst(count)), dram.refreshes
        count += 1
        if before and not begin[0]:
            begin = (count, done, before)
        elif before - begin[2] >= _INTERVALS:
            passed = (count - begin[0]) * stream.part.burst_bytes / (done - begin[1]) * 1e3
            return passed / stream.part.peak
