"""One contract for all executors of a decode pass: the float64 loop of tests/support/reference.py, under every rule.

A new executor is held by one line of EXECUTORS, a new rule by one of RULES.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.native_toys import coded
from support.reference import Reference
from support.reference import decode as reference
from support.tiny import PACKED, formatted, tiny_model
from torch import Tensor

from fastcar_cli.config.tau import Tau
from fastcar_cli.decoding.batch import DecodeSettings
from fastcar_cli.decoding.engine import Decode
from fastcar_cli.decoding.executors.graph import GraphExecutor
from fastcar_cli.decoding.executors.native import NativeExecutor
from fastcar_cli.decoding.executors.plain import PlainExecutor
from fastcar_cli.decoding.replay.controller import Target
from fastcar_cli.decoding.replay.replay import ReplayRule
from fastcar_cli.decoding.sampling import uniforms
from fastcar_cli.kernels import native
from fastcar_cli.kernels.gpu import installed
from fastcar_cli.models import decoder
from fastcar_cli.models.sampling import SamplingSettings
from fastcar_cli.models.vila_u.network import VideoModel

pytestmark = pytest.mark.usefixtures("interpreter")
INF = float("inf")
PROMPTS = [[1, 4, 5, 2], [1, 6, 7, 8, 2], [1, 2], [1, 2]]
FRAMES, N = 4, 4


def _codes(videos: int, frames: int, seed: int = 3) -> Tensor:
    return torch.randint(0, 9, (videos, frames * N, 3), generator=torch.Generator().manual_seed(seed))


CODES = _codes(2, FRAMES)
SOME = torch.rand(3, len(PROMPTS), FRAMES * N - 1, generator=torch.Generator().manual_seed(1)) < 0.6


@dataclass(frozen=True)
class Kind:
    """An executor, and what it can't do."""

    make: Callable[[Decode], Any]
    formats: tuple[str, ...]
    rules: tuple[str, ...] | None = None
    missing: str | None = None
    marks: tuple[pytest.MarkDecorator, ...] = ()
    device: str = "cpu"


EXECUTORS = {
    "torch": Kind(PlainExecutor, ("float32", "bfloat16", "int8", "int4")),
    "native": Kind(NativeExecutor, ("float32", "bfloat16", "int8", "int4"), missing=native.unavailable()),
    # Its kernels run through Triton's interpreter here, some seconds a case.
    "graph": Kind(
        lambda decode: GraphExecutor(decode, capture=False),
        ("float32",),
        ("by layer", "released", "pairs with ages", "window and tau", "sinks beyond a prompt", "forced"),
        None if installed() else "triton is not installed",
        (pytest.mark.slow,),
        "cuda" if torch.cuda.is_available() else "cpu",
    ),
}
NAMES = [pytest.param(name, marks=kind.marks) for name, kind in EXECUTORS.items()]

RULES: dict[str, dict[str, Any]] = {
    "dense": {},
    "dense, scored": {"keep_tas": True},
    "tau 0": {"tau": 0.0},
    "by layer": {"tau": [-0.3, "off", 0.2]},
    "released": {"tau": 0.0, "tas": "released"},
    "pairs": {"tau": 0.0, "pairs": True},
    "all": {"tau": -INF},
    "max age 0": {"tau": -INF, "max_age": 0},
    "max age 1": {"tau": -INF, "max_age": 1},
    "pairs with ages": {"tau": [-0.2, 0.1, 0.0], "pairs": True, "max_age": 2},
    "window": {"window": 3, "sinks": 1},
    "window and tau": {"window": 6, "sinks": 2, "tau": 0.0},
    "window of one": {"window": 1, "sinks": 0, "tau": 0.0, "tas": "released"},
    "wide window": {"window": 50, "sinks": 2},
    "sinks beyond a prompt": {"window": 3, "sinks": 4, "tau": 0.0},
    "int8 keys and values": {"kv_dtype": "int8", "tau": 0.0},
    "int8 keys and values, window": {"kv_dtype": "int8", "window": 7, "sinks": 2, "tau": 0.0, "pairs": True},
    "int8 keys and values, small window": {"kv_dtype": "int8", "window": 3, "sinks": 1, "tau": 0.0},
    "int8 keys and values of a part of the frame": {"kv_dtype": "int8", "recent": 2, "tau": 0.0},
    "forced": {"forced": SOME, "max_age": 2},
    "controller": {"target": Target(0.4), "tau": "off"},
    "controller, global": {"target": Target(0.5, "global"), "tau": "off", "max_age": 2},
}


