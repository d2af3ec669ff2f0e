"""The laws of the step loop; what a pass computes is held in test_executors."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from support.tiny import tiny_model

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings, Step, Watch
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.inputs import Inputs
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.errors import RequestError
from fastcar_cli.models.sampling import SamplingSettings

PROMPTS = [[1, 4, 5, 2], [1, 6, 7, 8, 2], [1, 2], [1, 2]]


def _codes(videos: int, frames: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(0, 9, (videos, frames * 4, 3), generator=torch.Generator().manual_seed(seed))


def _run(model, prompts, codes, **changes):  # type: ignore[no-untyped-def]
    cfg, tau = changes.pop("cfg", 2.0), changes.pop("tau", "off")
    frames = codes.shape[1] // 4
    decode = Decode.of(
        model,
        prompts,
        DecodeSettings(frames, SamplingSettings(cfg=cfg), ReplayRule(Tau.read(tau)), keep_tas=True, **changes),
        torch.zeros(codes.shape),
    )
    steps = []
    for s in decode.steps(codes, keep_logits=True):
        assert s.logits is not None
        steps.append((s.hidden[:, 0].clone(), s.logits[:, :, 0].clone()))
    return decode, torch.stack([h for h, _ in steps]), torch.stack([x for _, x in steps])


def test_minus_infinity_replays_every_eligible_mlp() -> None:
    model, codes = tiny_model(), _codes(2, 4)
    decode, _, _ = _run(model, PROMPTS, codes, tau="-inf")
    n = codes.shape[1]
    stats = decode.replay.stats(decode.passed)
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

    settings = DecodeSettings(4, SamplingSettings(cfg=2.0), ReplayRule(Tau((0.0,))))
    decode = Decode.of(model, PROMPTS, settings, torch.zeros(codes.shape), Counting())
    for _ in decode.steps(codes):
        pass
    computed = sum(rows for _, rows in calls)
    assert decode.replay is not None
    replayed = int(decode.replay.replayed.sum())
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

    settings = DecodeSettings(4, SamplingSettings(cfg=2.0), ReplayRule(Tau.read("-inf")), executor="torch")
    decode = Decode.of(model, PROMPTS, settings, torch.zeros(codes.shape), Counting())
    for _ in decode.steps(codes):
        pass
    assert len(calls) == 3 * 4


def test_strictly_greater() -> None:
    model, codes = tiny_model(), _codes(2, 3)
    first, _, _ = _run(model, PROMPTS, codes, tau=[0.0, 1e9, 1e9])
    exact = float(first.replay.tas[0, 0, 5])
    equal, _, _ = _run(model, PROMPTS, codes, tau=[exact, 1e9, 1e9])
    below, _, _ = _run(model, PROMPTS, codes, tau=[exact - 1e-4, 1e9, 1e9])
    # Token 5 is the first whose score no earlier replay of this layer's decisions can have changed.
    assert not bool(equal.replay.replayed[0, 0, 5])
    assert bool(below.replay.replayed[0, 0, 5])


def test_what_shares_the_batch_changes_nothing() -> None:
    model = tiny_model()
    noise = torch.stack([uniforms(s, 16, 3) for s in (5, 6)])
    settings = DecodeSettings(4, SamplingSettings(cfg=2.0, top_p=0.9, top_k=6), ReplayRule(Tau((0.0,))))
    both = Decode.of(model, PROMPTS, settings, noise)
    alone = Decode.of(model, [PROMPTS[1], PROMPTS[3]], settings, noise[1:])
    for _ in both.steps():
        pass
    for _ in alone.steps():
        pass
    assert torch.equal(both.codes[1], alone.codes[0])


def test_memory_of_a_window_does_not_grow_with_the_video() -> None:
    model = tiny_model()
    sizes = [
        Decode.of(
            model, PROMPTS, DecodeSettings(f, rule=ReplayRule(Tau((0.0,))), window=3, sinks=1), torch.zeros(2, f * 4, 3)
        )
        for f in (2, 4)
    ]
    assert sizes[0].cache.nbytes == sizes[1].cache.nbytes
    caches = [decode.replay for decode in sizes]
    assert caches[0] is not None and caches[1] is not None and caches[0].nbytes == caches[1].nbytes


def test_neighbours_with_short_prompts_take_no_sinks_from_a_video() -> None:
    model, codes = tiny_model(), _codes(2, 4)
    settings = {"window": 3, "sinks": 4, "tau": 0.0, "cfg": 1.0}
    _, alone, _ = _run(model, [[1, 6, 7, 8, 2]], codes[:1], **settings)
    _, beside, _ = _run(model, [[1, 6, 7, 8, 2], [1, 2]], codes, **settings)
    torch.testing.assert_close(beside[:, 0], alone[:, 0], atol=1e-6, rtol=1e-5)


def test_kernels_that_do_not_go_are_refused() -> None:
    model, codes = tiny_model(), _codes(2, 2)
    for kernels, word in (("graph", "cuda"), ("native", "results of each block"), ("numba", "unknown")):
        decode = Decode.of(
            model, PROMPTS, DecodeSettings(2, SamplingSettings(cfg=2.0), executor=kernels), codes.float()
        )
        decode.observers.watch = cast(Watch, object()) if kernels == "native" else None
        with pytest.raises(RequestError, match=rf"`executor` {kernels}: .*{word}"):
            decode.start()


def test_auto_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    model, codes = tiny_model(), _codes(2, 2)
    monkeypatch.setattr("fastcar_cli.decoding.executors.native.native.unavailable", lambda: "not built: no compiler")
    decode = Decode.of(model, PROMPTS, DecodeSettings(2, SamplingSettings(cfg=2.0)), codes.float())
    decode.start()
    assert (decode.executor_name, decode.why) == ("torch", "not built: no compiler")


def test_decoding_does_not_count_what_building_a_graph_took() -> None:
    decode = Decode.of(
        tiny_model(), PROMPTS, DecodeSettings(2, SamplingSettings(cfg=2.0), executor="torch"), torch.zeros(2, 8, 3)
    )
    # A step says that an hour of it went there.
    steps = decode.steps()
    next(steps)
    decode.clock.capture, before = 0.0, decode.clock.decode
    assert decode.executor is not None
    step = decode.executor.step

    def capturing(inputs: Inputs) -> Step:
        decode.clock.capture += 3600
        return step(inputs)

    decode.executor.step = capturing  # type: ignore[method-assign]
    next(steps)
    assert decode.clock.decode < before - 1800
