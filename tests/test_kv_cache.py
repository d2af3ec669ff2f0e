"""Keys and values in few bits: how far rounding is off, and that memory is what a plan says."""

from __future__ import annotations

import pytest
import torch
from conftest import tiny_model
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from native_toys import Toy, assert_close, inputs

from fastcar_cli.decoding import trace
from fastcar_cli.decoding.kv_cache import KV_BITS, KVCache, packed, unpacked
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels import native
from fastcar_cli.models import load
from fastcar_cli.models.plan import Demand, cache_bytes


@pytest.mark.parametrize("bits", [8, 12])
@given(arrays("float32", (3, 10), elements=st.floats(-1e6, 1e6, width=32)).map(torch.from_numpy))
def test_a_number_is_at_most_half_a_step_off(bits: int, x: torch.Tensor) -> None:
    stored, scale = packed(x, bits)
    numbers = unpacked(stored)
    assert stored.nbytes == x.numel() * bits // 8
    assert int(numbers.abs().max()) <= 2 ** (bits - 1) - 1
    step = x.abs().amax(-1, keepdim=True) / (2 ** (bits - 1) - 1)
    assert bool(((numbers * scale[:, None] - x).abs() <= 0.501 * step + 1e-27).all())


def test_numbers_of_12_bits_lie_as_they_are_said_to() -> None:
    stored, scale = packed(torch.tensor([2047.0, -2047.0, 5.0, -6.0]), 12)
    # 0x7FF, 0x801, 0x005 and 0xFFA: the upper bytes, then lower halves 0xF with 0x5, and 0x1 with 0xA.
    assert stored.tolist() == [0x7F, 0x80, 0x00, 0xFF, 0x5F, 0xA1] and float(scale) == 1.0


@pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))
@pytest.mark.parametrize("isa", native.instruction_sets() or ["none"])
@pytest.mark.parametrize("d", [2, 30, 66, 256])
@pytest.mark.parametrize("bits", [8, 12])
def test_kernels_read_what_is_packed_and_pack_what_is_new(
    bits: int, d: int, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass over packed keys and values equals one over the same numbers as floats that does not see the new token."""
    monkeypatch.setenv("FASTCAR_KERNELS_ISA", isa)
    toy, new = Toy(d=d, replay=False), 38
    x, cos, sin, _ = inputs(toy)
    mask = torch.ones(toy.rows, toy.slots, dtype=torch.bool)
    mask[:, new] = False
    at, memory = native.Slots(new, new + 1, 17, new), {"aligned": toy.keys.clone()}
    for name in ("key", "value"):
        stored, scales = packed(getattr(toy, f"{name}s"), bits)
        memory |= {f"{name}s": stored, f"{name}_scales": scales}
        setattr(toy, f"{name}s", unpacked(stored) * scales[..., None])
    want, got = x.clone(), x.clone()
    toy.native()(want, cos, sin, at, mask=mask)
    heads = {"heads": toy.heads, "kv_heads": toy.kv_heads}
    run = native.DecoderPass(toy.blocks, toy.norm, 1e-6, **heads, **memory, outputs=None, start=toy.start)
    run(got, cos, sin, at, mask=mask)
    assert_close("float32", got, want.double())
    for name in ("key", "value"):
        scale = memory[f"{name}_scales"][:, :, :, new, None]
        off = unpacked(memory[f"{name}s"])[:, :, :, new] * scale - getattr(toy, f"{name}s")[:, :, :, new]
        assert bool((off.abs() <= 0.52 * scale).all())


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("kv_dtype", KV_BITS)
def test_memory_is_what_the_plan_says(kv_dtype: str, window: int | None) -> None:
    spec, bits = tiny_model().spec, KV_BITS[kv_dtype]
    rows, frames, prompt, n = 2, 3, 5, spec.tokens_per_frame
    lengths = torch.full((rows,), prompt)
    cache = KVCache(spec.decoder, lengths, prompt, frames * n - 1, n, torch.bfloat16, window, 4, bits)
    asked = Demand(rows, frames, prompt, window, 4, bits)
    assert cache.nbytes == cache_bytes(spec, 2, asked, replays=False)[0]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(RequestError, match="kv_dtype is 'int4', allowed: 'auto', 'int8', 'int12'"):
        trace(load("mini"), ["a red ball on the grass"], torch.zeros(1, 64, 2).long(), tau=None, kv_dtype="int4")
