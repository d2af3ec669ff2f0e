"""int8 and int4 weights: where they lie, how far rounding is off, and the file they are written to."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import load_file

from fastcar_cli.kernels import native
from fastcar_cli.kernels.native.library import kernels
from fastcar_cli.weights.formats import (
    FORMATS,
    PACKED,
    QuantisedLinear,
    fitted_scales,
    pack_int4,
    quantise_int4,
    quantise_int8,
    unpack_int4,
    widen_int4,
)
from fastcar_cli.weights.tensors import write_safetensors


def matrices(low: float, high: float) -> st.SearchStrategy[torch.Tensor]:
    """Float32 matrices whose inputs are groups of 32."""
    shapes = st.tuples(st.integers(1, 3), st.integers(1, 3).map(lambda n: 32 * n))
    numbers = st.floats(float(np.float32(low)), float(np.float32(high)), width=32)
    return shapes.flatmap(lambda s: arrays("float32", s, elements=numbers)).map(torch.from_numpy)


def matrix(rows: int = 64, inputs: int = 96, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(seed))


def peak_scales(groups: torch.Tensor) -> torch.Tensor:
    """Plain rounding of groups [n, 32]: the weight largest in size comes to lie on -8; scales [n, 1]."""
    return groups.gather(1, groups.abs().argmax(1, keepdim=True)) / -8


@pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))
def test_the_tables_of_formats_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(f.name, f.bits, 8 * f.scale.itemsize if f.scale else 0, f.group or 0) for f in FORMATS.values()]
    for name in native.instruction_sets():
        monkeypatch.setenv("FASTCAR_KERNELS_ISA", name)
        table = kernels()
        found = [table.formats[i] for i in range(table.formats_count)]
        names = [ctypes.string_at(row.name).decode() for row in found]
        assert [(name, r.bits, r.scale_bits, r.group) for name, r in zip(names, found, strict=True)] == rows


@given(arrays("int8", (2, 64), elements=st.integers(-8, 7)).map(torch.from_numpy))
def test_int4_lies_as_its_layout_says(q: torch.Tensor) -> None:
    packed = pack_int4(q)
    for row, group, k in ((r, g, k) for r in range(2) for g in range(2) for k in range(16)):
        byte = int(packed[row, 16 * group + k])
        assert byte % 16 - 8 == q[row, 32 * group + k] and byte // 16 - 8 == q[row, 32 * group + 16 + k]
    assert torch.equal(unpack_int4(packed), q)


@given(matrices(-1e4, 1e4))
def test_plain_int4_is_at_most_a_step_of_its_group_off(weight: torch.Tensor) -> None:
    packed, scale = quantise_int4(weight, peak_scales)
    assert packed.dtype == torch.uint8 and scale.dtype == torch.float16
    found = widen_int4(packed, scale, torch.float32)
    step = weight.view(len(weight), -1, 32).abs().amax(2) / 8
    off = (found - weight).view(len(weight), -1, 32).abs().amax(2)
    # Scales below 2^-14 are rounded to multiples of 2^-24.
    assert bool((off <= 1.002 * step + 8 * 2.0**-24).all())


@given(matrices(-100, 100))
def test_fitted_scales_are_at_least_as_good_as_plain_rounding(weight: torch.Tensor) -> None:
    fitted, plain = (
        (widen_int4(*quantise_int4(weight, scales), torch.float64) - weight).square().sum()
        for scales in (fitted_scales, peak_scales)
    )
    assert fitted <= plain * 1.001 + weight.double().square().sum() * 1e-6 + 32 * weight.numel() * 2.0**-48


def test_fitted_scales_take_a_tenth_off_the_squared_error_of_plain_rounding() -> None:
    weight = matrix(256, 1024)
    fitted, plain = (
        float((widen_int4(*quantise_int4(weight, scales), torch.float32) - weight).square().mean())
        for scales in (fitted_scales, peak_scales)
    )
    assert fitted < 0.9 * plain


@given(matrices(-1e30, 1e30))
def test_int4_stays_finite(weight: torch.Tensor) -> None:
    assert widen_int4(*quantise_int4(weight), torch.float32).isfinite().all()


@given(matrices(-1e4, 1e4))
def test_int8_is_at_most_half_a_step_off(weight: torch.Tensor) -> None:
    q, scale = quantise_int8(weight)
    off = (q * scale[:, None] - weight).abs()
    assert bool((off <= scale[:, None] * 0.5001).all())


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("bias", [False, True])
def test_a_map_is_its_formula(kind: str, bias: bool) -> None:
    weight, x, made = matrix(), matrix(5, seed=1), QuantisedLinear(FORMATS[kind], 96, 64, bias)
    made.weight, made.scale = FORMATS[kind].quantise(weight)
    assert made.stored_bytes == FORMATS[kind].bytes_of(64, 96)
    if made.bias is not None:
        made.bias.data = matrix(1, 64, seed=2)[0]
    wide = made.widened(torch.float64)
    assert float((wide - weight).abs().max()) < 0.35
    wanted = x.double() @ wide.T + (0 if made.bias is None else made.bias.double())
    assert torch.allclose(made(x).double(), wanted, atol=1e-4)


def test_the_library_reads_what_is_written_and_it_is_aligned(tmp_path: Path) -> None:
    tensors = {
        "odd": torch.arange(3, dtype=torch.int8),
        "a": matrix(4, 32),
        "b": matrix(2, 32).bfloat16(),
        "c": matrix(1, 32).half(),
        "d": torch.arange(128, dtype=torch.uint8).view(2, 64),
        "one": torch.tensor(2.5),
    }
    write_safetensors(tmp_path / "x.safetensors", tensors)
    found = load_file(str(tmp_path / "x.safetensors"))
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[k], t) and found[k].dtype == t.dtype for k, t in tensors.items())
    text = (tmp_path / "x.safetensors").read_bytes()
    size = int.from_bytes(text[:8], "little")
    header = json.loads(text[8 : 8 + size])
    assert all((8 + size + header[k]["data_offsets"][0]) % 64 == 0 for k in "abcd")
