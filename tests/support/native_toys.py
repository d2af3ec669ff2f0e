"""Random maps, decoders and depth transformers in every number format, and what they compute in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fastcar_cli.decoding.sampling import guide
from fastcar_cli.kernels.native import BlockWeights, CodeDraw, DecoderPass, DepthBlockWeights, DepthWeights, Linear

FLOATS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
FORMATS = (*FLOATS, "int8", "int4")
CODES = {"int8": (64, 32767), "int4": (32, 127)}
"""Inputs of a product that share a scale, and their largest code."""
SLACK = {"float32": 2e-5, "bfloat16": 2e-5, "int8": 5e-5, "int4": 5e-3}
"""How far a pass may be from float64 with inputs coded alike: floats in each number, the others by norm.

An input that lies within a float32 rounding of the middle between two codes may get either, and its group may have that
much more or less in its sums: one code is 1/32767 or 1/127 of the largest of 64 or 32. Some inputs of an int8 pass are
that near, one in ten thousand of int4. Measured: int8 2.3e-5 by norm, 2.8e-4 in a number; int4 1.7e-5 and 1.9e-4.
"""
INF = float("inf")


def assert_close(kind: str, found: Tensor, wanted: Tensor, slack: float = 0.0) -> None:
    """Each number in floats; all together where inputs are coded (see SLACK). Numbers are about 1 in size."""
    slack = max(SLACK[kind], slack)
    if kind in FLOATS:
        torch.testing.assert_close(found.double(), wanted, rtol=slack / 2, atol=slack)
    else:
        assert (found - wanted).norm() <= slack * (wanted.norm() + math.sqrt(wanted.numel()))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def random_linear(kind: str, outputs: int, inputs: int, seed: int = 0, bias: bool = False) -> Linear:
    plain = random(outputs, inputs, seed=seed) / math.sqrt(inputs)
    more = random(outputs, seed=seed + 1) if bias else None
    if kind == "int8":
        scale = plain.abs().amax(1) / 127
        return Linear((plain / scale[:, None]).round().to(torch.int8), scale, more)
    if kind == "int4":
        groups = plain.view(outputs, -1, 32)
        scale = (groups.abs().amax(2) / 7).half()
        numbers = (groups / scale[..., None].float()).round().clamp(-8, 7)
        return Linear(pack(numbers.flatten(1)), scale, more)
    return Linear(plain.to(FLOATS[kind]), None, more)


def groups_of(x: Tensor, group: int) -> Tensor:
    """x [..., n] as [..., groups, group], padded with zeros."""
    return torch.nn.functional.pad(x, (0, -x.shape[-1] % group)).unflatten(-1, (-1, group))


def coded(kind: str, x: Tensor) -> Tensor:
    """Inputs float64 [..., n] of products with weights of a format as the kernels see them (source/integers.h)."""
    if kind not in CODES:
        return x
    group, most = CODES[kind]
    groups = groups_of(x.float(), group)
    peak = groups.abs().amax(-1, keepdim=True)
    scale = torch.where(peak < 1e-30, 0, peak) / most
    if kind == "int4":
        # Whole multiples of the row's unit, the least power of two of which none is above 32,767.
        unit = torch.exp2((scale.amax(-2, keepdim=True) / 32767).log2().ceil())
        scale = torch.where(scale > 0, (scale / unit).ceil() * unit, 0)
    factor = torch.where(scale > 0, 1 / scale, 0)
    codes = (groups.double() * factor.double()).round()
    return (codes * scale.double()).flatten(-2)[..., : x.shape[-1]]


def pack(numbers: Tensor) -> Tensor:
    """Integers of -8 to 7 [out, in] as bytes uint8 [out, in / 2]."""
    low, high = (numbers + 8).to(torch.uint8).view(len(numbers), -1, 2, 16).unbind(2)
    return (low | high << 4).flatten(1)


def kind_of(weight: Linear) -> str:
    if weight.scale is None:
        return str(weight.weight.dtype).removeprefix("torch.")
    return "int8" if weight.weight.dtype is torch.int8 else "int4"


def exact(weight: Linear) -> Tensor:
    """Its numbers in float64 [out, in]."""
    if weight.scale is None:
        return weight.weight.double()
    if weight.weight.dtype is torch.int8:
        return weight.weight.double() * weight.scale.double()[:, None]
    groups = weight.weight.view(*weight.scale.shape, 16)
    numbers = torch.cat([groups & 15, groups >> 4], 2).double() - 8
    return (numbers * weight.scale.double()[..., None]).flatten(1)


def apply(weight: Linear, x: Tensor) -> Tensor:
    """The map in float64."""
    return x @ exact(weight).T + (0.0 if weight.bias is None else weight.bias.double())


def mapped(weight: Linear, x: Tensor) -> Tensor:
    """The map in float64 of what codes keep of its inputs."""
    return apply(weight, coded(kind_of(weight), x))


class Slots(NamedTuple):
    """Where a token lies in the caches, see `DecoderPass`."""

    slot: int
    length: int
    aligned_from: int
    aligned_to: int
    older: int = 0
    moved_to: int = -1


class NativePass:
    """Passes of one token a row of a toy, whose token number is its place in the replay cache."""

    def __init__(self, toy: Toy, memory: dict[str, Any], options: dict[str, Any]) -> None:
        self._toy, self._options = toy, {"heads": toy.heads, "kv_heads": toy.kv_heads, **memory, **options}
        self._key: tuple[Any, ...] = ()
        _, cos, sin, at = inputs(toy)
        self._made(cos, sin, at)

    def _made(self, cos: Tensor, sin: Tensor, at: Slots) -> DecoderPass:
        if not self._key or self._key[0] is not cos or self._key[1] != at:
            self._key, toy = (cos, at), self._toy
            table = torch.tensor([list(at)] * toy.positions)
            angles: dict[str, Any] = {
                name: x.expand(toy.positions, *x.shape).contiguous() for name, x in (("cos", cos), ("sin", sin))
            }
            self._pass = DecoderPass(
                toy.blocks, toy.norm, 1e-6, table=table, **angles, start=toy.start, **self._options
            )
        return self._pass

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, at: Slots, position: int = 0, **tables: Any) -> None:
        self._made(cos, sin, at)(x[:, None], [position] * len(x), **tables)


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
        if self.kind == "int4":
            self.width, self.d, self.mlp = (math.ceil(n / 32) * 32 for n in (self.width, self.d, self.mlp))
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
            torch.stack([random(*shape, seed=20 + 50 * n + i).to(self.cache) for i in range(self.layers)])
            for n in range(2)
        )
        outputs = [random(self.rows, self.positions, self.width, seed=70 + i) for i in range(self.layers)]
        self.outputs = torch.stack(outputs).to(self.cache)
        self.start = torch.arange(self.rows) % 3

    def native(self, threads: int = 1, **options: bool) -> NativePass:
        outputs = self.outputs if self.replay else None
        memory = {"keys": self.keys, "values": self.values, "aligned": self.keys, "outputs": outputs}
        return NativePass(self, memory, {"threads": threads, **options})

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
            q, k, v = (mapped(m, a).view(self.rows, -1, self.d) for m in (block.q, block.k, block.v))
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
            x = x + mapped(block.o, attended)
            b = norm(x, block.norm2)
            branch = mapped(block.down, torch.nn.functional.silu(mapped(block.gate, b)) * mapped(block.up, b))
            kept = self.outputs[i][:, position].double()
            if self.replay:
                branch = branch.to(self.cache).double()
            x = x + torch.where(replays[i][:, None], kept, branch)
        return norm(x, self.norm), scores


def inputs(toy: Toy, angles: int = 1) -> tuple[Tensor, Tensor, Tensor, Slots]:
    angle = random(angles, toy.d // 2, seed=5).repeat(1, 2)
    return random(toy.rows, toy.width, seed=4), angle.cos(), angle.sin(), Slots(20, 21, 17, 20)


def tables(toy: Toy) -> dict[str, Any]:
    both = (toy.layers, toy.rows)
    return {"scores": torch.full(both, 77.0), "replayed": torch.ones(both, dtype=torch.bool)}


@dataclass
class ToyDepth:
    """A depth transformer for 3 tokens of some videos, guided by 2.5 or not at all."""

    kind: str = "float32"
    videos: int = 2
    guidance: float = 1.0
    width, heads, depth, known, hidden, code_width, tokens = 36, 3, 4, 50, 40, 20, 3

    def __post_init__(self) -> None:
        if self.kind == "int4":
            self.width, self.hidden, self.code_width = 96, 64, 32

        def made(outputs: int, inputs: int, seed: int) -> Linear:
            return random_linear(self.kind, outputs, inputs, seed, bias=True)

        def normed(seed: int) -> tuple[Tensor, Tensor]:
            return random(width, seed=seed), random(width, seed=seed + 1)

        width = self.width
        self.blocks = [
            DepthBlockWeights(
                *normed(s),
                made(width, width, s + 2),
                made(width, width, s + 3),
                made(width, width, s + 4),
                made(width, width, s + 5),
                *normed(s + 6),
                made(4 * width, width, s + 7),
                made(width, 4 * width, s + 8),
            )
            for s in (100, 200)
        ]
        self.first, self.later = made(width, self.hidden, 1), made(width, self.code_width, 2)
        self.depth_embeddings, (self.norm, self.norm_bias) = random(self.depth, width, seed=3), normed(4)
        self.classifier = made(self.known, width, 5)
        self.codebooks = [random(self.known, self.code_width, seed=30 + d) for d in range(self.depth)]
        self.uniforms = torch.rand(self.videos, self.tokens, self.depth, generator=torch.Generator().manual_seed(9))
        self.codes = torch.full(self.uniforms.shape, -1)
        self.rows = self.videos * (1 if self.guidance == 1 else 2)

    def native(self, **more: Any) -> CodeDraw:
        parts = ("blocks", "first", "later", "depth_embeddings", "norm", "norm_bias", "heads")
        transformer = DepthWeights(**{name: getattr(self, name) for name in parts})
        names = ("classifier", "codebooks", "uniforms", "codes", "guidance")
        return CodeDraw(transformer, **{name: getattr(self, name) for name in names} | more)

    def logits(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Guided logits float64 [depth, videos, known] of codes [videos, depth]."""

        def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return torch.nn.functional.layer_norm(x, (self.width,), weight.double(), bias.double())

        cached: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.blocks]
        found, x = [], hidden.double()
        for d in range(self.depth):
            h = mapped(self.later if d else self.first, x) + self.depth_embeddings[d].double()
            for block, kv in zip(self.blocks, cached, strict=True):
                a = layer_norm(h, block.norm1, block.norm1_bias)
                q, k, v = (mapped(m, a).view(self.rows, self.heads, 1, -1) for m in (block.q, block.k, block.v))
                kv.append((k, v))
                keys, values = (torch.cat([pair[n] for pair in kv], 2) for n in range(2))
                p = (q @ keys.mT / math.sqrt(self.width // self.heads)).softmax(-1)
                h = h + mapped(block.o, (p @ values).reshape(self.rows, self.width))
                b = torch.nn.functional.gelu(mapped(block.up, layer_norm(h, block.norm2, block.norm2_bias)))
                h = h + mapped(block.down, b)
            found.append(guide(mapped(self.classifier, layer_norm(h, self.norm, self.norm_bias)), self.guidance))
            x = self.latent(codes[:, : d + 1])
        return torch.stack(found)

    def latent(self, codes: Tensor) -> Tensor:
        """Sums of code vectors, float64 [rows, code width], of codes [videos, depth so far]."""
        books = self.codebooks[: codes.shape[1]]
        total = torch.stack([book[codes[:, d]].double() for d, book in enumerate(books)]).sum(0)
        return torch.cat([total] * (self.rows // self.videos))