def _tiny(kind: str, kv_heads: int) -> VideoModel:
    """In int4 four times as wide, so that it has groups of 32."""
    return tiny_model(kv_heads=kv_heads, times=4 if kind == "int4" else 1)


def _widened(model: VideoModel, kind: str) -> VideoModel:
    """The model itself, the same numbers as float64, for the reference."""
    if kind in PACKED:
        form = PACKED[kind].on(model)
        with torch.no_grad():
            for name, p in model.named_parameters():
                if (row := form.of(name)) is not None:
                    p.copy_(row.widen(*row.quantise(p), torch.float32))
    return model.bfloat16().double() if kind == "bfloat16" else model.double()


def _decode(
    model: VideoModel, executor: str, codes: Tensor, prompts: list[list[int]], cfg: float, rule: dict[str, Any]
) -> tuple[Decode, Tensor]:
    """Teacher-forced run of one executor; its batch and hidden states [tokens, rows, width]."""
    rule = dict(rule)
    options = {k: rule.pop(k) for k in ("window", "sinks", "kv_dtype") if k in rule}
    forced, keep, recent = rule.pop("forced", None), rule.pop("keep_tas", True), rule.pop("recent", None)
    rule["tau"] = Tau.read(rule.get("tau", "off"))
    if "tas" in rule:
        rule["tas_definition"] = rule.pop("tas")
    asked = DecodeSettings(
        codes.shape[1] // N, SamplingSettings(cfg=cfg), ReplayRule(**rule), keep_tas=keep, executor="torch", **options
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "MOST_RECENT", recent or 256)
        decode = Decode.of(model, prompts, asked, torch.zeros(codes.shape))
    if forced is not None:
        assert decode.replay is not None
        decode.replay.force(forced)
    decode.executor, codes = EXECUTORS[executor].make(decode), codes.to(model.device)
    decode.draws.give(codes)
    if executor == "graph":
        # Its logits take long without a GPU.
        decode.draws.codes.copy_(codes)
        decode.draws.draw = lambda *_: (torch.empty(0), None)  # type: ignore[method-assign]
    hidden = []
    with torch.inference_mode():
        for step in decode.steps(codes):
            hidden.append(step.hidden[:, 0].float().clone())
    return decode, torch.stack(hidden).cpu()


@cache
def _reference(form: str, kv_heads: int, rule: str, coded_as: str = "float32") -> Reference:
    """`coded_as`: the format whose native products code their inputs."""
    options = {k: v for k, v in RULES[rule].items() if k != "keep_tas"}
    taus = list(Tau.read(options.pop("tau", "off")).by_layer(3))
    if (target := options.pop("target", None)) is not None:
        options |= {"ratio": target.ratio, "scope": target.scope}
    options["code"] = partial(coded, coded_as)
    if coded_as in PACKED:
        options["code_latent"] = partial(coded, PACKED[coded_as].projector or "float32")
    return reference(_widened(_tiny(form, kv_heads), form), PROMPTS, CODES, cfg=2.0, taus=taus, **options)


_TOGETHER = {
    **{"bfloat16": 0.04, "int8 keys and values": 3e-4, "native-int8": 5e-5},
    **{"native-int8 int8 keys and values": 1e-3, "native-int4": 1e-2, "native-int4 int8 keys and values": 2e-2},
    "any int8 keys and values": 5e-3,
}
"""Measured: 2.9e-2, 9e-7 and 3e-5; 2e-4, 3.8e-3 and 1.1e-2. An input of a native product that lies between two
codes may get either, and what follows from it moves inputs of all later products by part of a code. Attention to int8
keys and values codes queries and weights in 16 bits, 1e-4 of its outputs, so more inputs of int4 get the other.
"""


