"""Products of the native kernels against float64, in every number format and instruction set."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_toys import CODES, FORMATS, INF, apply, exact, groups_of, pack, random, random_linear
from torch import Tensor

from fastcar_cli.kernels import native
from fastcar_cli.kernels.native import Linear, Product, linear

pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))


@pytest.fixture(params=native.instruction_sets() or ["none"])
def any_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set that this processor runs."""
    monkeypatch.setenv("FASTCAR_KERNELS_ISA", request.param)
    return str(request.param)


def fitting(kind: str, inputs: int) -> int:
    return math.ceil(inputs / 32) * 32 if kind == "int4" else inputs


def plain_inputs(kind: str, rows: int, inputs: int, seed: int = 0) -> Tensor:
    """Random ones that codes hold exactly, float32 [rows, inputs], a power of 2 as scale in every group."""
    if kind not in CODES:
        return random(rows, inputs, seed=seed)
    group, most = CODES[kind]
    generator = torch.Generator().manual_seed(seed)
    codes = groups_of(torch.randint(-most, most + 1, (rows, inputs), generator=generator), group)
    codes[:, :, 0] = most
    powers = torch.randint(-12, 3, (rows, codes.shape[1], 1), generator=generator)
    return (codes * 2.0**powers).flatten(1)[:, :inputs].contiguous()


def size_of(weight: Linear, x: Tensor) -> Tensor:
    """Of what is added up, float64 [rows, outputs]: int4 weights are stored plus 8."""
    numbers = exact(weight).abs()
    if weight.weight.dtype is torch.uint8:
        assert weight.scale is not None
        numbers = numbers + 8 * weight.scale.double().repeat_interleave(32, 1)
    return x.abs().double() @ numbers.T + (0.0 if weight.bias is None else weight.bias.double().abs())


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.one_of(st.integers(1, 5), st.integers(15, 18)),
    outputs=st.integers(1, 150),
    # Two rows of int8 are multiplied side by side, one by one or, if an L1 cache can't hold them, in panels.
    inputs=st.one_of(st.integers(1, 300), st.integers(2600, 2700), st.integers(8100, 8130)),
    threads=st.sampled_from([1, 2, 3]),
    bias=st.booleans(),
    seed=st.integers(0, 9),
)
def test_products(kind: str, rows: int, outputs: int, inputs: int, threads: int, bias: bool, seed: int) -> None:
    inputs = fitting(kind, inputs)
    weight, x = random_linear(kind, outputs, inputs, seed, bias), plain_inputs(kind, rows, inputs, seed + 2)
    y = linear(x, weight, threads)
    assert torch.all((y - apply(weight, x.double())).abs() <= 1e-6 * size_of(weight, x))


@pytest.mark.parametrize("kind", FORMATS)
def test_products_of_every_instruction_set(any_set: str, kind: str) -> None:
    assert native.instruction_set() == any_set
    sizes = [(1, 37, 129), (2, 64, 256), (2, 9, 8101), (2, 9, 13201), (3, 9, 31), (5, 130, 515), (18, 20, 200)]
    for rows, outputs, inputs in sizes:
        weight = random_linear(kind, outputs, fitting(kind, inputs))
        x = plain_inputs(kind, rows, fitting(kind, inputs), 3)
        assert torch.all((linear(x, weight) - apply(weight, x.double())).abs() <= 1e-6 * size_of(weight, x))


@pytest.mark.parametrize("kind", CODES)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 3),
    inputs=st.integers(1, 700),
    size=st.sampled_from([1e-20, 1.0, 1e20]),
    outlier=st.sampled_from([0.0, 50.0, 1e6]),
    seed=st.integers(0, 99),
)
def test_inputs_are_rounded_to_the_nearest_code(
    kind: str, rows: int, inputs: int, size: float, outlier: float, seed: int
) -> None:
    inputs = fitting(kind, inputs)
    weight, x = random_linear(kind, 40, inputs, seed), random(rows, inputs, seed=seed + 1) * size
    x[0, seed % inputs] *= outlier
    group, most = CODES[kind]
    half_steps = groups_of(x, group).abs().amax(2).double() / most / 2
    rounding = half_steps @ groups_of(exact(weight), group).abs().sum(2).T
    error = (linear(x, weight) - apply(weight, x.double())).abs()
    assert torch.all(error <= 1.001 * rounding + 1e-6 * size_of(weight, x))


