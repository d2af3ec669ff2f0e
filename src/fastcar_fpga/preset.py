"""Accelerator presets: YAML in which every constant has a unit and a source."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fastcar_cli.config.presets import fpga_presets, preset_folder, read_preset
from fastcar_cli.errors import RequestError
from fastcar_cli.system.plain_data import checked
from fastcar_cli.weights.formats import GROUP
from fastcar_fpga.device import (
    Bank,
    Constant,
    Device,
    Entry,
    In,
    Order,
    Part,
    ReadStream,
    constants,
    load_device,
    load_part,
    share,
)

MAX_FITTED = 2  # constants of a preset that may be fitted to a measurement
_ROWS = 2**10  # rows of a bank for each core's weights, if cores share a channel: more than `share` reads
Weights = Literal["lockstep", "multicast", "private"]  # how cores get a layer's weights, see layer.py


class Scales(Entry):
    """Scales stored apart from the weights: `size` per output, read through one port of width `port`, piece by piece;
    for `use` cycles per output none is read.
    """

    size: Annotated[Constant, In("bytes/output")]
    piece: Annotated[Constant, In("bytes")]
    port: Annotated[Constant, In("bytes/cycle")]
    use: Annotated[Constant, In("cycles/output", zero=True)]

    def cycles(self, latency: float) -> float:
        """Cycles per output; latency: from the request of a piece to its first data."""
        return self.size.value * (latency / self.piece.value + 1 / self.port.value) + self.use.value


class Hbm(Entry):
    """Memory: channels that the cores share, or that are dealt to them if weights are private."""

    part: str  # one of the device's memories
    channels: Annotated[Constant, In("1", whole=True)]
    ports: Annotated[Constant, In("1", whole=True)]  # of `beat` bytes at port_clock
    port_clock: Annotated[Constant, In("MHz")]
    beat: Annotated[Constant, In("bytes", whole=True)]
    burst: Annotated[Constant, In("beats", whole=True)]  # of a request
    order: Order
    capacity: Annotated[Constant | None, In("GiB")] = None  # if not the device's
    keys: Literal["layer", "token"] = "layer"  # keys of a layer, or of a token, are contiguous
    ahead: Annotated[Constant, In("bursts", whole=True, most=4096)]  # requested from a channel and not there yet
    requests: Annotated[Constant | None, In("requests", whole=True)] = None  # outstanding per port; None: no limit
    latency: Annotated[Constant, In("cycles", zero=True, whole=True)]
    scales: Scales | None = None
    weights: Weights
    window: Annotated[Constant | None, In("tiles", whole=True)] = None  # with multicast; else two halves

    @model_validator(mode="after")
    def _window(self) -> Hbm:
        if (self.weights == "multicast") != (self.window is not None):
            raise ValueError("hbm.window: required if hbm.weights is multicast, otherwise not allowed")
        return self


class Core(Entry):
    """One core: MAC array, perhaps another one for attention, vector unit, local weight buffer."""

    mac_array: Annotated[Constant, In("MAC/cycle")]
    attention_array: Annotated[Constant | None, In("MAC/cycle")] = None
    utilisation: Annotated[Constant, In("1", most=1)]
    vector_lanes: Annotated[Constant, In("elements/cycle")]
    buffer: Annotated[Constant, In("KiB")]


class NumberFormat(Entry):
    """`float` leaves values unchanged, with any bits; others quantise weights and activations (backend.py)."""

    kind: Literal["float", "int8", "int8-exact", "int4"]
    weight_bits: int | float = Field(ge=1, le=32)
    kv_bits: int = Field(ge=4, le=32)

    @model_validator(mode="after")
    def _fits(self) -> NumberFormat:
        if self.kind == "int4" and self.weight_bits != 4:
            raise ValueError(f"weight_bits is {self.weight_bits}, expected 4 for kind 'int4'")
        return self

    @property
    def stored_bits(self) -> float:
        """Bits per weight in memory; int4 weights have a float16 scale for each 32."""
        return self.weight_bits + (16 / GROUP if self.kind == "int4" else 0)


class Drs(Entry):
    """Cost of Dynamic Resource Scheduling. If `dispatch` is None, a packet takes one cycle per word."""

    remap: Annotated[Constant, In("cycles/layer", zero=True, whole=True)]
    dispatch: Annotated[Constant | None, In("cycles/row", zero=True, whole=True)] = None
    fetch: Literal["skip", "stream"]  # a dropped packet: skipped in `drop` cycles, or like a dispatched one
    drop: Annotated[Constant, In("cycles/row", zero=True, whole=True)]
    queue: Annotated[Constant, In("packets", whole=True)]  # that a core holds


class Rest(Entry):
    """Depth transformer and heads: timed by the core model, or one constant per step."""

    mode: Literal["modelled", "constant"]
    seconds_per_step: Annotated[Constant | None, In("s/step", zero=True)] = None

    @model_validator(mode="after")
    def _needs(self) -> Rest:
        if (self.mode == "constant") != (self.seconds_per_step is not None):
            raise ValueError("seconds_per_step: required for mode 'constant', not allowed for 'modelled'")
        return self


class Chain(Entry):
    """Steps of a layer that wait for the previous step, so that nothing overlaps them."""

    waits: Annotated[Constant | None, In("1", zero=True, whole=True)] = None  # other products whose first tile waits
    passes: Annotated[Constant | None, In("1", zero=True)] = None  # of vectors of the model's width
    trips: Annotated[Constant | None, In("1", zero=True, whole=True)] = None  # that wait for the memory
    heads: Annotated[Constant | None, In("cycles/head", zero=True)] = None  # of each head


class Ring(Entry):
    """Cards in a ring, each with its share of heads and outputs: in `gathers` steps per layer each gets all parts."""

    gathers: Annotated[Constant, In("1", whole=True)]
    rate: Annotated[Constant, In("GB/s")]
    hop: Annotated[Constant, In("ns", zero=True)]

    def seconds(self, cards: int, size: float) -> float:
        """Seconds of a layer's gathers, of `size` bytes in all."""
        hops = self.gathers.value * (cards - 1)
        return hops * (self.hop.value + size / cards / self.rate.value) * 1e-9


