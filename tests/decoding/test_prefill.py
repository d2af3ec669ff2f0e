"""Prompts in pieces: the same as at once, by every executor, into every cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from support.cosmos import write_model
from support.tiny import PACKED, tiny_in
from torch import Tensor

from fastcar_cli.checkpoints.memory_plan import Demand, cache_bytes
from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode, begin
from fastcar_cli.decoding.executors import executor as torch_executor
from fastcar_cli.decoding.executors import native as native_executor
from fastcar_cli.decoding.kv_cache import Int8KVCache
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.inputs.prompt import TokenisedClip
from fastcar_cli.kernels import native
from fastcar_cli.models import decoder, load
from fastcar_cli.models.checkpoint import LoadedModel
from fastcar_cli.models.sampling import SamplingSettings

N = 12
CACHES: dict[str, dict[str, Any]] = {
    "all": {},
    "int8": {"kv_dtype": "int8"},
    "window": {"window": 15, "sinks": 2},
    "int8, window": {"kv_dtype": "int8", "window": 15, "sinks": 2},
}
needs_native = pytest.mark.skipif(native.unavailable() is not None, reason="no native kernels")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LoadedModel]:
    """One network with text vectors and one without, as floats and in int8."""
    found = {}
    for name, source in (("Cosmos-Predict1-4B", 0), ("Cosmos-Predict1-5B-Video2World", 64)):
        folder = write_model(tmp_path_factory.mktemp("models"), name, source)
        for form in ("floats", "int8"):
            model = load(folder, "float32", size=(48, 64))
            if form == "int8":
                stored = PACKED["int8"].on(model.network)
                state = model.network.state_dict()
                weights = {k: v for key, tensor in state.items() for k, v in stored.stored(key, tensor).items()}
                stored.use().load_state_dict(weights, assign=True)
            found[f"{'text' if source else 'plain'} {form}"] = model
    return found


def decode_of(model: LoadedModel, runs: str, samples: int = 1, **options: Any) -> Decode:
    source = model.network.spec.decoder.source
    lead, generator = [model.network.spec.codes] * bool(source), torch.Generator().manual_seed(0)
    ids = torch.randint(48, (2 * N,), generator=generator).tolist()
    text = torch.randn(20, source, generator=generator).numpy() if source else None
    clip = TokenisedClip((*lead, *ids), text=text)
    settings = DecodeSettings(
        2, SamplingSettings(cfg=1.0, temperature=0.0), ReplayRule(Tau((0.0,))), executor=runs, **options
    )
    return begin(model, [clip] * samples, None, settings)[0]


def left(decode: Decode) -> list[Tensor]:
    """All that the prefill leaves."""
    hidden = decode.prefill()
    assert decode.replay is not None
    older = getattr(decode.cache, "older", ())
    return [hidden, decode.cache.k, decode.cache.v, decode.cache.aligned, decode.replay.outputs, *older]


def close(found: list[Tensor], wanted: list[Tensor], limit: float) -> None:
    for a, b in zip(found, wanted, strict=True):
        # An int8 number may be rounded to the next one.
        difference = (a.float() - b.float()).abs()
        assert not a.numel() or float(difference.max()) <= (1 if a.dtype is torch.int8 else limit)


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("kind", ["plain", "text"])
def test_pieces_give_what_all_at_once_does(
    models: dict[str, LoadedModel], monkeypatch: pytest.MonkeyPatch, kind: str, cache: str
) -> None:
    model = models[f"{kind} floats"]
    whole = left(decode_of(model, "torch", **CACHES[cache]))
    monkeypatch.setattr(torch_executor, "PREFILL_TOKENS", 7)
    close(left(decode_of(model, "torch", **CACHES[cache])), whole, 1e-5)


@needs_native
@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("kind", ["plain", "text"])
def test_native_pieces_of_packed_weights(
    models: dict[str, LoadedModel], monkeypatch: pytest.MonkeyPatch, kind: str, cache: str
) -> None:
    """Inputs of products are rounded to 16 bits, and all is the same however long the pieces are."""
    model = models[f"{kind} int8"]
    whole = left(decode_of(model, "native", **CACHES[cache]))
    close(whole, left(decode_of(model, "torch", **CACHES[cache])), 2e-3)
    monkeypatch.setattr(native_executor, "PREFILL_PASS", 7)
    close(left(decode_of(model, "native", **CACHES[cache])), whole, 0)


@needs_native
def test_padded_texts_of_packed_weights_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    texts, noise = [[1, 4, 5, 2, 6], [1, 4, 5, 3, 7, 2, 8, 9, 3], [1, 4, 5, 2]], torch.full((3, 8, 3), 0.5)
    settings = DecodeSettings(2, SamplingSettings(cfg=1.0), ReplayRule(Tau((0.0,))))
    native_settings, torch_settings = (replace(settings, executor=name) for name in ("native", "torch"))
    found = []
    for tokens, chosen in ((512, torch_settings), (512, native_settings), (3, native_settings)):
        monkeypatch.setattr(torch_executor, "PREFILL_TOKENS", tokens)
        decode = Decode.of(tiny_in("int8"), texts, chosen, noise)
        hidden, keys, values, *_ = left(decode)
        parts = [x[:, row, :, pad:] for x in (keys, values) for row, pad in enumerate(decode.prompts.pad.tolist())]
        found.append([hidden, *parts])
    close(found[0], found[1], 2e-3)
    close(found[1], found[2], 1e-5)


@needs_native
@pytest.mark.parametrize("kind", ["plain", "text"])
def test_samples_of_one_input_have_its_prefill(models: dict[str, LoadedModel], kind: str) -> None:
    one, three = (left(decode_of(models[f"{kind} int8"], "native", samples)) for samples in (1, 3))
    assert torch.equal(three[0], one[0].expand(3, -1))
    for found, wanted in zip(three[1:], one[1:], strict=True):
        assert torch.equal(found, wanted.expand_as(found))


@pytest.mark.parametrize("runs", ["torch", pytest.param("native", marks=needs_native)])
@pytest.mark.parametrize("kind", ["plain", "text"])
@pytest.mark.parametrize("recent", [N, 5])
def test_a_prompt_s_frames_are_int8_once_they_are_not_recent(
    models: dict[str, LoadedModel], monkeypatch: pytest.MonkeyPatch, kind: str, runs: str, recent: int
) -> None:
    monkeypatch.setattr(decoder, "MOST_RECENT", recent)
    exact, rounded = (decode_of(models[f"{kind} floats"], runs, **CACHES[cache]) for cache in ("all", "int8"))
    cache, spec = rounded.cache, rounded.model.spec
    assert isinstance(cache, Int8KVCache)
    for demand, decode in (
        (Demand(1, 2, cache.padded, kv_dtype=kv), d) for kv, d in (("auto", exact), ("int8", rounded))
    ):
        assert decode.cache.nbytes == cache_bytes(spec, 4, demand)[0]
    codes = torch.randint(48, (1, 2 * N, 1), generator=torch.Generator().manual_seed(1))
    hidden = []
    for decode in (exact, rounded):
        decode.draws.give(codes)
        with torch.inference_mode():
            hidden.append(torch.stack([step.hidden.float().clone() for step in decode.steps(codes)]))
    # Of 4 N tokens the last is never an input.
    first, last = cache.padded - 2 * N, cache.padded + 2 * N - 1 - (recent + 1)
    for floats, (numbers, scales, means) in zip((exact.cache.k, exact.cache.v), cache.older.pairs(), strict=True):
        assert numbers.shape[3] == last - first
        wide = numbers * scales[..., None] + means[:, :, :, None]
        assert float((wide - floats[:, :, :, first:last]).norm() / floats.norm()) < 0.01
    same, other = hidden[0][0], (hidden[0] - hidden[1])[1:]
    assert torch.equal(same, hidden[1][0])
    assert 0 < float(other.norm() / hidden[0].norm()) < 0.01


@pytest.mark.parametrize("form", ["floats", "int8"])
def test_progress_ends_at_its_total(models: dict[str, LoadedModel], form: str) -> None:
    heard: list[tuple[int, int]] = []
    decode = decode_of(models[f"plain {form}"], "auto")
    decode.observers.on_prefill = lambda done, total: heard.append((done, total))
    decode.prefill()
    assert heard == sorted(heard) and heard[-1][0] == heard[-1][1] and len(heard) >= 2
