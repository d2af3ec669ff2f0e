"""The native kernels against float64 in every number format, with and without helpers."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.native_toys import (
    FORMATS,
    INF,
    Slots,
    Toy,
    ToyDepth,
    assert_close,
    inputs,
    random,
    random_linear,
    tables,
)

from fastcar_cli.decoding.sampling import sample
from fastcar_cli.kernels import native
from fastcar_cli.kernels.native import Linear, build, library, linear
from fastcar_cli.models.sampling import SamplingSettings

pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("released", [False, True])
@settings(max_examples=12, deadline=None)
@given(
    rows=st.integers(1, 4),
    d=st.sampled_from([2, 10, 16, 34, 64, 66, 130]),
    heads=st.sampled_from([(1, 1), (3, 3), (4, 2), (6, 1)]),
    threads=st.sampled_from([1, 2]),
    bias=st.booleans(),
    masked=st.booleans(),
    half=st.booleans(),
    replays=st.integers(0, 255),
)
def test_a_pass(
    kind: str,
    replay: bool,
    released: bool,
    rows: int,
    d: int,
    heads: tuple[int, int],
    threads: int,
    bias: bool,
    masked: bool,
    half: bool,
    replays: int,
) -> None:
    cache = torch.bfloat16 if half else torch.float32
    toy = Toy(kind, rows, d=d, heads=heads[0], kv_heads=heads[1], bias=bias, cache=cache, replay=replay)
    x, cos, sin, at = inputs(toy, angles=1 if d % 4 else rows)
    mask = None
    if masked:
        mask = random(rows, toy.slots, seed=8) > 0
        mask[:, at.slot] = True
    wanted = torch.tensor([replays >> n & 1 for n in range(2 * rows)], dtype=torch.bool).view(2, rows) & replay
    want, scores = toy.reference(x, cos, sin, at, mask, 2, wanted, released)
    before = [part.clone() for part in toy.outputs]
    got, tables_ = x.clone(), tables(toy)
    thresholds = torch.where(wanted, -INF, INF) if replay else None
    toy.native(threads, released=released)(got, cos, sin, at, mask=mask, position=2, thresholds=thresholds, **tables_)
    # A value that lies between two of bfloat16 may be stored as either.
    slack = 2e-2 if half else 0.0
    assert_close(kind, got, want, slack)
    assert_close(kind, tables_["scores"], scores, slack)
    assert torch.equal(tables_["replayed"], wanted)
    for layer in range(2):
        for r in range(rows):
            same = torch.equal(toy.outputs[layer][r, 2], before[layer][r, 2])
            assert same == (bool(wanted[layer, r]) or not replay)
        others = [0, 1, 3]
        assert torch.equal(toy.outputs[layer][:, others], before[layer][:, others])


def test_the_gate() -> None:
    toy = Toy(rows=4)
    x, cos, sin, at = inputs(toy)
    found = tables(toy)
    toy.native()(x.clone(), cos, sin, at, thresholds=torch.full((2, 4), INF), **found)
    assert not found["replayed"].any()
    # A threshold that is the score itself is not passed; the next smaller number is.
    for threshold, passes in (
        (found["scores"].clone(), False),
        (torch.nextafter(found["scores"], torch.tensor(-INF)), True),
    ):
        toy.reset()
        again = tables(toy)
        threshold[1] = INF
        toy.native()(x.clone(), cos, sin, at, thresholds=threshold, **again)
        assert again["replayed"].tolist() == [[passes] * 4, [False] * 4]
        assert torch.equal(again["scores"][0], found["scores"][0])


def test_pairs_decide_by_their_mean() -> None:
    toy = Toy(rows=4)
    x, cos, sin, at = inputs(toy)
    alone = tables(toy)
    toy.native()(x.clone(), cos, sin, at, **alone)
    first = alone["scores"][0]
    mean = (first[:2] + first[2:]) / 2
    threshold = torch.full((2, 4), INF)
    threshold[0] = torch.stack([mean[0] - 0.01, mean[1] + 0.01]).repeat(2)
    toy.reset()
    found = tables(toy)
    toy.native(pairs=True)(x.clone(), cos, sin, at, thresholds=threshold, **found)
    assert found["replayed"][0].tolist() == [True, False, True, False]
    assert torch.equal(found["scores"][0], first)


def test_layers_that_are_not_scored_are_dense_and_untouched() -> None:
    toy = Toy()
    x, cos, sin, at = inputs(toy)
    found = tables(toy)
    never = torch.full((2, 2), -INF)
    toy.native()(x, cos, sin, at, thresholds=never, scored=torch.tensor([False, True]), **found)
    assert found["scores"][0].tolist() == [77.0, 77.0]
    assert found["replayed"].tolist() == [[True, True], [True, True]]
    assert (found["scores"][1] != 77).all()
    toy.reset()
    kept = [part[:, 0].clone() for part in toy.outputs]
    toy.native()(x, cos, sin, at, thresholds=never, scored=torch.tensor([False, True]), **found)
    assert not torch.equal(toy.outputs[0][:, 0], kept[0])
    assert torch.equal(toy.outputs[1][:, 0], kept[1])


def test_a_score_that_is_nan_computes() -> None:
    toy = Toy()
    x, cos, sin, at = inputs(toy)
    toy.keys[1][0, 0, at.aligned_from] = float("nan")
    found = tables(toy)
    toy.native()(x, cos, sin, at, thresholds=torch.full((2, 2), -INF), **found)
    assert found["replayed"].tolist() == [[True, True], [False, True]]
    assert x[0].isnan().all()
    assert torch.isfinite(x[1]).all()


def test_nothing_of_an_mlp_is_read_that_every_row_replays() -> None:
    toy = Toy()
    for part in (toy.blocks[0].gate, toy.blocks[0].up, toy.blocks[0].down):
        part.weight.fill_(float("nan"))
    x, cos, sin, at = inputs(toy)
    threshold = torch.tensor([[-INF] * 2, [INF] * 2])
    toy.native()(x, cos, sin, at, thresholds=threshold, **tables(toy))
    assert torch.isfinite(x).all()
    toy.native()(x, cos, sin, at)
    assert x.isnan().all()


@pytest.mark.parametrize("kind", FORMATS)
def test_threads_change_no_bit(kind: str) -> None:
    torch_threads = torch.get_num_threads()
    toy = Toy(kind, rows=3, width=256, mlp=700, d=64)
    x, cos, sin, at = inputs(toy)
    want = x.clone()
    toy.native(1)(want, cos, sin, at)
    for threads in (2, 3, 7):
        run = toy.native(threads)
        for _ in range(100):
            got = x.clone()
            run(got, cos, sin, at)
            assert torch.equal(got, want)
    assert torch.get_num_threads() == torch_threads


def test_passes_of_several_threads_at_once() -> None:
    toys = [Toy(rows=2, width=256, mlp=700, d=64) for _ in range(3)]
    x, cos, sin, at = inputs(toys[0])
    want = x.clone()
    toys[0].native()(want, cos, sin, at)
    wrong: list[int] = []

    def repeat(toy: Toy) -> None:
        run = toy.native(2)
        for n in range(200):
            got = x.clone()
            run(got, cos, sin, at)
            if not torch.equal(got, want):
                wrong.append(n)

    users = [threading.Thread(target=repeat, args=(toy,)) for toy in toys]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert wrong == []


_FORK = """
import os, sys, torch
from fastcar_cli.kernels.native import Linear, build, library, linear
x, weight = torch.ones(2, 512), Linear(torch.ones(512, 512))
assert (linear(x, weight, 2) == 512).all()
child = os.fork()
if child == 0:
    os._exit(0 if (linear(x, weight, 2) == 512).all() else 1)
