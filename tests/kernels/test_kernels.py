"""The Triton kernels against plain torch, through Triton's interpreter, and compiled for Hopper without a GPU.

`TRITON_INTERPRET=1` has to be set before triton is first imported, hence the environment in conftest.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.cosmos import TOKENIZER
from support.ivideogpt import write_model
from support.tiny import tiny_spec
from torch import Tensor

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding import engine
from fastcar_cli.decoding.batch import Batch, DecodeSettings
from fastcar_cli.decoding.drafts.drafts import DraftSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.executors import self_check
from fastcar_cli.decoding.executors.executor import Passed
from fastcar_cli.decoding.executors.graph import GraphExecutor
from fastcar_cli.decoding.executors.plain import PlainExecutor
from fastcar_cli.decoding.executors.self_check import difference
from fastcar_cli.decoding.replay.replay import ReplayRule, temporal_attention_score
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.errors import RunError
from fastcar_cli.models import load
from fastcar_cli.models.cosmos.checkpoint import cosmos_decoder
from fastcar_cli.models.cosmos.network import CosmosSpec
from fastcar_cli.models.decoder import Axes, DecoderSpec, rotate
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.models.vila_u.network import ModelSpec, VideoModel
from fastcar_cli.models.weight_format import WeightFormat
from fastcar_cli.weights.formats import PACKED

pytest.importorskip("triton", reason="triton is not installed: pip install triton (Linux)")

from fastcar_cli.kernels.gpu import append as ka
from fastcar_cli.kernels.gpu import attend as kt
from fastcar_cli.kernels.gpu import linear as kl
from fastcar_cli.kernels.gpu import mlp as km
from fastcar_cli.kernels.gpu import norm as kn

pytestmark = pytest.mark.usefixtures("interpreter")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Triton's interpreter cuts float32 off to bfloat16 where hardware rounds, so a result can be a step lower.
BOUND = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
DTYPES = pytest.mark.parametrize("dtype", list(BOUND), ids=["float32", "bfloat16"])
NAN = float("nan")


def _close(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    """Within the bound of the dtype, relative to the largest value. NaN is within no bound."""
    bound = BOUND[dtype] * max(1.0, float(want.float().abs().max()))
    assert float((got.float() - want.float()).abs().max()) <= bound


def _random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + 7919 * len(shape) + sum(shape))
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


@DTYPES
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (2, 100), (5, 33)])
def test_norms(rows: int, width: int, dtype: torch.dtype) -> None:
    x, w, b = (_random(*s, dtype=dtype, seed=i) for i, s in enumerate([(rows, width), (width,), (width,)]))
    got = kn.norm(x, w, None, 1e-6, torch.empty_like(x))
    _close(got, F.rms_norm(x.float(), (width,), None, 1e-6).to(dtype) * w, dtype)
    got = kn.norm(x + 3, w, b, 1e-5, torch.empty_like(x))
    _close(got, F.layer_norm(x + 3, (width,), w, b, 1e-5), dtype)


@DTYPES
def test_norms_of_the_heads_of_queries_and_keys(dtype: torch.dtype) -> None:
    lines, heads, kv, d = 3, 4, 2, 10
    qkv, q, k = (_random(*s, dtype=dtype, seed=i) for i, s in enumerate([(lines, (heads + 2 * kv) * d), (d,), (d,)]))
    parts = qkv.clone().view(lines, -1, d).split([heads, kv, kv], 1)
    want = [F.rms_norm(x.float(), (d,), None, 1e-5).to(dtype) * w for x, w in zip(parts, (q, k), strict=False)]
    kn.norm_heads(qkv, q, k, 1e-5, heads, kv)
    _close(qkv, torch.cat([*want, parts[2]], 1).flatten(1), dtype)


@pytest.mark.slow
@DTYPES
@pytest.mark.parametrize(("rows", "inner", "sizes"), [(2, 33, [40, 17, 5]), (17, 64, [32, 32]), (3, 1100, [66, 17, 5])])
def test_linear_maps_of_ragged_shapes(rows: int, inner: int, sizes: list[int], dtype: torch.dtype) -> None:
    x = _random(rows, inner, dtype=dtype)
    weights = [_random(n, inner, dtype=dtype, seed=i) * inner**-0.5 for i, n in enumerate(sizes)]
    biases = [_random(n, dtype=dtype, seed=i) for i, n in enumerate(sizes)]
    out = torch.full((rows, sum(sizes)), NAN, device=DEVICE, dtype=dtype)
    plain = torch.cat([F.linear(x, w) for w in weights], 1)
    _close(kl.linear(x, [kl.Matrix(w) for w in weights], out), plain, dtype)
    want = torch.cat([F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], 1)
    matrices = [kl.Matrix(w, None, b) for w, b in zip(weights, biases, strict=True)]
    _close(kl.linear(x, matrices, out, gelu=True), F.gelu(want), dtype)
    residual = _random(rows, sum(sizes), dtype=dtype, seed=9)
    _close(kl.linear(x, matrices, residual.clone(), add=True), residual + want, dtype)


@pytest.mark.slow
@DTYPES
@pytest.mark.parametrize("form", list(PACKED))
@pytest.mark.parametrize(("rows", "inner", "outputs"), [(2, 96, 40), (1, 32, 16), (17, 320, 33), (2, 2080, 70)])
def test_linear_maps_of_few_bits(rows: int, inner: int, outputs: int, form: str, dtype: torch.dtype) -> None:
    x, weight = _random(rows, inner, dtype=dtype), _random(outputs, inner, dtype=torch.float32) * inner**-0.5
    numbers, scale = PACKED[form].quantise(weight)
    # Each output has a scale of another size.
    scale *= torch.linspace(0.5, 2, outputs, device=DEVICE).to(scale.dtype).view(-1, *[1] * (scale.dim() - 1))
    want = F.linear(x.float(), PACKED[form].widen(numbers, scale, torch.float32))
    out = torch.full((rows, outputs), NAN, device=DEVICE, dtype=dtype)
    _close(kl.linear(x, [kl.Matrix(numbers, scale)], out), want, dtype)


class _Layer:
    """One MLP with a replay cache of 3 positions at token 7 (position 1)."""

    def __init__(self, rows: int, width: int, wide: int, dtype: torch.dtype) -> None:
        self.h, self.x = _random(rows, width, dtype=dtype), _random(rows, width, dtype=dtype, seed=1)
        self.gate = _random(wide, width, dtype=dtype, seed=2) * width**-0.5
        self.up = _random(wide, width, dtype=dtype, seed=3) * width**-0.5
        self.down = _random(width, wide, dtype=dtype, seed=4) * wide**-0.5
        self.cache = _random(rows, 3, width, dtype=dtype, seed=5)
        self.flags = torch.zeros(rows, dtype=torch.uint8, device=DEVICE)
        self.t = torch.full((rows,), 7, device=DEVICE)
        self.middle = torch.full((rows, wide), NAN, dtype=dtype, device=DEVICE)
        self.matrices = [kl.Matrix(w) for w in (self.gate, self.up, self.down)]

    def plain(self) -> Tensor:
        return F.linear(F.silu(F.linear(self.h, self.gate)) * F.linear(self.h, self.up), self.down)

    def run(self, replay: bool = True) -> Tensor:
        cached = km.Cached(self.flags, self.t, self.cache) if replay else None
        return km.mlp(self.h, self.matrices, self.x.clone(), self.middle, cached)


@pytest.mark.slow
@DTYPES
@pytest.mark.parametrize(("rows", "width", "wide"), [(1, 16, 24), (2, 40, 70), (18, 16, 16), (2, 70, 1100)])
def test_mlp_with_every_kind_of_row(rows: int, width: int, wide: int, dtype: torch.dtype) -> None:
    layer = _Layer(rows, width, wide, dtype)
    want = layer.plain()
    _close(layer.run(replay=False), layer.x + want, dtype)
    replays = torch.arange(rows, device=DEVICE) % 2 == 0
    for flags in (torch.zeros_like(replays), replays):
        layer.flags[:] = flags
        before = layer.cache.clone()
        used = torch.where(flags[:, None], before[:, 1], want)
        _close(layer.run(), layer.x + used, dtype)
        _close(layer.cache[:, 1], used, dtype)
        assert torch.equal(layer.cache[flags, 1], before[flags, 1])
        assert torch.equal(layer.cache[:, [0, 2]], before[:, [0, 2]])


@DTYPES
@pytest.mark.parametrize("form", list(PACKED))
def test_mlp_of_few_bits(form: str, dtype: torch.dtype) -> None:
    layer = _Layer(3, 64, 96, dtype)
    layer.matrices = [kl.Matrix(*PACKED[form].quantise(w)) for w in (layer.gate, layer.up, layer.down)]
    gate, up, down = (PACKED[form].widen(*m.tensors, torch.float32) for m in layer.matrices)
    h = layer.h.float()
    want = layer.x + F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), down)
    layer.flags[:] = torch.tensor([0, 1, 0])
    want[1] = layer.x[1] + layer.cache[1, 1]
    _close(layer.run(), want, dtype)


@DTYPES
def test_weights_are_not_touched_where_every_row_replays(dtype: torch.dtype) -> None:
    layer = _Layer(2, 40, 70, dtype)
    for weight in (layer.gate, layer.up, layer.down, layer.h):
        weight.fill_(NAN)
    layer.flags[:] = 1
    before = layer.cache.clone()
    _close(layer.run(), layer.x + before[:, 1], dtype)
    assert torch.equal(layer.cache, before)
    assert bool(layer.middle.isnan().all()), "the gated product was written"
    layer.flags[1] = 0
    got = layer.run()
    _close(got[0], layer.x[0] + before[0, 1], dtype)
    assert bool(got[1].isnan().all()), "the weights of a computed row were not read"


@pytest.mark.skipif(DEVICE == "cuda", reason="counts in the interpreter; on a GPU see the compiled code below")
def test_no_weight_is_loaded_where_every_row_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = _Layer(2, 40, 70, torch.float32)
    (out, inner), size = (kl.SMALL.out, kl.SMALL.inner), lambda n, by: -(-n // by)
    wide, narrow = size(70, out) * size(40, inner), size(40, out) * size(70, inner)
    loads = []
    real = kl.add_tile

    def counting(*arguments: object) -> object:
        loads.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(kl, "add_tile", counting)
    monkeypatch.setattr(km, "add_tile", counting)
    for flags, tiles in (([0, 0], 1), ([1, 0], 1), ([1, 1], 0)):
        loads.clear()
        layer.flags[:] = torch.tensor(flags, dtype=torch.uint8)
        layer.run()
        assert len(loads) == tiles * (2 * wide + narrow), flags


def _caches(rows: int, kv: int, slots: int, d: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    return _random(rows, kv, slots, d, dtype=dtype, seed=3), _random(rows, kv, slots, d, dtype=dtype, seed=4)


@DTYPES
@pytest.mark.parametrize("released", [False, True], ids=["attention", "released"])
@pytest.mark.parametrize("pairs", [False, True], ids=["row", "pair"])
@pytest.mark.parametrize(("heads", "kv", "d", "t"), [(3, 3, 6, 5), (4, 2, 8, 9), (4, 1, 4, 2)])
def test_append_scores_and_decides(
    heads: int, kv: int, d: int, t: int, pairs: bool, released: bool, dtype: torch.dtype
) -> None:
    videos, padded, frame, tokens = 2, 6, 4, 11
    rows = 2 * videos
    qkv = _random(rows, (heads + 2 * kv) * d, dtype=dtype)
    q, k, v = qkv.view(rows, -1, d).split([heads, kv, kv], 1)
    keys, values = _caches(rows, kv, padded + tokens, d, dtype)
    want_keys, want_values = keys.clone(), values.clone()
    angle = _random(tokens, rows, d // 2, dtype=torch.float32, seed=5)
    cos, sin = (torch.cat([f(angle)] * 2, -1).to(dtype) for f in (torch.cos, torch.sin))
    rq, rk = rotate(q, cos[t][:, None], sin[t][:, None]), rotate(k, cos[t][:, None], sin[t][:, None])
    want_keys[:, :, padded + t], want_values[:, :, padded + t] = rk, v
    own = temporal_attention_score((q if released else rq).float(), keys[:, :, padded + t - frame].float())
    gate = own.view(2, -1).mean(0).repeat(2) if pairs else own
    # In the widest gap between two scores, where rounding decides nothing; one row never replays, one always.
    ranked = gate.sort().values
    widest = int(ranked.diff().argmax())
    thresholds = ranked[widest : widest + 2].mean().repeat(rows)
    thresholds[0], thresholds[1] = float("inf"), float("-inf")
    hit = gate > thresholds
    flags = torch.full((rows,), 7, dtype=torch.uint8, device=DEVICE)
    scores = torch.full((rows,), NAN, device=DEVICE)
    query = torch.empty(rows, heads, d, dtype=dtype, device=DEVICE)
    token = torch.full((rows,), t, device=DEVICE)
    decide = ka.Gate(thresholds, scores, flags, released, pairs)
    ka.append(qkv, query, keys, values, keys, cos, sin, token, ka.Extent(padded, frame), videos, decide)
    _close(query, rq, dtype)
    _close(keys, want_keys, dtype)
    assert torch.equal(values, want_values)
    if t >= frame:
        _close(scores, own, dtype)
        assert flags.tolist() == hit.tolist()


@DTYPES
@pytest.mark.parametrize(("heads", "kv", "d", "t", "chunk"), [(2, 2, 8, 0, 16), (4, 2, 12, 21, 16), (3, 1, 16, 40, 32)])
def test_attention_reads_what_is_there(heads: int, kv: int, d: int, t: int, chunk: int, dtype: torch.dtype) -> None:
    rows, padded, size = 2, 5, 48
    query = _random(rows, heads, d, dtype=dtype)
    keys, values = _caches(rows, kv, size, d, dtype)
    pad = torch.tensor([0, 3], device=DEVICE)
    slot = torch.arange(size, device=DEVICE)
    seen = (slot[None] <= padded + t) & (slot[None] >= pad[:, None])
    grouped = query.view(rows, kv, -1, d)
    want = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=seen[:, None, None]).reshape(rows, -1)
    for cache in (keys, values):
        cache.masked_fill_(~seen[:, None, :, None], NAN)
    chunks = kt.chunks_of(size, chunk)
    scratch = tuple(torch.full((rows, heads, chunks, *s), NAN, device=DEVICE) for s in ((d,), (), ()))
    out = torch.empty(rows, heads * d, dtype=dtype, device=DEVICE)
    token = torch.full((rows,), t, device=DEVICE)
    sinks = torch.zeros_like(pad)
    kt.attend(query, keys, values, pad, sinks, token, ka.Extent(padded, 4), scratch, out, chunk=chunk, block=16)  # type: ignore[arg-type]
    _close(out, want, dtype)


@DTYPES
@pytest.mark.parametrize(("heads", "kv", "inputs"), [(2, 2, 3), (8, 1, 11)])
def test_attention_of_several_inputs_of_a_row(heads: int, kv: int, inputs: int, dtype: torch.dtype) -> None:
    """Each sees the cache up to its own token, also where the queries of a key are more than a tile has."""
    rows, padded, size, d, t = 2, 5, 48, 16, 20
    query = _random(inputs * rows, heads, d, dtype=dtype)
    keys, values = _caches(rows, kv, size, d, dtype)
    pad = torch.tensor([0, 3], device=DEVICE)
    token = (t + torch.arange(inputs, device=DEVICE)).repeat_interleave(rows)
    slot, of = torch.arange(size, device=DEVICE), torch.arange(inputs * rows, device=DEVICE) % rows
    seen = (slot <= padded + token[:, None]) & (slot >= pad[of, None])
    grouped = query.view(inputs * rows, kv, -1, d)
    want = F.scaled_dot_product_attention(grouped, keys[of], values[of], attn_mask=seen[:, None, None]).flatten(1)
    scratch = tuple(torch.full((inputs * rows, heads, 3, *s), NAN, device=DEVICE) for s in ((d,), (), ()))
    out = torch.empty(inputs * rows, heads * d, dtype=dtype, device=DEVICE)
    sinks = torch.zeros_like(pad)
    kt.attend(query, keys, values, pad, sinks, token, ka.Extent(padded, 4), scratch, out, chunk=16)  # type: ignore[arg-type]
    _close(out, want, dtype)


@DTYPES
@pytest.mark.parametrize("seen", [1, 2, 3])
def test_attention_among_depths(seen: int, dtype: torch.dtype) -> None:
    rows, heads, d = 2, 3, 5
    qkv = _random(4, rows, 3 * heads * d, dtype=dtype)
    qkv[seen:] = NAN
    q, k, v = (a.view(seen, rows, heads, d).permute(1, 2, 0, 3) for a in qkv[:seen].split(heads * d, -1))
    want = F.scaled_dot_product_attention(q[:, :, -1:], k, v)
    out = torch.empty(rows, heads * d, dtype=dtype, device=DEVICE)
    _close(kt.attend_depths(qkv, heads, seen, out), want.reshape(rows, -1), dtype)


def _small() -> VideoModel:
    """Two layers of ragged widths, so that a decode through the interpreter takes seconds."""
    torch.manual_seed(0)
    base = tiny_spec()
    spec = ModelSpec(
        **{
            **vars(base),
            "decoder": DecoderSpec(width=20, layers=2, heads=2, kv_heads=1, mlp_width=36, vocab=11, rope_theta=50.0),
            "depth": DepthSpec(width=12, blocks=1, heads=2, depth=3, codes=9, code_width=8, hidden=20),
        }
    )
    model = VideoModel(spec)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0.0, 1.5 * p.shape[-1] ** -0.5) if p.dim() > 1 else p.add_(torch.randn_like(p) * 0.05)
    return model.eval().requires_grad_(False).to(DEVICE)


def _run(tau: Tau, make: Callable[[Decode], Any], frames: int = 3, cfg: float = 1.0) -> tuple[Decode, Tensor]:
    sampling = SamplingSettings(cfg=cfg, top_p=0.9, top_k=6, first_frame_top_p=1.0)
    prompts = [[1, 4, 5, 2], [1, 2]] if cfg != 1.0 else [[1, 4, 5, 2]]
    asked = DecodeSettings(frames, sampling, ReplayRule(tau))
    decode = Decode.of(_small(), prompts, asked, uniforms(5, 4 * frames, 3)[None])
    decode.executor = make(decode)
    return decode, torch.stack([s.hidden[:, 0].clone() for s in decode.steps()])


@pytest.mark.slow
def test_decode_through_the_kernels_equals_plain_torch() -> None:
    """One case; all rules are held in test_executors.py, slowly."""
    tau = Tau((0.0, -0.1))
    plain, want = _run(tau, PlainExecutor)
    kernels, got = _run(tau, lambda decode: GraphExecutor(decode, capture=False))
    _close(got, want, torch.float32)
    assert torch.equal(plain.codes, kernels.codes)
    assert plain.replay is not None and kernels.replay is not None
    assert torch.equal(plain.replay.replayed, kernels.replay.replayed)
    assert bool(plain.replay.replayed.any()) and not bool(plain.replay.replayed[0].all())


@pytest.mark.slow
def test_a_roll_leaves_decisions_as_they_were_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes that fill a context again count for nothing, though a graph writes what it decides."""
    runs = []
    for make in (PlainExecutor, lambda batch: GraphExecutor(batch, capture=False)):
        monkeypatch.setattr(engine, "choose", lambda batch, make=make: (make(batch), "made up"))
        asked = DecodeSettings(3, SamplingSettings(cfg=1.0), ReplayRule(Tau((-math.inf,))), segment=2, keep_tas=True)
        decode = Decode.of(_small(), [[1, 4, 5, 2]], asked, uniforms(5, 12, 3)[None]).run()
        assert decode.rolls == 1 and decode.replay is not None and decode.replay.tas is not None
        runs.append((decode.codes, decode.replay.replayed, decode.replay.tas))
    (codes, want, scores), (other_codes, got, other_scores) = runs
    # The frame that is decoded again replays nothing then, but did before.
    assert torch.equal(codes, other_codes) and torch.equal(want, got) and bool(want[:, :, 4:7].all())
    assert torch.allclose(scores[:, :, 4:7], other_scores[:, :, 4:7], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("slope", "pays"), [(0.02, True), (3.0, False)])
