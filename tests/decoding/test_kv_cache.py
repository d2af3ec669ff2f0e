"""Keys and values in int8: how far rounding is off, where it is read, and that memory is what a plan says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from support.native_toys import NativePass, Slots, Toy, assert_close, inputs, random
from support.tiny import tiny_model

from fastcar_cli.checkpoints.memory_plan import Demand, cache_bytes
from fastcar_cli.config import choices
from fastcar_cli.decoding import trace
from fastcar_cli.decoding.kv_cache import Int8KVCache, KVCache, packed
from fastcar_cli.decoding.prompt_rows import PromptRows
from fastcar_cli.errors import RequestError
from fastcar_cli.kernels import native
from fastcar_cli.models import load


@given(arrays("float32", (3, 10), elements=st.floats(-1e6, 1e6, width=32)).map(torch.from_numpy))
def test_a_number_is_at_most_half_a_step_off(x: torch.Tensor) -> None:
    numbers, scale = packed(x)
    step = x.abs().amax(-1, keepdim=True) / 127
    assert numbers.dtype == torch.int8 and int(numbers.abs().max()) <= 127
    assert bool(((numbers * scale[:, None] - x).abs() <= 0.501 * step + 1e-27).all())


@pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))
@pytest.mark.parametrize("isa", native.instruction_sets() or ["none"])
@pytest.mark.parametrize("cache", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("d", [2, 30, 66, 256])
def test_kernels_read_older_tokens_and_round_the_one_that_leaves(
    d: int, cache: torch.dtype, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass with older tokens equals one over the same numbers as floats, in slots after the others."""
    monkeypatch.setenv("FASTCAR_KERNELS_ISA", isa)
    toy, first, count = Toy(d=d, replay=False, cache=cache), 21, 19
    x, cos, sin, at = inputs(toy)
    leaving = {name: getattr(toy, name)[:, :, :, at.slot].float() for name in ("keys", "values")}
    parts: dict[str, torch.Tensor] = {}
    for seed, name in enumerate(("keys", "values")):
        part = name.removesuffix("s")
        mean = random(toy.layers, toy.rows, toy.kv_heads, d, seed=90 + seed)
        numbers, scales = packed(getattr(toy, name)[:, :, :, first:].float() - mean[:, :, :, None])
        parts |= {name: numbers, f"older_{part}_scales": scales, f"{part}_means": mean}
    older = {name if "_" in name else f"older_{name}": part for name, part in parts.items()}
    want, got = x.clone(), x.clone()
    mine = {name: getattr(toy, name)[:, :, :, :first].contiguous() for name in ("keys", "values")}
    run = NativePass(toy, {**mine, "aligned": mine["keys"], "outputs": None}, older)
    run(got, cos, sin, Slots(20, first, 17, 20, older=count - 2, moved_to=count - 1))

    for name in ("keys", "values"):
        part = name.removesuffix("s")
        scales, means = older[f"older_{part}_scales"], older[f"{part}_means"]
        wide = older[f"older_{name}"] * scales[..., None] + means[:, :, :, None]
        memory = torch.cat([getattr(toy, name)[:, :, :, :first].float(), wide[:, :, :, : count - 2]], 3)
        setattr(toy, name, memory)
        off = wide[:, :, :, count - 1] - leaving[name]
        assert bool((off.abs() <= 0.52 * scales[:, :, :, count - 1, None] + 1e-6).all())
    toy.slots, toy.cache = first + count - 2, torch.float32
    toy.native()(want, cos, sin, Slots(20, toy.slots, 17, 20))
    if cache is torch.float32:
        # Queries and weights of softmax are coded in 16 bits, as inputs of products with int8 are.
        assert_close("int8", got, want.double())
    else:
        # The new key and value are rounded to bfloat16 in one of the two only.
        assert float((got - want).norm() / want.norm()) < 0.01


@pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))
def test_what_is_not_finite_shows() -> None:
    toy = Toy(replay=False)
    x, cos, sin, _ = inputs(toy)
    shape = (toy.layers, toy.rows, toy.kv_heads)
    numbers, scales, means = (
        torch.zeros(2, *shape, 3, toy.d, dtype=torch.int8),
        torch.zeros(2, *shape, 3),
        torch.zeros(2, *shape, toy.d),
    )
    names = ("older_keys", "older_values", "older_key_scales", "older_value_scales", "key_means", "value_means")
    older = dict(zip(names, (*numbers, *scales, *means), strict=True))
    toy.values[0, 0, :, 20, 5], toy.values[0, 1, :, 20, 5] = float("nan"), float("inf")
    memory = {"keys": toy.keys, "values": toy.values, "aligned": toy.keys, "outputs": None}
    run = NativePass(toy, memory, older)
    run(x, cos, sin, Slots(20, 21, 17, 20, older=0, moved_to=1))
    assert bool(x.isfinite().all())
    run(x, cos, sin, Slots(21, 22, 17, 21, older=2, moved_to=-1))
    assert not bool(x.isfinite().any())


@pytest.mark.parametrize("window", [None, 2, 7])
@pytest.mark.parametrize("frames", [1, 3])
@pytest.mark.parametrize("kv_dtype", choices.values(choices.KVDtype))
def test_memory_is_what_the_plan_says(kv_dtype: str, frames: int, window: int | None) -> None:
    model = tiny_model().to(torch.bfloat16)
    rows, prompt, tokens = 2, 5, frames * model.spec.tokens_per_frame
    prompts = PromptRows.of(model, [[1] * prompt] * rows, guided=False)
    kind = Int8KVCache if kv_dtype == "int8" else KVCache
    cache = kind(model, prompts, tokens, tokens, window, 4)
    asked = Demand(rows, frames, prompt, window, 4, kv_dtype)
    assert cache.nbytes == cache_bytes(model.spec, 2, asked)[0]


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(RequestError, match="kv_dtype is 'int4', allowed: 'auto', 'int8'"):
        trace(load("mini"), ["a red ball on the grass"], torch.zeros(1, 64, 2).long(), tau=None, kv_dtype="int4")