def _close(found: Tensor, wanted: Tensor, form: str) -> None:
    """Each number by itself; all together in bfloat16, where a sum of rounded ones is any which way off, and where
    inputs of native products or keys and values are coded, one of which may be rounded to the neighbour.
    """
    assert bool(found.isfinite().all())
    off, scale = found - wanted, max(1.0, float(wanted.abs().max()))
    if form in _TOGETHER:
        assert float(off.norm()) <= _TOGETHER[form] * float(wanted.norm())
    else:
        assert float(off.abs().max()) <= 1e-5 * scale


def _same(decode: Decode, hidden: Tensor, want: Reference, form: str = "float32") -> None:
    _close(hidden, torch.stack(want.hidden).float(), form)
    if decode.replay is None:
        assert not any(want.replayed.values())
        return
    replayed, tas = decode.replay.replayed, decode.replay.tas
    for key, value in want.replayed.items():
        assert bool(replayed[key]) == value, key
    assert tas is not None
    if want.tas:
        _close(torch.stack([tas[key] for key in want.tas]).cpu(), torch.tensor(list(want.tas.values())), form)


def _decisions(want: Reference) -> Tensor:
    found = torch.zeros(3, len(PROMPTS), FRAMES * N - 1, dtype=torch.bool)
    for key, value in want.replayed.items():
        found[key] = value
    return found


def _cases() -> list[Any]:
    """Every executor, format, rule and kind of heads; three of four are slow, or long where cases are slow."""
    found = []
    for name, kind in EXECUTORS.items():
        for form in kind.formats:
            for i, rule in enumerate(kind.rules or RULES):
                for kv_heads, heads in ((1, "grouped"), (2, "heads")):
                    later = [pytest.mark.long if kind.marks else pytest.mark.slow] if (i + kv_heads) % 4 else []
                    marks = [*kind.marks, *later]
                    case = f"{name}-{form}-{rule}-{heads}"
                    found.append(pytest.param(name, form, rule, kv_heads, id=case, marks=marks))
    return found