def test_auto_chooses_by_what_passes_of_a_graph_cost(slope: float, pays: bool) -> None:
    asked = list[int]()

    def timer(count: int, run: Callable[[], Passed]) -> tuple[Passed, float]:
        asked.append(count)
        return run(), 1 + slope * (count - 1)

    for _ in range(2):
        settings = DecodeSettings(5, draft=DraftSettings("auto", 4, accept=1.0), sampling=SamplingSettings(cfg=1.0))
        decode = Decode.of(_small(), [[1, 4, 5, 2]], settings, uniforms(5, 20, 3)[None])
        decode.executor = GraphExecutor(decode, 4, capture=False, timer=timer)
        taken = [p.taken for p in decode.run().drafter.passes]
        # Two passes are a trial.
        assert taken.count(4) >= 2 and (taken.count(4) > 2) == pays
    # Each is timed by a few passes, once on a device and at a shape.
    assert {1, 4} <= set(asked) and len(asked) == 3 * len(set(asked))


@pytest.mark.slow
def test_timing_passes_changes_nothing() -> None:
    tau = Tau((0.0, -0.1))
    plain, _ = _run(tau, PlainExecutor)

    settings = replace(plain.settings, draft=DraftSettings("auto", 4))
    decode = Decode.of(_small(), [[1, 4, 5, 2]], settings, uniforms(5, 12, 3)[None])
    decode.executor = GraphExecutor(decode, 4, capture=False, timer=lambda count, run: (run(), 1.0))
    decode.run()
    assert torch.equal(plain.codes, decode.codes) and plain.replay is not None and decode.replay is not None
    assert torch.equal(plain.replay.replayed, decode.replay.replayed)