assert (linear(x, weight, 2) == 512).all()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_computes() -> None:
    # A child that waits for helpers it does not have never ends; the limit is no measure of speed.
    done = subprocess.run([sys.executable, "-c", _FORK], timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("videos", "guidance"), [(1, 1.0), (3, 1.0), (2, 2.5)])
def test_logits_of_given_codes(kind: str, threads: int, videos: int, guidance: float) -> None:
    toy = ToyDepth(kind, videos, guidance)
    draw = toy.native(threads=threads)
    given = torch.randint(toy.known, toy.codes.shape, generator=torch.Generator().manual_seed(2))
    for token in range(2):
        hidden = random(toy.rows, toy.hidden, seed=50 + token)
        latent, logits = draw(hidden[:, None], [token] * videos, [1.0] * videos, given=given, keep_logits=True)
        assert logits is not None
        want = toy.logits(hidden, given[:, token])
        assert_close(kind, logits[:, :, 0], want)
        torch.testing.assert_close(latent[:, 0].double(), toy.latent(given[:, token])[:videos], rtol=1e-6, atol=1e-6)
        assert torch.equal(toy.codes[:, token], given[:, token])
    assert torch.equal(toy.codes[:, 2], torch.full((videos, toy.depth), -1))


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    spread=st.sampled_from([0.0, 0.1, 3.0, 40.0]),
    rounded=st.booleans(),
    temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 49, 50, 90]),
    top_p=st.sampled_from([0.05, 0.5, 0.95, 1.0]),
    guidance=st.sampled_from([1.0, 2.5]),
)
def test_draws_are_those_of_torch(
    seed: int, spread: float, rounded: bool, temperature: float, top_k: int, top_p: float, guidance: float
) -> None:
    toy = ToyDepth(videos=2, guidance=guidance)
    bias = random(toy.known, seed=seed) * spread
    # Rounded logits have equals; without weights the bias is the logits.
    toy.classifier = Linear(torch.zeros(toy.known, toy.width), bias=bias.round() if rounded else bias)
    toy.uniforms = torch.rand(toy.uniforms.shape, generator=torch.Generator().manual_seed(seed))
    draw = toy.native(temperature=temperature, top_k=top_k)
    latent, logits = draw(random(toy.rows, 1, toy.hidden), [1] * toy.videos, [top_p] * toy.videos, keep_logits=True)
    assert logits is not None
    latent, logits = latent[:, 0], logits[:, :, 0]
    torch.testing.assert_close(latent.double(), toy.latent(toy.codes[:, 1])[:2], rtol=1e-6, atol=1e-6)
    how = SamplingSettings(guidance, temperature, top_k, top_p)
    for d in range(toy.depth):
        # On an edge, between two codes or of top-p, sums that are rounded differently may fall to either side.
        edges = (-2e-6, 0.0, 2e-6)
        near = [sample(logits[d], toy.uniforms[:, 1, d] + a, how, top_p + b) for a in edges for b in edges]
        for video, code in enumerate(toy.codes[:, 1, d]):
            assert code in [codes[video] for codes in near]


