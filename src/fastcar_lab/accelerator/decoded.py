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

from fastcar_cli.decoding import trace
from fastcar_cli.errors import RequestError, RunError
from fastcar_cli.models import load
from fastcar_cli.models.decoder import Decoder
from fastcar_fpga import integer
from fastcar_fpga.backend import FpgaBackend, mlp_of
from fastcar_fpga.integer import Coded, IntegerMLP, Rows, code_floats
from fastcar_fpga.isa import Rates, mlp_program
from fastcar_fpga.layer import INDEX_BITS
from fastcar_fpga.preset import Preset
from fastcar_lab.accelerator.arithmetic import Units, compare_layers, write_arithmetic
from fastcar_lab.accelerator.rtl.joined import MLPLayer


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
            for row in range(len(x)):
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
            f"pass {token.step}, layer {token.layer}, row {token.row}, {part} {at}: the RTL gives "
            f"{int(actual.flatten()[at])}, the emulator gives {int(wanted.flatten()[at])}"
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


def layer_of(preset: Preset, tokens: Sequence[Token]) -> MLPLayer:
    """The rows of a layer, all of which compute, on the cores of the preset with its memory."""
    mlp = tokens[0].mlp
    inner, width = mlp.gate.weight.shape
    rows, index = [token.x for token in tokens], (1 << len(tokens)) - 1
    return MLPLayer(
        mlp_program(preset, width, inner), Rates.of(preset), mlp.gate, mlp.up, mlp.down, rows, index, (), dram=True
    )


def hold(folder: Path, model: str, preset: Preset, every: int, seed: int) -> tuple[dict[str, int], str, str | None]:
    """Build what lies in `folder`, or is written there, and compare the MLPs of a decode. Returns how many MLPs and
    numbers of each kind were equal, what was said of whole layers, and why none ran, if so. Raises RequestError for a
    preset of another format or a decode without such a pass, RunError for the first number that is not equal.
    """
    if preset.format.kind != "int8-exact":
        raise RequestError(f"preset {preset.name} has format {preset.format.kind}, expected int8-exact")
    if not (folder / "arithmetic" / "units.sv").exists():
        write_arithmetic(folder)
    units = Units(folder, int(preset.core.mac_array.value))
    tokens = decoded(model, preset, every, seed)
    if not tokens:
        raise RequestError("the decode has fewer passes", key="every", value=every, hint="use a smaller number")
    by_layer: dict[int, list[Token]] = {}
    for token in tokens:
        by_layer.setdefault(token.layer, []).append(token)
    layers = [layer_of(preset, rows[:INDEX_BITS]) for rows in by_layer.values()]
    said, no_layers = "", None
    try:
        said = compare_layers(folder, preset, layers)
    except RequestError as e:
        no_layers = f"{e}; {e.hint}"
    counts = {"MLPs": len(tokens)}
    for token in tokens:
        for what, count in compared(units, token):
            counts[what] = counts.get(what, 0) + count
    return counts, said, no_layers