@pytest.mark.parametrize(("executor", "form", "rule", "kv_heads"), _cases())
def test_executor_equals_the_reference(executor: str, form: str, rule: str, kv_heads: int) -> None:
    if EXECUTORS[executor].missing:
        pytest.skip(str(EXECUTORS[executor].missing))
    packed = executor == "native" and form in PACKED
    want, options = _reference(form, kv_heads, rule, form if packed else "float32"), RULES[rule]
    if form == "bfloat16" or (executor, form) == ("native", "int4"):
        # A rounded score may fall on the other side of tau, and everything after it would differ: the decisions of
        # the reference are taken, and the scores compared.
        options = {k: v for k, v in options.items() if k in ("window", "sinks", "kv_dtype", "recent", "tas")}
        options["forced"] = _decisions(want)
    model = formatted(_tiny(form, kv_heads), form).to(EXECUTORS[executor].device)
    decode, hidden = _decode(model, executor, CODES, PROMPTS, 2.0, options)
    inputs = [f"{executor}-{form}"] if packed else []
    cache = ["int8 keys and values"] if form != "bfloat16" and "kv_dtype" in options else []
    _same(decode, hidden, want, " ".join([*inputs, *cache]) or form)
    if options.get("tau", "off") != "off" and options.get("max_age") != 0:
        assert any(want.replayed.values()), "nothing replays: the case holds nothing"


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["torch", "native"])
@settings(max_examples=12, deadline=None)
@given(
    seed=st.integers(0, 1000),
    rows=st.integers(1, 5),
    frames=st.integers(1, 4),
    tau=st.floats(-1.5, 1.5),
    window=st.none() | st.integers(1, 12),
    sinks=st.integers(0, 6),
    pairs=st.booleans(),
    released=st.booleans(),
    max_age=st.none() | st.integers(0, 3),
    kv_dtype=st.sampled_from(["auto", "int8"]),
    recent=st.none() | st.integers(1, 3),
)
def test_any_setting_equals_the_reference(
    executor: str, seed: int, rows: int, frames: int, pairs: bool, **rule: Any
) -> None:
    if EXECUTORS[executor].missing:
        pytest.skip(str(EXECUTORS[executor].missing))
    cfg = 2.0 if rows % 2 == 0 else 1.0
    rule = {
        "tau": rule["tau"],
        "tas": "released" if rule["released"] else "attention",
        "pairs": pairs and cfg == 2.0,
        "max_age": rule["max_age"],
        "window": rule["window"],
        "sinks": rule["sinks"],
        "kv_dtype": rule["kv_dtype"],
        "recent": rule["recent"],
    }
    model, prompts = tiny_model(seed), [[1, *range(3, 3 + r), 2] for r in range(rows)]
    codes = _codes(rows // 2 if cfg == 2.0 else rows, frames, seed)
    options = {k: v for k, v in rule.items() if k != "tau"}
    want = reference(tiny_model(seed).double(), prompts, codes, cfg=cfg, taus=[rule["tau"]] * 3, **options)
    # Too near the threshold, the order of a sum decides, or which way a key in the middle is rounded.
    near = 1e-4 if rule["kv_dtype"] == "auto" else 1e-2
    assume(all(abs(v - rule["tau"]) > near for v in want.gated.values()))
    decode, hidden = _decode(model, executor, codes, prompts, cfg, rule)
    _same(decode, hidden, want, "float32" if rule["kv_dtype"] == "auto" else "any int8 keys and values")


@pytest.mark.parametrize("executor", ["torch", "native"])
def test_a_replayed_mlp_is_not_touched(executor: str) -> None:
    if EXECUTORS[executor].missing:
        pytest.skip(str(EXECUTORS[executor].missing))
    model = tiny_model()
    asked = DecodeSettings(FRAMES, SamplingSettings(cfg=1.0), ReplayRule(Tau((-INF,))), executor="torch")
    decode = Decode.of(model, PROMPTS[:1], asked, torch.zeros(1, FRAMES * N, 3))
    decode.executor = EXECUTORS[executor].make(decode)
    for step in decode.steps(CODES[:1]):
        if step.index == N:
            # From here on every row replays: a single weight read would spread.
            for block in decode.model.llm.blocks:
                for p in block.mlp.parameters():
                    p.fill_(float("nan"))
        assert bool(step.hidden.isfinite().all())


@pytest.mark.parametrize("executor", ["torch", "native"])
def test_a_nan_in_a_weight_shows(executor: str) -> None:
    if EXECUTORS[executor].missing:
        pytest.skip(str(EXECUTORS[executor].missing))
    model = tiny_model()
    model.llm.blocks[1].mlp.up_proj.weight[3, 5] = float("nan")
    _, hidden = _decode(model, executor, CODES[:, :N], PROMPTS, 2.0, {"tau": -INF})
    assert bool(hidden[1:].isnan().any(-1).all())


@pytest.mark.parametrize("executor", NAMES)
def test_drawn_tokens_are_the_same_in_every_way(executor: str) -> None:
    if EXECUTORS[executor].missing:
        pytest.skip(str(EXECUTORS[executor].missing))
    noise = torch.stack([uniforms(s, FRAMES * N, 3) for s in (5, 6)])
    sampling = SamplingSettings(cfg=2.0, top_p=0.9, top_k=6, first_frame_top_p=1.0)
    drawn = []
    for kind in ("torch", executor):
        asked = DecodeSettings(FRAMES, sampling, ReplayRule(Tau((0.0,))), executor="torch")
        decode = Decode.of(tiny_model().to(EXECUTORS[kind].device), PROMPTS, asked, noise)
        decode.executor = EXECUTORS[kind].make(decode)
        for _ in decode.steps():
            pass
        drawn.append((decode.codes.cpu(), decode.replay.replayed.cpu()))  # type: ignore[union-attr]
    assert torch.equal(drawn[0][0], drawn[1][0])
    assert torch.equal(drawn[0][1], drawn[1][1])
