"""The step loop against a plain float64 loop written from the formulas, and its own laws."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import decode as reference

from fastcar_cli.decoding.engine import Decode, DecodeSettings
from fastcar_cli.decoding.sampling import SamplingSettings, uniforms

PROMPTS = [[1, 4, 5, 2], [1, 6, 7, 8, 2], [1, 2], [1, 2]]


def _codes(videos: int, frames: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, 9, (videos, frames * 4, 3), generator=torch.Generator().manual_seed(seed))


def _run(model, prompts, codes, **changes):  # type: ignore[no-untyped-def]
    cfg = changes.pop("cfg", 2.0)
    frames = codes.shape[1] // 4
    decode = Decode(
        model,
        prompts,
        DecodeSettings(frames, SamplingSettings(cfg=cfg), keep_tas=True, **changes),
        torch.zeros(codes.shape),
    )
    steps = [(s.hidden.clone(), s.logits.clone()) for s in decode.steps(codes, keep_logits=True)]
    return decode, torch.stack([h for h, _ in steps]), torch.stack([x for _, x in steps])


@pytest.mark.parametrize("kernels", ["torch", "numba"])
@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"taus": (0.0, 0.0, 0.0)},
        {"taus": (-0.3, None, 0.2)},
        {"taus": (0.0, 0.0, 0.0), "tas": "released"},
        {"taus": (0.0, 0.0, 0.0), "pairs": True},
        {"taus": (float("-inf"),) * 3},
        {"taus": (float("-inf"),) * 3, "max_age": 1},
        {"taus": (-0.2, 0.1, 0.0), "pairs": True, "max_age": 2},
        {"window": 3, "sinks": 1},
        {"window": 6, "sinks": 2, "taus": (0.0, 0.0, 0.0)},
        {"window": 1, "sinks": 0},
        {"window": 50, "sinks": 2},
    ],
)
def test_engine_equals_plain_loop(kernels: str, kv_heads: int, changes: dict) -> None:
    model = tiny_model(kv_heads=kv_heads)
    codes = _codes(2, 4)
    want = reference(copy.deepcopy(model), PROMPTS, codes, cfg=2.0, **changes)
    decode, hidden, logits = _run(model, PROMPTS, codes, kernels=kernels, **changes)
    assert float((torch.stack(want.hidden) - hidden).abs().max()) < 1e-5
    expected = torch.stack(want.logits).permute(0, 2, 1, 3)
    assert float((expected - logits).abs().max()) < 1e-5 * float(expected.abs().max())
    if changes.get("taus"):
        replayed = decode.replay.replayed  # type: ignore[union-attr]
        assert all(bool(replayed[key]) == value for key, value in want.replayed.items())
        for key, value in want.tas.items():
            assert abs(float(decode.replay.tas[key]) - value) < 1e-5  # type: ignore[union-attr,index]


def test_minus_infinity_replays_every_eligible_mlp() -> None:
    model, codes = tiny_model(), _codes(2, 4)
    decode, _, _ = _run(model, PROMPTS, codes, taus=(float("-inf"),) * 3)
    n = codes.shape[1]
    stats = decode.replay.stats(decode.passes)  # type: ignore[union-attr]
    assert stats.ratio == pytest.approx((n - 1 - 4) / (n - 1))
    assert stats.eligible_ratio == 1.0
    assert stats.by_frame == [0.0, 1.0, 1.0, 1.0]


def test_replayed_rows_never_reach_the_backend() -> None:
    model, codes = tiny_model(), _codes(2, 4)
    calls: list[tuple[int, int]] = []

    class Counting:
        name = "counting"

        def mlp(self, layer, x, rows):  # type: ignore[no-untyped-def]
            calls.append((layer, len(x)))
            return model.llm.layers[layer].mlp(x)

    settings = DecodeSettings(4, SamplingSettings(cfg=2.0), taus=(0.0, 0.0, 0.0))
    decode = Decode(model, PROMPTS, settings, torch.zeros(codes.shape), Counting())
    for _ in decode.steps(codes):
        pass
    computed = sum(rows for _, rows in calls)
    replayed = int(decode.replay.replayed.sum())  # type: ignore[union-attr]
    assert replayed > 0
    assert computed == 3 * 4 * (codes.shape[1] - 1) - replayed


def test_all_rows_replaying_calls_no_mlp_after_the_first_frame() -> None:
    model, codes = tiny_model(), _codes(2, 4)
    calls = []

    class Counting:
        name = "counting"

        def mlp(self, layer, x, rows):  # type: ignore[no-untyped-def]
            calls.append(layer)
            return model.llm.layers[layer].mlp(x)

    settings = DecodeSettings(4, SamplingSettings(cfg=2.0), taus=(float("-inf"),) * 3)
    decode = Decode(model, PROMPTS, settings, torch.zeros(codes.shape), Counting())
    for _ in decode.steps(codes):
        pass
    assert len(calls) == 3 * 4


def test_strictly_greater() -> None:
    model, codes = tiny_model(), _codes(2, 3)
    first, _, _ = _run(model, PROMPTS, codes, taus=(0.0, 1e9, 1e9))
    exact = float(first.replay.tas[0, 0, 5])  # type: ignore[union-attr,index]
    equal, _, _ = _run(model, PROMPTS, codes, taus=(exact, 1e9, 1e9))
    below, _, _ = _run(model, PROMPTS, codes, taus=(exact - 1e-4, 1e9, 1e9))
    # Token 5 is the first whose score no earlier replay of this layer's decisions can have changed.
    assert not bool(equal.replay.replayed[0, 0, 5])  # type: ignore[union-attr]
    assert bool(below.replay.replayed[0, 0, 5])  # type: ignore[union-attr]


def test_what_shares_the_batch_changes_nothing() -> None:
    model = tiny_model()
    noise = torch.stack([uniforms(s, 16, 3) for s in (5, 6)])
    settings = DecodeSettings(4, SamplingSettings(cfg=2.0, top_p=0.9, top_k=6), taus=(0.0,) * 3)
    both = Decode(model, PROMPTS, settings, noise)
    alone = Decode(model, [PROMPTS[1], PROMPTS[3]], settings, noise[1:])
    for _ in both.steps():
        pass
    for _ in alone.steps():
        pass
    assert torch.equal(both.codes[1], alone.codes[0])


def test_memory_of_a_window_does_not_grow_with_the_video() -> None:
    model = tiny_model()
    sizes = [
        Decode(model, PROMPTS, DecodeSettings(f, window=3, sinks=1, taus=(0.0,) * 3), torch.zeros(2, f * 4, 3))
        for f in (2, 4)
    ]
    assert sizes[0].cache.nbytes == sizes[1].cache.nbytes
    assert sizes[0].replay.nbytes == sizes[1].replay.nbytes  # type: ignore[union-attr]


@settings(max_examples=15, deadline=None)
@given(
    tau=st.floats(-2, 2),
    window=st.one_of(st.none(), st.integers(1, 12)),
    sinks=st.integers(0, 2),
    pairs=st.booleans(),
    max_age=st.one_of(st.none(), st.integers(1, 3)),
    seed=st.integers(0, 50),
)
def test_any_setting_equals_plain_loop(tau, window, sinks, pairs, max_age, seed) -> None:  # type: ignore[no-untyped-def]
    model = tiny_model(seed)
    codes = _codes(1, 3, seed)
    prompts = [[1, 4, 2], [1, 2]]
    changes = {"taus": (tau,) * 3, "window": window, "sinks": sinks, "pairs": pairs, "max_age": max_age}
    want = reference(copy.deepcopy(model), prompts, codes, cfg=1.5, **changes)
    decode, hidden, _ = _run(model, prompts, codes, cfg=1.5, **changes)
    assert float((torch.stack(want.hidden) - hidden).abs().max()) < 1e-5
    if pairs:
        replayed = decode.replay.replayed  # type: ignore[union-attr]
        assert torch.equal(replayed[:, 0], replayed[:, 1])