@pytest.mark.slow
def test_head_norms_and_places_on_three_axes_decode_as_in_plain_torch() -> None:
    """A whole decode of a model without a depth transformer, whose prompt holds frames."""
    torch.manual_seed(0)
    decoder = cosmos_decoder(20, 2, 4, 2, 12, 36, 48, 0, True)
    spec = CosmosSpec("tiny", 33, 25, replace(decoder, axes=Axes((2, 3), 0, (3, 40, 40))), TOKENIZER)
    model = spec.network().eval().requires_grad_(False).to(DEVICE)
    # Embeddings are not drawn when a network is made.
    for weight in (p for p in model.parameters() if p.dim() == 2):
        weight.normal_(0.0, weight.shape[1] ** -0.5)
    sampling = SamplingSettings(cfg=1.0, top_p=0.8, top_p_strict=True)
    asked, runs = DecodeSettings(2, sampling, ReplayRule(Tau((0.0, -0.1)))), []
    for make in (PlainExecutor, lambda decode: GraphExecutor(decode, capture=False)):
        decode = Decode.of(model, [[i % 48 for i in range(12)]], asked, uniforms(5, 12, 1)[None])
        decode.executor = make(decode)
        hidden = torch.stack([s.hidden[:, 0].clone() for s in decode.steps()])
        assert decode.replay is not None
        runs.append((hidden, decode.codes, decode.replay.replayed))
    (want, codes, decisions), (got, other_codes, other_decisions) = runs
    _close(got, want, torch.float32)
    assert torch.equal(codes, other_codes) and torch.equal(decisions, other_decisions)
    assert bool(decisions[:, :, :6].any()) and not bool(decisions.all())