@pytest.mark.parametrize(("kind", "most"), [("int8", 3e-5), ("int4", 7e-3)])
def test_what_codes_cost(any_set: str, kind: str, most: float) -> None:
    weight, x = random_linear(kind, 200, 2048), random(5, 2048, seed=1)
    want = apply(weight, x.double())
    assert (linear(x, weight) - want).norm() <= most * want.norm()


def test_every_int4_number_and_scale(any_set: str) -> None:
    # One input at a time picks a column of weights: all numbers in all places of a group, scales of all magnitudes, in
    # every group that is worked on at once (16 at most) and in a part of so many. The input is its own code.
    width = (16 + 5) * 32
    numbers = torch.stack([torch.arange(width).roll(n) % 16 - 8 for n in range(16)])
    scale = torch.tensor([65504.0, 1.0, 6.2e-5, 6e-8, -0.37]).half().repeat(16, 5)[:, : width // 32].contiguous()
    weight = Linear(pack(numbers), scale)
    got = linear(CODES["int4"][1] * torch.eye(width), weight).T / CODES["int4"][1]
    torch.testing.assert_close(got.double(), numbers * scale.double().repeat_interleave(32, 1), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=60, deadline=None)
@given(
    instructions=st.sampled_from(native.instruction_sets() or ["none"]),
    rows=st.one_of(st.integers(2, 20), st.sampled_from([31, 33, 64])),
    outputs=st.one_of(st.integers(1, 20), st.integers(60, 150)),
    inputs=st.one_of(st.integers(1, 300), st.integers(1000, 1100), st.sampled_from([8101, 13201])),
    threads=st.sampled_from([1, 2]),
    seed=st.integers(0, 9),
)
def test_a_row_does_not_depend_on_its_neighbours(
    kind: str, instructions: str, rows: int, outputs: int, inputs: int, threads: int, seed: int
) -> None:
    inputs = fitting(kind, inputs)
    weight, x = random_linear(kind, outputs, inputs, seed, bias=True), random(rows, inputs, seed=seed + 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FASTCAR_KERNELS_ISA", instructions)
        together, alone = linear(x, weight, threads), Product(weight, 1)
        for r in range(rows):
            assert torch.equal(alone(x[r : r + 1]), together[r : r + 1])


@pytest.mark.parametrize("value", [float("nan"), INF])
@pytest.mark.parametrize("place", [0, 40, 130])
def test_weights_that_are_not_finite_show(any_set: str, place: int, value: float) -> None:
    weight = random_linear("float32", 20, 131)
    weight.weight[7, place] = value
    y = linear(random(2, 131).abs() + 0.1, weight)
    assert torch.isfinite(y).sum() == y.numel() - 2
    assert not torch.isfinite(y[:, 7]).any()
    if math.isnan(value):
        assert y[:, 7].isnan().all()


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
def test_scales_that_are_not_finite_show(any_set: str, kind: str, value: float) -> None:
    weight = random_linear(kind, 20, 160)
    assert weight.scale is not None
    weight.scale[7, ...] = value
    if kind == "int4":
        weight.scale[9, 4] = value
    y = linear(random(2, 160), weight)
    wrong = [7, 9] if kind == "int4" else [7]
    assert not torch.isfinite(y[:, wrong]).any()
    assert torch.isfinite(y).sum() == y.numel() - 2 * len(wrong)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("value", [float("nan"), INF, -INF])
@pytest.mark.parametrize("place", [0, 45, 159])
def test_inputs_that_are_not_finite_show(any_set: str, kind: str, value: float, place: int) -> None:
    weight, x = random_linear(kind, 20, 160), random(3, 160)
    x[1, place] = value
    y = linear(x, weight)
    assert not torch.isfinite(y[1]).any()
    assert torch.isfinite(y[[0, 2]]).all()


@pytest.mark.parametrize("kind", CODES)
def test_inputs_of_zeros_give_zeros(any_set: str, kind: str) -> None:
    assert torch.equal(linear(torch.zeros(2, 160), random_linear(kind, 20, 160)), torch.zeros(2, 20))