class Energy(Entry):
    """Energy per operation in the logic; the device has that of its memories, and the idle power."""

    mac: Annotated[Constant, In("pJ/MAC", zero=True)]
    vector: Annotated[Constant, In("pJ/element", zero=True)]
    buffer: Annotated[Constant, In("pJ/byte", zero=True)]


class Preset(Entry):
    """An accelerator."""

    name: str
    title: str
    device: str
    cores: int = Field(ge=1, le=32)
    clock: Annotated[Constant, In("MHz")]
    core: Core
    hbm: Hbm
    format: NumberFormat
    drs: Drs
    rest: Rest
    energy: Energy
    chain: Chain | None = None
    ring: Ring | None = None

    @model_validator(mode="after")
    def _check(self) -> Preset:
        hbm, bank = self.hbm, self.bank
        limits = (
            ("channels", hbm.channels.value, bank.channels.value, "channels"),
            ("ports", hbm.ports.value, bank.ports.value, "ports"),
            ("port_clock", hbm.port_clock.value, bank.port_clock.value, "MHz at a port"),
            ("beat", hbm.beat.value * 8, bank.port.value, "bits of a port"),
        )
        for key, wanted, most, what in limits:
            if wanted > most:
                raise ValueError(f"hbm.{key}: {wanted:g} {what}, but device {self.device} has {most:g} ({hbm.part})")
        fitted = [path for path, c in constants(self).items() if c.kind == "fitted"]
        if len(fitted) > MAX_FITTED:
            raise ValueError(f"{len(fitted)} constants are fitted, at most {MAX_FITTED} may be: {', '.join(fitted)}")
        return self

    @property
    def card(self) -> Device:
        """The board."""
        return load_device(self.device)

    @property
    def bank(self) -> Bank:
        """The board's memory that is used."""
        return self.card.bank(self.part.name)

    @property
    def part(self) -> Part:
        """A channel of that memory."""
        return load_part(self.hbm.part)

    @property
    def capacity(self) -> float:
        """Bytes of the channels that are used."""
        whole = self.hbm.capacity or self.bank.capacity
        return whole.value * 2**30 * self.hbm.channels.value / self.bank.channels.value

    @property
    def peak(self) -> float:
        """GB/s of the channels that are used."""
        return self.hbm.channels.value * self.part.peak

    @property
    def meeting(self) -> int:
        """Number of cores that share a channel, each with its own stream; 1 without private weights."""
        return -(-self.cores // int(self.hbm.channels.value)) if self.hbm.weights == "private" else 1

    @property
    def dealt(self) -> float:
        """A core's share of the channels: 1 if the cores share them all, else whole channels or a part of one."""
        if self.hbm.weights != "private":
            return 1.0
        channels = int(self.hbm.channels.value)
        return max(1, channels // self.cores) / (channels * self.meeting)

    def stream(self, chunk: float = 0, stride: float = 0) -> ReadStream:
        """How a channel is read; chunk, stride: contiguous bytes over all channels, and the distance of two chunks.
        Cores that share a channel are served in turn, one request each, and start in consecutive banks.
        """
        hbm, part = self.hbm, self.part
        across = part.burst_bytes * hbm.channels.value
        port = across * 1e6 / (hbm.ports.value * hbm.beat.value * hbm.port_clock.value)
        bursts = (max(1, round(size / across)) if chunk else 0 for size in (chunk, stride))
        turn = max(1, int(hbm.beat.value * hbm.burst.value) // part.burst_bytes)
        apart = part.bank_bursts * (part.banks * _ROWS + 1)
        meet = (self.meeting, turn, apart) if self.meeting > 1 else ()
        return ReadStream(part, hbm.order, round(port), int(hbm.ahead.value), *bursts, *meet)

    def rate(self, chunk: float = 0, stride: float = 0) -> float:
        """Bytes per cycle of an endless stream (see `stream`), all cores together, by memory and pending requests."""
        hbm, rate = self.hbm, self.peak * 1e3 * share(self.stream(chunk, stride)) / self.clock.value
        if hbm.requests is None:
            return rate
        beats = hbm.burst.value * self.clock.value / hbm.port_clock.value
        under_way = hbm.ports.value * hbm.requests.value * hbm.burst.value * hbm.beat.value
        return min(rate, under_way / (hbm.latency.value + beats))

    def keys_per_cycle(self, layers: int, kv_width: int) -> float:
        """Bytes of keys and values per cycle, all cores together."""
        chunk = kv_width * self.format.kv_bits / 8
        return self.rate() if self.hbm.keys == "layer" else self.rate(chunk, 2 * layers * chunk)

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


def load_preset(name: str) -> Preset:
    """A shipped preset by name or a YAML file, over the keys of its `base`. Raises RequestError naming file and key."""
    folder = preset_folder() / "fpga"
    data, path = read_preset("accelerator preset", name, fpga_presets(), folder)
    bases: list[str] = []
    while (base := data.pop("base", None)) is not None:
        if base in bases:
            raise RequestError(f"accelerator preset {path}: key 'base': {base} has itself as base")
        bases.append(base)
        data = _over(read_preset("accelerator preset", str(base), fpga_presets(), folder)[0], data)
    return checked(Preset, data, f"accelerator preset {path}")


def _over(base: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """The keys of `data` over those of `base`, section by section."""
    both = {k: (base[k], v) for k, v in data.items() if isinstance(base.get(k), dict) and isinstance(v, dict)}
    return {**base, **data, **{k: _over(old, new) for k, (old, new) in both.items() if "value" not in new}}