@pytest.mark.slow
def test_delimiters_are_given_in_passes_of_several_tokens(tmp_path: File) -> None:
    network = load(write_model(tmp_path, 1, 3), "float32", DEVICE).network
    layout, runs = network.spec.layout, []
    noise = uniforms(5, 2 * layout.stride, 1)[None]
    for window in (1, 4):
        draft = DraftSettings("jacobi", window) if window > 1 else DraftSettings()
        settings = DecodeSettings(2, SamplingSettings(cfg=1.0), draft=draft)
        decode = Decode.of(network, [[i % 40 for i in range(layout.prompt)]], settings, noise)
        decode.executor = PlainExecutor(decode) if window == 1 else GraphExecutor(decode, window, capture=False)
        runs.append(decode.run().codes)
    assert torch.equal(*runs)
    assert bool((runs[1].view(2, layout.stride)[:, layout.delimiters[0]] == layout.delimiter).all())


@pytest.mark.slow
@pytest.mark.parametrize("form", list(PACKED))
def test_a_step_of_few_bits_equals_plain_torch(form: str) -> None:
    """All of it: blocks, projector and depth transformer, from codes to codes."""
    torch.manual_seed(0)
    decoder = DecoderSpec(width=32, layers=2, heads=2, kv_heads=1, mlp_width=64, vocab=11, rope_theta=50.0)
    depth = DepthSpec(width=32, blocks=1, heads=2, depth=3, codes=9, code_width=32, hidden=32)
    base = tiny_spec()
    spec = replace(base, decoder=decoder, depth=depth, rqvae=replace(base.rqvae, code_width=32))
    drawn, packed = VideoModel(spec), VideoModel(spec)
    kept = WeightFormat(form, torch.float32, blocks=form, projector=form, depth=form).on(packed)
    state = {
        key: value
        for name, tensor in drawn.state_dict().items()
        for key, value in kept.stored(name, tensor if tensor.dim() < 2 else tensor.normal_(0, 0.3)).items()
    }
    kept.use().load_state_dict(state)
    settings = DecodeSettings(2, SamplingSettings(cfg=1.0), ReplayRule(Tau((0.0,))))
    runs = []
    for make in (PlainExecutor, lambda decode: GraphExecutor(decode, capture=False)):
        decode = Decode.of(packed.eval().to(DEVICE), [[1, 4, 5, 2]], settings, uniforms(3, 8, 3)[None])
        decode.executor = make(decode)
        runs.append((torch.stack([s.hidden[:, 0].clone() for s in decode.steps()]), decode.codes))
    (want, codes), (got, other) = runs
    _close(got, want, torch.float32)
    assert torch.equal(codes, other)


