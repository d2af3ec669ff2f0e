"""The native kernels against float64 in every number format, with and without helpers."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fastcar_cli.decoding.sampling import SamplingSettings, guide, sample
from fastcar_cli.kernels import native
from fastcar_cli.kernels.native import (
    BlockWeights,
    CodeDraw,
    DecoderPass,
    DepthBlockWeights,
    Linear,
    MLPs,
    Norm,
    Product,
    Slots,
    linear,
)

pytestmark = pytest.mark.skipif(native.unavailable() is not None, reason=str(native.unavailable()))

FORMATS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}
INF = float("inf")


@pytest.fixture(params=native.instruction_sets() or ["none"])
def any_set(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each instruction set that this processor runs."""
    monkeypatch.setenv("FASTCAR_KERNELS_ISA", request.param)
    return str(request.param)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_linear(kind: str, outputs: int, inputs: int, seed: int = 0, bias: bool = False) -> Linear:
    plain = random(outputs, inputs, seed=seed) / math.sqrt(inputs)
    more = random(outputs, seed=seed + 1) if bias else None
    if kind == "int8":
        scale = plain.abs().amax(1) / 127
        return Linear((plain / scale[:, None]).round().to(torch.int8), scale, more)
    return Linear(plain.to(FORMATS[kind]), None, more)


def exact(weight: Linear) -> Tensor:
    scale = 1.0 if weight.scale is None else weight.scale.double()[:, None]
    return weight.weight.double() * scale


def apply(weight: Linear, x: Tensor) -> Tensor:
    """The map in float64."""
    return x @ exact(weight).T + (0.0 if weight.bias is None else weight.bias.double())


@pytest.mark.parametrize("kind", FORMATS)
@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 5),
    outputs=st.integers(1, 150),
    inputs=st.one_of(st.integers(1, 300), st.integers(2600, 2700)),
    threads=st.sampled_from([1, 2, 3]),
    bias=st.booleans(),
    seed=st.integers(0, 9),
)
def test_products(kind: str, rows: int, outputs: int, inputs: int, threads: int, bias: bool, seed: int) -> None:
    weight, x = random_linear(kind, outputs, inputs, seed, bias), random(rows, inputs, seed=seed + 2)
    y = linear(x, weight, threads)
    size = x.abs().double() @ exact(weight).abs().T + (0.0 if weight.bias is None else weight.bias.double().abs())
    assert torch.all((y - apply(weight, x.double())).abs() <= 1e-6 * size)


@pytest.mark.parametrize("kind", FORMATS)
def test_products_of_every_instruction_set(any_set: str, kind: str) -> None:
    assert native.instruction_set() == any_set
    for rows, outputs, inputs in [(1, 37, 129), (2, 64, 256), (3, 9, 31), (5, 130, 515)]:
        weight, x = random_linear(kind, outputs, inputs), random(rows, inputs, seed=3)
        torch.testing.assert_close(linear(x, weight).double(), apply(weight, x.double()), rtol=0, atol=3e-6)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_row_does_not_depend_on_its_neighbours(kind: str) -> None:
    weight, x = random_linear(kind, 70, 333), random(5, 333, seed=1)
    together = linear(x, weight)
    for rows in (slice(0, 1), slice(1, 3), slice(2, 5)):
        assert torch.equal(linear(x[rows].contiguous(), weight), together[rows])


def test_a_bias_of_one_call_stays_in_that_call() -> None:
    weight, x, other = random_linear("float32", 30, 20, bias=True), random(2, 20), random(30, seed=8)
    product = Product(weight, 2)
    own = product(x)
    torch.testing.assert_close(product(x, other), own - weight.bias + other)
    assert torch.equal(product(x), own)


@pytest.mark.parametrize("value", [float("nan"), INF])
@pytest.mark.parametrize("place", [0, 40, 130])
def test_nan_and_infinity_show(any_set: str, place: int, value: float) -> None:
    weight = random_linear("float32", 20, 131)
    weight.weight[7, place] = value
    y = linear(random(2, 131).abs() + 0.1, weight)
    assert torch.isfinite(y).sum() == y.numel() - 2
    assert not torch.isfinite(y[:, 7]).any()
    if math.isnan(value):
        assert y[:, 7].isnan().all()