@pytest.mark.parametrize("value", [float("nan"), INF])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_is_drawn_from_logits_that_are_not_finite(value: float, temperature: float) -> None:
    toy = ToyDepth()
    assert toy.classifier.bias is not None
    toy.classifier.bias[17] = value
    with pytest.raises(ArithmeticError, match=r"tokens from \[1, 1\] on, code 0: the logits are not finite"):
        toy.native(temperature=temperature)(random(toy.rows, 1, toy.hidden), [1] * toy.videos, [1.0] * toy.videos)


@pytest.mark.parametrize("code", [50, 2**40])
def test_a_given_code_must_be_one(code: int) -> None:
    toy = ToyDepth()
    given = torch.zeros_like(toy.codes)
    given[1, 0, 2] = code
    with pytest.raises(ValueError, match=r"given: tokens from \[0, 0\] on, code 2: not in 0 to 49"):
        toy.native()(random(toy.rows, 1, toy.hidden), [0] * toy.videos, [1.0] * toy.videos, given=given)


def test_other_scores_are_written_where_they_are_given() -> None:
    toy = Toy()
    x, cos, sin, at = inputs(toy)
    run = toy.native()
    given = tables(toy)
    first = given["scores"].fill_(torch.nan)
    run(x.clone(), cos, sin, at, position=2, **given)
    kept = first.clone()
    assert not kept.isnan().any()
    other = {**given, "scores": torch.full_like(first, torch.nan)}
    with pytest.raises(ValueError, match="scores"):
        run(x.clone(), cos, sin, at, position=2, **{**given, "scores": torch.zeros(1, 1)})
    first.fill_(torch.nan)
    toy.reset()
    run(x.clone(), cos, sin, at, position=2, **other)
    assert torch.equal(other["scores"], kept) and first.isnan().all()