@pytest.mark.slow
def test_the_self_check_passes_sound_kernels_and_names_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    check = functools.partial(difference, capture=False, tokens=3)
    batch = Decode.of(_small(), [[1, 4, 5, 2]], DecodeSettings(2, SamplingSettings(cfg=1.0)), torch.zeros(1, 8, 3))
    assert check(batch, 2) is None
    # Passes of one token are as before: only drafts that should be taken back differ.
    advance = GraphExecutor.advance
    monkeypatch.setattr(GraphExecutor, "advance", lambda self, inputs, _: advance(self, inputs, (inputs.count,)))
    assert check(batch, 1) is None
    assert "differ" in str(check(batch, 2))
    # Left as it was, the memory of queries might hold anything, NaN too.
    monkeypatch.setattr("fastcar_cli.decoding.executors.triton_ops.append", lambda qkv, query, *_: query.zero_())
    assert "differ" in str(check(batch))


def test_a_verdict_is_requested_once_and_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: File) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a device")
    asked = []

    def check(batch: Batch, inputs: int) -> str:
        asked.append(batch)
        return "all tokens differ"

    monkeypatch.setattr(self_check, "difference", check)
    batch = Decode.of(_small(), [[1, 2]], DecodeSettings(2, SamplingSettings(cfg=1.0)), torch.zeros(1, 8, 3))
    first, second = self_check.unproven(batch), self_check.unproven(batch)
    assert len(asked) == 1 and first == second
    assert "all tokens differ" in str(first) and str(self_check.verdict_file()) in str(first)


