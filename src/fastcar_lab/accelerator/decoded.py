"""Compares the arithmetic in SystemVerilog with a decode: `fastcar lab rtl-decoded DIR`.

What lies in DIR is built, or, where DIR is new, the sources are written there first. MODEL decodes random codes in
int8-exact; sums, fixed-point numbers and codes of its MLPs must be equal, or it ends with status 1 and names the first
that is not: pass, layer, row, part and element.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fastcar_cli.backends.fpga import integer
from fastcar_cli.backends.fpga.backend import FpgaBackend, mlp_of
from fastcar_cli.backends.fpga.integer import Coded, IntegerMLP, Rows, code_floats
from fastcar_cli.backends.fpga.isa import compile_mlp
from fastcar_cli.backends.fpga.preset import Preset
from fastcar_cli.backends.fpga.rtl.core import CoreRow, expected
from fastcar_cli.backends.fpga.timing import Rates
from fastcar_cli.decoding import trace
from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.models import load
from fastcar_cli.models.decoder import Decoder
from fastcar_lab.accelerator.arithmetic import Core, Units, write_arithmetic


@dataclass(frozen=True)
class Token:
    """One MLP of a decode: which, its matrices, and its input."""

    step: int
    layer: int
    row: int
    mlp: IntegerMLP
    x: Coded


class _Recorder(FpgaBackend):
    """An accelerator that keeps the inputs of its MLPs at some passes."""

    def __init__(self, decoder: Decoder, preset: Preset, rows: int, every: int, tokens: list[Token]) -> None:
        super().__init__(decoder, preset, rows)
        self._every, self._tokens = every, tokens
        self._exact = [mlp_of(block.mlp, preset) for block in decoder.blocks]
        self._layers, self._calls = len(decoder.blocks), 0

    def mlp(self, layer: int, x: Tensor, rows: Sequence[int] | None) -> Tensor:
        step, mlp = self._calls // self._layers, self._exact[layer]
        self._calls += 1
        if step % self._every == self._every // 2 and isinstance(mlp, IntegerMLP):
            coded = code_floats(x)
            for row in range(self.rows):
                at = slice(row, row + 1)
                one = Coded(coded.q[at], coded.mantissa[at], coded.exponent[at])
                self._tokens.append(Token(step, layer, row, mlp, one))
        return super().mlp(layer, x, rows)


def decoded(model: str, preset: Preset, every: int, seed: int = 0) -> list[Token]:
    """MLPs of a decode of a model, its first frame, all layers, at every so many passes."""
    loaded = load(model)
    spec = loaded.network.spec
    codes = torch.randint(
        0, spec.depth.codes, (1, spec.tokens_per_frame, spec.depth.depth), generator=torch.Generator().manual_seed(seed)
    )
    tokens: list[Token] = []
    trace(
        loaded, ["a red ball"], codes, tau=None, cfg=loaded.defaults.cfg,
        backend=lambda decoder, rows: _Recorder(decoder, preset, rows, every, tokens),
    )  # fmt: skip
    return tokens


def _equal(token: Token, part: str, actual: Tensor, wanted: Tensor) -> int:
    """How many were compared. Raises RunError for the first that differs."""
    wrong = (actual != wanted).flatten().nonzero()
    if len(wrong):
        at = int(wrong[0])
        raise RunError(
            f"pass {token.step}, layer {token.layer}, row {token.row}, {part} {at}: the hardware has "
            f"{int(actual.flatten()[at])}, the emulator {int(wanted.flatten()[at])}"
        )
    return wanted.numel()


def compared(units: Units, token: Token) -> Iterator[tuple[str, int]]:
    """Each part of an MLP through the hardware, with how many numbers were equal; RunError for one that was not."""

    def product(name: str, rows: Rows, x: Coded) -> Iterator[tuple[str, int]]:
        wanted = rows.weight.long() @ x.q[0].long()
        yield "sums", _equal(token, f"{name} sum", units.sums(x.q[0], rows.weight), wanted)
        fixed = units.requantised(wanted[None], rows, x)
        yield "fixed-point numbers", _equal(token, f"{name} output", fixed, integer.requantised(wanted[None], rows, x))

    mlp, x = token.mlp, token.x
    yield from product("gate", mlp.gate, x)
    yield from product("up", mlp.up, x)
    gate, up = integer.product(mlp.gate, x), integer.product(mlp.up, x)
    hidden = integer.activated(gate, up)
    yield "fixed-point numbers", _equal(token, "activated", units.activated(gate, up), hidden)
    coded, actual = integer.code(hidden), units.code(hidden)
    yield "codes", _equal(token, "code", actual.q, coded.q)
    yield "codes", _equal(token, "mantissa", actual.mantissa, coded.mantissa)
    yield "codes", _equal(token, "exponent", actual.exponent, coded.exponent)
    yield from product("down", mlp.down, coded)


def core_row(preset: Preset, token: Token) -> CoreRow:
    """The row of a token for a core of the preset."""
    mlp, x = token.mlp, token.x
    inner, width = mlp.gate.weight.shape
    hidden = integer.activated(integer.product(mlp.gate, x), integer.product(mlp.up, x))
    program = compile_mlp(width, inner, 8, preset.tile_bytes, preset.window)
    matrices = (mlp.gate.weight, mlp.up.weight, mlp.down.weight)
    return CoreRow(program, Rates.of(preset), *matrices, x.q[0], integer.code(hidden).q[0])


def summed(core: Core | None, preset: Preset, token: Token) -> Iterator[tuple[str, int]]:
    """The sums of an MLP through a core, and their cycles; RunError for one that was not equal."""
    if core is None:
        return
    row = core_row(preset, token)
    actual, wanted = core.sums(row), expected(row, int(preset.core.mac_array.value))
    if len(actual) != len(wanted):
        raise RunError(f"pass {token.step}, layer {token.layer}: the core has {len(actual)} sums, not {len(wanted)}")
    _equal(token, "cycle of the core's sum", actual[:, 0], wanted[:, 0])
    yield "sums of a core in their cycles", _equal(token, "the core's sum", actual[:, 1], wanted[:, 1])


@dataclass(frozen=True)
class Held:
    """What was equal: MLPs, numbers by kind, and why none ran on a core, where none did."""

    mlps: int
    counts: dict[str, int]
    no_core: str | None


def hold(folder: Path, model: str, preset: Preset, every: int, seed: int) -> Held:
    """Build what lies in `folder`, or is written there, and compare the MLPs of a decode.

    Raises RequestError for a preset of another format or a decode without such a pass, RunError for the first number
    that is not equal.
    """
    if preset.format.kind != "int8-exact":
        raise RequestError(f"preset {preset.name} has format {preset.format.kind}, needed: int8-exact")
    if not (folder / "units.sv").exists():
        write_arithmetic(folder)
    macs = int(preset.core.mac_array.value)
    units = Units(folder, macs)
    tokens = decoded(model, preset, every, seed)
    if not tokens:
        raise RequestError("the decode has fewer passes", key="every", value=every, hint="a smaller number")
    row, core, no_core = core_row(preset, tokens[0]), None, None
    try:
        row.check(macs)
        core = Core(folder, row, macs, preset.window)
    except RequestError as e:
        no_core = f"{e}; {e.hint}"
    counts: dict[str, int] = {}
    for token in tokens:
        for what, count in (*compared(units, token), *summed(core, preset, token)):
            counts[what] = counts.get(what, 0) + count
    return Held(len(tokens), counts, no_core)