def test_what_does_not_fit_is_named() -> None:
    toy = Toy()
    x, cos, sin, at = inputs(toy)
    run = toy.native()
    with pytest.raises(ValueError, match=r"x is float64 .*expected float32 \[2, 1, 48\]"):
        run(x.double(), cos, sin, at)
    with pytest.raises(ValueError, match="mask"):
        run(x, cos, sin, at, mask=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"token 0 of the table, \[40, 21, .*lies outside of 40 slots"):
        run(x, cos, sin, Slots(40, 21, 17, 20))
    with pytest.raises(ValueError, match=r"1 tokens from \[4, 4\] on: a pass takes 1 to 1 per row, from 0 to 3"):
        run(x, cos, sin, at, position=4)
    with pytest.raises(ValueError, match="give both or neither"):
        run(x, cos, sin, at, scores=torch.zeros(2, 2))
    toy.keys = toy.keys.mT.contiguous().mT
    with pytest.raises(ValueError, match="keys must be contiguous"):
        toy.native()
    with pytest.raises(ValueError, match="linear.scale"):
        linear(x, Linear(torch.ones(3, 48, dtype=torch.int8)))
    with pytest.raises(ValueError, match=r"linear.weight has 48 inputs, int4 needs a multiple of 32"):
        linear(x, Linear(torch.ones(3, 24, dtype=torch.uint8), torch.ones(3, 1, dtype=torch.float16)))
    with pytest.raises(ValueError, match=r"linear.scale is float32 \[3, 2\], expected float16 \[3, 2\]"):
        linear(x, Linear(torch.ones(3, 32, dtype=torch.uint8), torch.ones(3, 2)))
    with pytest.raises(ValueError, match=r"x is float32 \[2, 48\], expected float32 \[2, 64\]"):
        linear(x, random_linear("int4", 3, 64))


@pytest.mark.parametrize("part", ["v", "up"])
def test_maps_of_the_same_inputs_have_one_format(part: str) -> None:
    toy = Toy()
    other = random_linear("bfloat16", *getattr(toy.blocks[1], part).weight.shape)
    changed: dict[str, Any] = {part: other}
    toy.blocks[1] = dataclasses.replace(toy.blocks[1], **changed)
    with pytest.raises(ValueError, match=f"layer 1: .*{part}: weights are bfloat16 and float32, expected one format"):
        toy.native()


def test_a_library_that_is_not_for_this_system_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library, "FOLDER", tmp_path)
    monkeypatch.setattr(library, "NAME", build.NAME)  # also where sanitizers' library is in use
    found = library.open_library.__wrapped__
    assert "not built: run pip install -e . in the checkout" in str(found())
    (tmp_path / build.WHY_NOT).write_text("there is no c++, clang++ or g++ on PATH\n")
    way_out = f"; install from source with ziglang or a C++ compiler, or install a wheel for {build.platform_tag()}"
    assert str(found()).endswith(f"not built: there is no c++, clang++ or g++ on PATH{way_out}")
    (tmp_path / build.NAME).write_bytes(b"MZ" + bytes(4096))
    said = str(found())
    assert said.startswith("the native kernels can't be loaded, perhaps because they are for another system: ")
    assert said.endswith(way_out)


def test_a_wheel_is_for_a_system_that_zig_builds_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FASTCAR_WHEEL", "macosx_11_0_x86_64")
    assert build.platform_tag() == "macosx_11_0_x86_64"
    assert build.TARGETS[build.platform_tag()] == "x86_64-macos.11.0"
    monkeypatch.setenv("FASTCAR_WHEEL", "amiga_3_0_m68k")
    with pytest.raises(build.BuildError, match="FASTCAR_WHEEL=amiga_3_0_m68k: allowed: manylinux_2_17_x86_64, "):
        build.build(tmp_path / build.NAME)


def test_an_instruction_set_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCAR_KERNELS_ISA", "mmx")
    with pytest.raises(ValueError, match="FASTCAR_KERNELS_ISA=mmx: allowed on this CPU: "):
        linear(torch.ones(1, 4), Linear(torch.ones(4, 4)))