def test_a_full_device_is_no_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: File) -> None:
    def full(batch: Batch, inputs: int) -> str | None:
        raise RunError("a step can't be captured as a CUDA graph") from torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a device")
    monkeypatch.setattr(self_check, "difference", full)
    batch = Decode.of(_small(), [[1, 2]], DecodeSettings(2, SamplingSettings(cfg=1.0)), torch.zeros(1, 8, 3))
    assert "out of memory" in str(self_check.unproven(batch))
    monkeypatch.setattr(self_check, "difference", lambda batch, inputs: None)
    assert self_check.unproven(batch) is None


@pytest.mark.skipif(DEVICE == "cpu", reason="a CUDA graph needs a GPU")
def test_graph_on_a_gpu_equals_its_step() -> None:
    runs = []
    for capture in (False, True):
        decode, hidden = _run(Tau((-0.2, 0.1)), functools.partial(GraphExecutor, capture=capture), frames=4, cfg=2.0)
        runs.append((decode.codes, decode.replay.replayed, hidden))  # type: ignore[union-attr]
    for host, graph in zip(*runs, strict=True):
        assert torch.equal(host, graph)


COMPILE = File(__file__).parent / "compile_kernels.py"


@pytest.mark.slow
def test_kernels_compile_for_hopper_and_branch_before_the_weights() -> None:
    """At the shapes of the 7B model: nothing spilled, 16-byte copies, and no weight before the flags are judged."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, str(COMPILE)], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {k["name"] for k in found} == {
        "_norm_kernel", "_linear_kernel", "_gate_up_kernel", "_down_kernel", "_append_kernel",
        "_attend_kernel", "_combine_kernel", "_depth_kernel",
    }  # fmt: skip
    for kernel in found:
        assert kernel["shared"] <= 227 * 1024
        assert kernel["stack"] == 0
        if kernel["bits"] == 4:
            # A conversion of every number would take longer than reading it.
            assert "fma.rn.bf16x2" in kernel["ptx"] and "cvt.rn.f32.u" not in kernel["ptx"]
        elif kernel["bits"] == 0 and kernel["name"] in ("_linear_kernel", "_gate_up_kernel", "_down_kernel"):
            copies = re.findall(r"cp\.async\.c[ag]\.shared\.global [^;]*?, (0x\w+|\d+),", kernel["ptx"])
            assert copies and {int(c, 0) for c in copies} == {16}
        if kernel["name"] in ("_gate_up_kernel", "_down_kernel") and "ld.global.b8" in kernel["ptx"]:
            flag, branch, weight = (kernel["ptx"].find(s) for s in ("ld.global.b8", "bra", "cp.async.cg.shared.global"))
            assert 0 < flag < branch < weight