@dataclass
class Toy:
    """A random decoder with its caches, and its pass in float64."""

    kind: str = "float32"
    rows: int = 2
    layers: int = 2
    width: int = 48
    heads: int = 4
    kv_heads: int = 2
    d: int = 12
    mlp: int = 70
    slots: int = 40
    positions: int = 4
    cache: torch.dtype = torch.float32
    bias: bool = False
    replay: bool = True
    blocks: list[BlockWeights] = field(default_factory=list)

    def __post_init__(self) -> None:
        inner, kv, biased = self.heads * self.d, self.kv_heads * self.d, self.bias
        for i in range(self.layers):
            at = 100 * i

            def made(outputs: int, inputs: int, seed: int, at: int = at) -> Linear:
                return random_linear(self.kind, outputs, inputs, at + seed, biased)

            w, m = self.width, self.mlp
            self.blocks.append(
                BlockWeights(
                    random(w, seed=at).abs(),
                    *(made(inner, w, 1), made(kv, w, 2), made(kv, w, 3), made(w, inner, 4)),
                    random(w, seed=at + 5).abs(),
                    *(made(m, w, 6), made(m, w, 7), made(w, m, 8)),
                )
            )
        self.norm = random(self.width, seed=9).abs()
        self.reset()

    def reset(self) -> None:
        shape = (self.rows, self.kv_heads, self.slots, self.d)
        self.keys, self.values = (
            [random(*shape, seed=20 + 50 * n + i).to(self.cache) for i in range(self.layers)] for n in range(2)
        )
        self.outputs = [
            random(self.rows, self.positions, self.width, seed=70 + i).to(self.cache) for i in range(self.layers)
        ]
        self.start = torch.arange(self.rows) % 3

    def native(self, threads: int = 1, **options: bool) -> DecoderPass:
        outputs = self.outputs if self.replay else None
        memory = {"keys": self.keys, "values": self.values, "aligned": self.keys, "outputs": outputs}
        heads = {"heads": self.heads, "kv_heads": self.kv_heads}
        return DecoderPass(
            self.blocks, self.norm, 1e-6, **heads, **memory, start=self.start, threads=threads, **options
        )

    def reference(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        at: Slots,
        mask: Tensor | None,
        position: int,
        replays: Tensor,
        released: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Hidden states and scores [layers, rows], with these rows replaying; the caches are left alone."""
        x, scores = x.double(), torch.zeros(self.layers, self.rows, dtype=torch.float64)
        groups = self.heads // self.kv_heads

        def norm(x: Tensor, weight: Tensor) -> Tensor:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight.double()

        def rotate(y: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return y * cos.double()[:, None] + torch.cat([-b, a], -1) * sin.double()[:, None]

        for i, block in enumerate(self.blocks):
            a = norm(x, block.norm1)
            q, k, v = (apply(m, a).view(self.rows, -1, self.d) for m in (block.q, block.k, block.v))
            turned, keys, values = rotate(q), self.keys[i].double(), self.values[i].double()
            keys[:, :, at.slot] = rotate(k).to(self.cache).double()
            values[:, :, at.slot] = v.to(self.cache).double()
            aligned = keys[:, :, at.aligned_from].repeat_interleave(groups, 1)
            score = ((q if released else turned) * aligned).sum(-1).mean(1) / math.sqrt(self.d)
            scores[i] = score
            logits = turned[:, :, None] @ keys.repeat_interleave(groups, 1).mT / math.sqrt(self.d)
            slot = torch.arange(self.slots)
            seen = (slot < at.length) & (slot >= self.start[:, None])
            seen = seen if mask is None else seen & mask
            p = logits.masked_fill(~seen[:, None, None], -INF).softmax(-1)
            attended = (p @ values.repeat_interleave(groups, 1)).reshape(self.rows, -1)
            x = x + apply(block.o, attended)
            b = norm(x, block.norm2)
            branch = apply(block.down, torch.nn.functional.silu(apply(block.gate, b)) * apply(block.up, b))
            kept = self.outputs[i][:, position].double()
            if self.replay:
                branch = branch.to(self.cache).double()
            x = x + torch.where(replays[i][:, None], kept, branch)
        return norm(x, self.norm), scores


def inputs(toy: Toy, angles: int = 1) -> tuple[Tensor, Tensor, Tensor, Slots]:
    angle = random(angles, toy.d // 2, seed=5).repeat(1, 2)
    return random(toy.rows, toy.width, seed=4), angle.cos(), angle.sin(), Slots(20, 21, 17, 20)


def tables(toy: Toy) -> dict[str, Tensor]:
    both = (toy.layers, toy.rows)
    return {"scores": torch.full(both, 77.0), "replayed": torch.ones(both, dtype=torch.bool)}


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
    slack = 2e-2 if half else 2e-5
    torch.testing.assert_close(got.double(), want, rtol=slack, atol=slack)
    torch.testing.assert_close(tables_["scores"].double(), scores, rtol=slack, atol=slack)
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
from fastcar_cli.kernels.native import Linear, linear
x, weight = torch.ones(2, 512), Linear(torch.ones(512, 512))
assert (linear(x, weight, 2) == 512).all()
child = os.fork()
if child == 0:
    os._exit(0 if (linear(x, weight, 2) == 512).all() else 1)
assert (linear(x, weight, 2) == 512).all()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_computes() -> None:
    # A child that waits for helpers it does not have never ends; the limit is no measure of speed.
    done = subprocess.run([sys.executable, "-c", _FORK], timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_mlps_alone(kind: str, threads: int) -> None:
    toy = Toy(kind, rows=3)
    x, block = random(3, toy.width), toy.blocks[-1]
    got = MLPs(toy.blocks, 1e-6, threads)(x, passes=2)
    y = x.double()
    y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * block.norm2.double()
    want = apply(block.down, torch.nn.functional.silu(apply(block.gate, y)) * apply(block.up, y))
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@dataclass
class ToyDepth:
    """A depth transformer for 3 tokens of some videos, guided by 2.5 or not at all."""

    kind: str = "float32"
    videos: int = 2
    guidance: float = 1.0
    width, heads, depth, known, hidden, code_width, tokens = 36, 3, 4, 50, 40, 20, 3

    def __post_init__(self) -> None:
        def made(outputs: int, inputs: int, seed: int) -> Linear:
            return random_linear(self.kind, outputs, inputs, seed, bias=True)

        def normed(seed: int) -> Norm:
            return Norm(random(width, seed=seed), random(width, seed=seed + 1))

        width = self.width
        self.blocks = [
            DepthBlockWeights(
                normed(s),
                *(made(width, width, s + n) for n in (2, 3, 4, 5)),
                normed(s + 6),
                made(4 * width, width, s + 7),
                made(width, 4 * width, s + 8),
            )
            for s in (100, 200)
        ]
        self.first, self.later = made(width, self.hidden, 1), made(width, self.code_width, 2)
        self.places, self.norm = random(self.depth, width, seed=3), normed(4)
        self.classes = made(self.known, width, 5)
        self.books = [random(self.known, self.code_width, seed=30 + d) for d in range(self.depth)]
        self.uniforms = torch.rand(self.videos, self.tokens, self.depth, generator=torch.Generator().manual_seed(9))
        self.codes = torch.full(self.uniforms.shape, -1)
        self.rows = self.videos * (1 if self.guidance == 1 else 2)

    def native(self, **more: object) -> CodeDraw:
        names = ("first", "later", "places", "norm", "classes", "books", "heads", "uniforms", "codes", "guidance")
        return CodeDraw(self.blocks, **{name: getattr(self, name) for name in names} | more)  # type: ignore[arg-type]

    def logits(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Guided logits float64 [depth, videos, known] of codes [videos, depth]."""

        def layer_norm(x: Tensor, norm: Norm) -> Tensor:
            return torch.nn.functional.layer_norm(x, (self.width,), norm.weight.double(), norm.bias.double())

        cached: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.blocks]
        found, x = [], hidden.double()
        for d in range(self.depth):
            h = apply(self.later if d else self.first, x) + self.places[d].double()
            for block, kv in zip(self.blocks, cached, strict=True):
                a = layer_norm(h, block.norm1)
                q, k, v = (apply(m, a).view(self.rows, self.heads, 1, -1) for m in (block.q, block.k, block.v))
                kv.append((k, v))
                keys, values = (torch.cat([pair[n] for pair in kv], 2) for n in range(2))
                p = (q @ keys.mT / math.sqrt(self.width // self.heads)).softmax(-1)
                h = h + apply(block.o, (p @ values).reshape(self.rows, self.width))
                b = torch.nn.functional.gelu(apply(block.up, layer_norm(h, block.norm2)))
                h = h + apply(block.down, b)
            found.append(guide(apply(self.classes, layer_norm(h, self.norm)), self.guidance))
            x = self.latent(codes[:, : d + 1])
        return torch.stack(found)

    def latent(self, codes: Tensor) -> Tensor:
        """Sums of code vectors, float64 [rows, code width], of codes [videos, depth so far]."""
        total = sum(book[codes[:, d]].double() for d, book in enumerate(self.books[: codes.shape[1]]))
        return torch.cat([total] * (self.rows // self.videos))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("videos", "guidance"), [(1, 1.0), (3, 1.0), (2, 2.5)])
def test_logits_of_given_codes(kind: str, threads: int, videos: int, guidance: float) -> None:
    toy = ToyDepth(kind, videos, guidance)
    draw = toy.native(threads=threads)
    given = torch.randint(toy.known, toy.codes.shape, generator=torch.Generator().manual_seed(2))
    for token in range(2):
        hidden = random(toy.rows, toy.hidden, seed=50 + token)
        latent, logits = draw(hidden, token, given=given, keep_logits=True)
        assert logits is not None
        torch.testing.assert_close(logits.double(), toy.logits(hidden, given[:, token]), rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(latent.double(), toy.latent(given[:, token])[:videos], rtol=1e-6, atol=1e-6)
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
    toy.classes = Linear(torch.zeros(toy.known, toy.width), bias=bias.round() if rounded else bias)
    toy.uniforms = torch.rand(toy.uniforms.shape, generator=torch.Generator().manual_seed(seed))
    draw = toy.native(temperature=temperature, top_k=top_k)
    latent, logits = draw(random(toy.rows, toy.hidden), 1, top_p=top_p, keep_logits=True)
    assert logits is not None
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
    assert toy.classes.bias is not None
    toy.classes.bias[17] = value
    with pytest.raises(ArithmeticError, match="token 1, depth 0: the logits are not finite"):
        toy.native(temperature=temperature)(random(toy.rows, toy.hidden), 1)


@pytest.mark.parametrize("code", [-1, 50, 2**40])
def test_a_given_code_must_be_one(code: int) -> None:
    toy = ToyDepth()
    given = torch.zeros_like(toy.codes)
    given[1, 0, 2] = code
    with pytest.raises(ValueError, match="given: token 0, depth 2 has no code of 0 to 49"):
        toy.native()(random(toy.rows, toy.hidden), 0, given=given)


def test_what_does_not_fit_is_named() -> None:
    toy = Toy()
    x, cos, sin, at = inputs(toy)
    run = toy.native()
    with pytest.raises(ValueError, match=r"x is float64 .*expected float32 \[2, 48\]"):
        run(x.double(), cos, sin, at)
    with pytest.raises(ValueError, match="mask"):
        run(x, cos, sin, at, mask=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="Slots.slot=40.* lies outside of 40 slots"):
        run(x, cos, sin, Slots(40, 21, 17, 20))
    with pytest.raises(ValueError, match="position"):
        run(x, cos, sin, at, position=4)
    with pytest.raises(ValueError, match="both or neither"):
        run(x, cos, sin, at, scores=torch.zeros(2, 2))
    toy.keys[1] = toy.keys[1].mT.contiguous().mT
    with pytest.raises(ValueError, match="keys of layer 1 must be contiguous"):
        toy.native()
    with pytest.raises(ValueError, match="linear.scale"):
        linear(x, Linear(torch.ones(3, 48, dtype=torch.int8)))


def test_an_instruction_set_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCAR_KERNELS_ISA", "mmx")
    with pytest.raises(ValueError, match="FASTCAR_KERNELS_ISA=mmx: allowed here: "):
        linear(torch.ones(1, 4), Linear(torch.ones(4, 4)))
