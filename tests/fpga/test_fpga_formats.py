"""Number formats of the emulated accelerator: exact sums, int4 as `--dtype int4` has it, int8 in integers."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.fpga_presets import preset, work
from support.processes import Run
from support.tiny import tiny_model

from fastcar_cli.errors import RequestError
from fastcar_cli.models.vila_u.network import VideoModel
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.weights.formats import FORMATS, QuantisedLinear, quantise_int4, unpack_int4
from fastcar_fpga import integer
from fastcar_fpga.backend import FpgaBackend, group_sums, quantise
from fastcar_fpga.emulator import Emulator
from fastcar_fpga.preset import Preset, load_preset


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def int8(numbers: torch.Tensor, scale: torch.Tensor) -> QuantisedLinear:
    linear = QuantisedLinear(FORMATS["int8"], numbers.shape[1], numbers.shape[0])
    linear.weight, linear.scale = numbers, scale.float()
    return linear


def int4(weight: torch.Tensor) -> QuantisedLinear:
    linear = QuantisedLinear(FORMATS["int4"], weight.shape[1], weight.shape[0])
    linear.weight, linear.scale = quantise_int4(weight)
    return linear


def in_format(kind: str) -> Preset:
    return preset(format__kind=kind, format__weight_bits=4 if kind == "int4" else 8)


# Sums


@given(
    k=st.sampled_from([1, 1040, 1041, 4096, 11008]),
    seed=st.integers(0, 99),
    extreme=st.booleans(),
)
@settings(max_examples=25)
def test_sums_of_int8_are_exact_whatever_their_length(k: int, seed: int, extreme: bool) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(-127, 128, (2, k), dtype=np.int8)
    w = rng.integers(-127, 128, (3, k), dtype=np.int8)
    if extreme:
        x, w = np.sign(x) * np.int8(127), np.full_like(w, -128)
    found = integer.sums(torch.from_numpy(x), torch.from_numpy(w))
    assert np.array_equal(found.numpy().astype(np.int64), x.astype(np.int64) @ w.astype(np.int64).T)


def test_a_sum_that_float32_has_no_number_for() -> None:
    x = torch.full((1, 4096), 127, dtype=torch.int8)
    w = x.clone()
    w[0, 0] = 126
    wanted = 4095 * 127 * 127 + 127 * 126
    assert int(integer.sums(x, w)) == wanted != int(np.float32(wanted))


@given(seed=st.integers(0, 99), size=st.sampled_from([1e-6, 0.02, 30.0]))
@settings(max_examples=25)
def test_sums_of_int4_groups_are_exact(seed: int, size: float) -> None:
    linear = int4(random(3, 11008, seed=seed) * size)
    x = quantise(random(2, 11008, seed=seed + 1))[0]
    groups = torch.einsum("ngk,ogk->nog", x.view(2, -1, 32).long(), unpack_int4(linear.weight).view(3, -1, 32).long())
    scales = (linear.scale.double() * 2**24).tolist()
    wanted = [[sum(g * int(s) for g, s in zip(n, o, strict=True)) for n, o in zip(row, scales, strict=True)]
              for row in groups.tolist()]  # fmt: skip
    assert (group_sums(x, linear) * 2**24).tolist() == wanted


# int4


def test_int4_multiplies_what_dtype_int4_holds() -> None:
    model = tiny_model(times=2)
    x = random(4, 32)
    mlp = model.llm.blocks[0].mlp

    def coded(x: torch.Tensor) -> torch.Tensor:
        scale = x.double().abs().amax(-1, keepdim=True) / 127
        return (x.double() / scale).round() * scale

    gate, up = (int4(m.weight).widened(torch.float64) for m in (mlp.gate_proj, mlp.up_proj))
    # 48 inputs are a group and a half: the other half is zeros.
    down = int4(torch.nn.functional.pad(mlp.down_proj.weight, (0, 16))).widened(torch.float64)[:, :48]
    inner = torch.nn.functional.silu(coded(x) @ gate.T) * (coded(x) @ up.T)
    wanted = coded(inner) @ down.T
    found = FpgaBackend(model.llm, in_format("int4"), 4).mlp(0, x, None)
    assert float((found - wanted).abs().max()) < 1e-4 * float(wanted.abs().max())
    error = float((found - mlp(x)).norm() / mlp(x).norm())
    assert 0.01 < error < 0.3


def test_int4_weights_count_their_scales() -> None:
    emulator = Emulator(in_format("int4"), work(width=64, mlp_width=96))
    assert emulator.mlp.weight_bytes == 3 * 64 * 96 // 2 + 2 * (3 * 64 * 96 // 32)
    assert emulator.mlp.macs == 3 * 64 * 96
    eight = Emulator(in_format("int8"), work(width=64, mlp_width=96))
    assert emulator.mlp.weight_bytes / eight.mlp.weight_bytes == 4.5 / 8
    with pytest.raises(RequestError, match=r"x 4\.5 bits / 8 = 5\.24 GiB, .* has 0\.5 GiB"):
        Emulator(in_format("int4"), work(resident_weights=10**10))


def test_int4_needs_widths_in_groups() -> None:
    with pytest.raises(RequestError, match="input widths divisible by 32, but the model's MLPs have width 16"):
        FpgaBackend(tiny_model().llm, in_format("int4"), 1)


# Models that hold such weights already


def held(kind: str) -> VideoModel:
    """The tiny model with its blocks in a format, as loading makes it."""
    plain = tiny_model(times=4)
    model = tiny_model(times=4)
    form = WeightFormat(kind, torch.float32, blocks=kind).on(model)
    form.use()
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in plain.state_dict().items():
        tensors |= form.stored(name, tensor)
    model.load_state_dict(tensors, assign=True)
    return model.eval()


@pytest.mark.parametrize(("stored", "kind"), [("int8", "int8"), ("int8", "int8-exact"), ("int4", "int4")])
def test_weights_held_so_are_used_as_they_are(monkeypatch: pytest.MonkeyPatch, stored: str, kind: str) -> None:
    # 96 is the MLP width of four times the tiny model, whole groups.
    x, rounded, plain = random(3, 64), held(stored), tiny_model(times=4)
    wanted = FpgaBackend(plain.llm, in_format(kind), 3).mlp(1, x, None)
    monkeypatch.setattr("fastcar_fpga.backend.FORMATS", {})
    assert torch.equal(FpgaBackend(rounded.llm, in_format(kind), 3).mlp(1, x, None), wanted)


@pytest.mark.parametrize(("stored", "kind"), [("int8", "int4"), ("int4", "int8"), ("int4", "int8-exact")])
def test_weights_of_another_format_are_refused(stored: str, kind: str) -> None:
    with pytest.raises(RequestError, match=f"`dtype` {stored}: can't be used .* whose format is {kind}"):
        FpgaBackend(held(stored).llm, in_format(kind), 3)


@pytest.mark.slow
def test_a_converted_model_on_an_accelerator_of_its_format(run: Run, tmp_path: Path) -> None:
    assert run("convert", "mini", "-o", "four", "--dtype", "int4").returncode == 0
    common = ("generate", "a red ball", "--seed", "1", "--frames", "1", "--backend", "fpga-sim", "--json")
    done = run(*common, "--model", "four", "--fpga", "edge-int4", "-o", "a.mp4")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["model"]["dtype"] == "int4" and report["backend"]["preset"] == "edge-int4"
    plain = json.loads(run(*common, "--fpga", "edge-small", "-o", "b.mp4").stdout)
    assert report["backend"]["cycles"] < plain["backend"]["cycles"]
    refused = run(*common, "--model", "four", "--fpga", "edge-small", "-o", "c.mp4")
    assert refused.returncode == 2
    says = " ".join(refused.stderr.replace("│", " ").split())
    assert "--dtype int4: can't be used with --fpga edge-small, whose format is float" in says and "edge-int4" in says


@pytest.mark.parametrize("name", ["edge-int8", "edge-int4", "u280-int4"])
def test_shipped_formats_execute(name: str) -> None:
    p, model = load_preset(name), tiny_model(times=2)
    x = random(2, 32)
    found = FpgaBackend(model.llm, p, 2).mlp(0, x, None)
    assert float((found - model.llm.blocks[0].mlp(x)).norm()) < 0.3 * float(found.norm())


def test_int4_has_four_bits() -> None:
    with pytest.raises(ValueError, match="weight_bits is 8, expected 4 for kind 'int4'"):
        preset(format__kind="int4", format__weight_bits=8)


# int8-exact, against fractions


def half_up(x: Fraction) -> int:
    return math.floor(x + Fraction(1, 2))


def away(x: Fraction) -> int:
    return half_up(abs(x)) * (1 if x >= 0 else -1)


def kept(x: int) -> int:
    return max(-(2**31 - 1), min(2**31 - 1, x))


def coded(x: list[Fraction], units: int) -> tuple[list[int], int, int]:
    """q, mantissa and exponent of numbers in units of 2^-units, by the words of integer.py."""
    most = max(abs(v) for v in x)
    bits = most.numerator.bit_length()
    drop = max(0, bits - 15)
    mantissa = max(1, math.ceil(most / 2**drop))
    return [away(v * 127 / (mantissa * 2**drop)) for v in x], mantissa, units - drop


def matrix_product(rows: integer.Rows, q: list[int], mantissa: int, exponent: int) -> list[int]:
    out = []
    for weights, multiplier in zip(rows.weight.tolist(), rows.multiplier.tolist(), strict=True):
        total = sum(a * b for a, b in zip(weights, q, strict=True))
        by = exponent + rows.exponent - 16
        out.append(kept(half_up(Fraction(total * multiplier * mantissa, 2**by))))
    return out


def logistic(x: int) -> int:
    """From the table, in units of 2^-16, of a fixed-point number."""
    at = min(Fraction(abs(x), 2**16), Fraction(16)) * 32
    low, between = divmod(at, 1)
    table = [round(2**16 / (1 + math.exp(-i / 32))) for i in range(514)]
    found = table[int(low)] + half_up((table[int(low) + 1] - table[int(low)]) * between)
    return 2**16 - found if x < 0 else found


def mlp_in_fractions(mlp: integer.IntegerMLP, q: list[int], mantissa: int, exponent: int) -> list[int]:
    gate, up = (matrix_product(m, q, mantissa, exponent) for m in (mlp.gate, mlp.up))
    silu = [half_up(Fraction(g * logistic(g), 2**16)) for g in gate]
    hidden = [kept(half_up(Fraction(s * u, 2**16))) for s, u in zip(silu, up, strict=True)]
    return matrix_product(mlp.down, *coded([Fraction(h) for h in hidden], 16))


def numbers(rows: int, columns: int) -> st.SearchStrategy[torch.Tensor]:
    return arrays("int8", (rows, columns), elements=st.integers(-127, 127)).map(torch.from_numpy)


def scales(rows: int) -> st.SearchStrategy[torch.Tensor]:
    positive = st.floats(2.0**-20, 2.0, width=32) | st.floats(2.0**-10, 2.0**-7, width=32)
    return arrays("float32", rows, elements=positive).map(torch.from_numpy)


@given(
    st.tuples(numbers(7, 5), numbers(7, 5), numbers(4, 7)), st.tuples(scales(7), scales(7), scales(4)),
    arrays("float32", (2, 5), elements=st.floats(-1e4, 1e4, width=32) | st.floats(-3, 3, width=32)),
)  # fmt: skip
@settings(max_examples=50)
def test_whole_numbers_are_those_of_fractions(weights, scale, x) -> None:  # type: ignore[no-untyped-def]
    mlp = integer.IntegerMLP(*(int8(w, s) for w, s in zip(weights, scale, strict=True)))
    given_ = integer.code_floats(torch.from_numpy(x))
    rows = zip(given_.q.tolist(), given_.mantissa[:, 0].tolist(), given_.exponent[:, 0].tolist(), strict=True)
    assert mlp.whole(given_).tolist() == [mlp_in_fractions(mlp, *row) for row in rows]


@given(arrays("int64", (1, 6), elements=st.integers(-(2**31) + 1, 2**31 - 1) | st.integers(-300, 300)))
def test_coding_is_exact_division(x: np.ndarray) -> None:
    found = integer.code(torch.from_numpy(x))
    q, mantissa, exponent = coded([Fraction(int(v)) for v in x[0]], 16)
    assert (found.q[0].tolist(), int(found.mantissa), int(found.exponent)) == (q, mantissa, exponent)
    step = Fraction(mantissa, 127) / Fraction(2) ** exponent
    assert all(abs(v * step - Fraction(int(w), 2**16)) <= step / 2 for v, w in zip(q, x[0], strict=True))


@given(arrays("float32", (1, 6), elements=st.floats(-32768, 32768, width=32)))
def test_coded_floats_are_at_most_half_a_step_off(x: np.ndarray) -> None:
    found = integer.code_floats(torch.from_numpy(x))
    step = float(found.mantissa) * 2.0 ** -float(found.exponent) / 127
    assert np.abs(found.q.numpy() * step - x).max() <= step / 2 * (1 + 1e-9)
    assert 1 <= int(found.mantissa) <= 2**15 and int(found.exponent) >= 0


def test_the_logistic_function_is_as_near_as_it_says() -> None:
    x = torch.arange(-20 * 2**16, 20 * 2**16, 7)
    found = integer.logistic(x)
    assert float((found / 2**16 - torch.sigmoid(x.double() / 2**16)).abs().max()) < 1.3e-5 + 2**-16
    assert bool((found.diff() >= 0).all()) and torch.equal(integer.logistic(-x), 2**16 - found)


def test_fixed_point_numbers_end_at_their_limit() -> None:
    huge = int8(torch.full((1, 8), 127, dtype=torch.int8), torch.ones(1))
    found = integer.product(integer.rows_of(huge), integer.code_floats(torch.full((1, 8), 1e4)))
    assert int(found) == 2**31 - 1
    with pytest.raises(RequestError, match="to 16,129, not 25,400"):
        integer.rows_of(int8(torch.full((1, 8), 127, dtype=torch.int8), torch.full((1,), 200.0)))


def test_whole_numbers_are_as_near_as_int8() -> None:
    model = tiny_model(times=8)
    x = random(8, 128)
    wanted = model.llm.blocks[0].mlp(x)
    errors = {
        kind: float((FpgaBackend(model.llm, in_format(kind), 8).mlp(0, x, None) - wanted).norm() / wanted.norm())
        for kind in ("int8", "int8-exact")
    }
    assert errors["int8-exact"] == pytest.approx(errors["int8"], rel=0.05) and errors["int8"] < 0.03


def test_zeros_stay_zeros() -> None:
    model = tiny_model()
    assert not FpgaBackend(model.llm, in_format("int8-exact"), 2).mlp(0, torch.zeros(2, 16), None).any()
