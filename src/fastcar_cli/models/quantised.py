"""Weights in int8 and int4: linear maps that hold them, their rounding, and which matrices of a network have which.

int8: weight int8 [out, in], scale float32 [out]; w[o, i] = q * scale[o], symmetric, scale = max |w[o]| / 127.
int4: groups of 32 along the input. weight uint8 [out, in / 2]: byte k (0 to 15) of group g holds element 32 g + k in
its low nibble and element 32 g + 16 + k in its high one, each as q + 8 with q in -8..7; scale float16 [out, in / 32];
w = q * scale of its group. Activations, norms, embeddings, codebooks and the RQ-VAE keep a float dtype.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

GROUP = 32
"""Weights that share a scale in int4."""

_ROUNDED, _WIDENED = 2**18, 2**22
"""Weights that are rounded or widened at once: few enough for the caches, and enough that threads seldom wait for each
other. Of 2^16 at once, on a machine with other work, two threads took ten times as long.
"""

_CANDIDATES = (8.0, 7.1, 7.4, 7.7, 8.3, 8.6, 8.9)
"""Where minus the largest weight of a group may come to lie, of -8..7; three times as many gain 0.05 % of the error."""


_MULTIPLY: ContextVar[Callable[[QuantisedLinear, Tensor], Tensor] | None] = ContextVar("multiply", default=None)


@contextmanager
def multiplied_by(product: Callable[[QuantisedLinear, Tensor], Tensor]) -> Iterator[None]:
    """Inside, calls of packed maps with x [..., in] are given to `product`, which returns [..., out] in x's dtype."""
    token = _MULTIPLY.set(product)
    try:
        yield
    finally:
        _MULTIPLY.reset(token)


class QuantisedLinear(nn.Module, ABC):
    """A linear map whose weight is stored in few bits; `bias` stays in floats.

    `forward` widens the weight for each call and is the plain reference (and the prefill); decoding reads the stored
    numbers through the compiled kernels. bfloat16 is multiplied in float32: without instructions for it, torch takes
    five times as long for its product.
    """

    kind: ClassVar[str]
    weight: Tensor
    scale: Tensor

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features = inputs, outputs
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    @abstractmethod
    def widened(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in] in a float dtype."""

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out] in the dtype of x."""
        if (product := _MULTIPLY.get()) is not None:
            return product(self, x)
        wide = torch.float32 if x.dtype is torch.bfloat16 else x.dtype
        bias = None if self.bias is None else self.bias.to(wide)
        return F.linear(x.to(wide), self.widened(wide), bias).to(x.dtype)

    @property
    def stored_bytes(self) -> int:
        """Bytes of weight and scale."""
        return self.weight.nbytes + self.scale.nbytes


class Int8Linear(QuantisedLinear):
    """Weight int8 [out, in] and scale float32 [out]."""

    kind = "int8"

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias)
        self.register_buffer("weight", torch.empty(outputs, inputs, dtype=torch.int8))
        self.register_buffer("scale", torch.empty(outputs, dtype=torch.float32))

    def widened(self, dtype: torch.dtype) -> Tensor:
        """See `QuantisedLinear.widened`."""
        return self.weight.to(dtype) * self.scale.to(dtype)[:, None]


class Int4Linear(QuantisedLinear):
    """Weight uint8 [out, in / 2] and scale float16 [out, in / 32]. Raises ValueError where 32 does not divide in."""

    kind = "int4"

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias)
        if inputs % GROUP:
            raise ValueError(f"int4 needs inputs in groups of {GROUP}, given {inputs}")
        self.register_buffer("weight", torch.empty(outputs, inputs // 2, dtype=torch.uint8))
        self.register_buffer("scale", torch.empty(outputs, inputs // GROUP, dtype=torch.float16))

    def widened(self, dtype: torch.dtype) -> Tensor:
        """See `QuantisedLinear.widened`."""
        return widen_int4(self.weight, self.scale, dtype)


KINDS: dict[str, type[QuantisedLinear]] = {"int8": Int8Linear, "int4": Int4Linear}
"""The formats by name."""


def quantise_int8(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A float matrix [out, in] as (int8 [out, in], scale float32 [out]); a row of zeros has scale 1."""
    scale = weight.abs().amax(1).float() / 127
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (weight.float() / scale[:, None]).round_().to(torch.int8), scale


def pack_int4(q: Tensor) -> Tensor:
    """Integers -8..7 [out, in] as bytes uint8 [out, in / 2] in the layout of this file's head."""
    low, high = (q + 8).to(torch.uint8).view(len(q), -1, 2, GROUP // 2).unbind(2)
    return (low | high << 4).flatten(1)


def unpack_int4(weight: Tensor) -> Tensor:
    """The inverse of `pack_int4`: int8 [out, in]."""
    pairs = weight.view(len(weight), -1, 1, GROUP // 2)
    return (torch.cat([pairs & 15, pairs >> 4], 2).view(torch.int8) - 8).flatten(1)


def widen_int4(weight: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes and scales to a matrix [out, in] of a float dtype."""
    out, inputs = len(weight), weight.shape[1] * 2
    wide = torch.empty(out, inputs, dtype=dtype, device=weight.device)
    step = max(1, _WIDENED // inputs)
    for i in range(0, out, step):
        q = unpack_int4(weight[i : i + step]).view(-1, inputs // GROUP, GROUP)
        torch.mul(q, scale[i : i + step, :, None].to(dtype), out=wide[i : i + step].view(q.shape))
    return wide


def _rounded(groups: Tensor, inverse: Tensor) -> Tensor:
    """Groups [n, 32] in units of 1 / inverse [n, 1], as integers of -8..7."""
    return (groups * inverse).round_().clamp_(-8, 7)


def _peaks(groups: Tensor) -> Tensor:
    """The number of each group [n, 32] that is largest in size, with its sign: [n, 1]."""
    least, most = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    return torch.where(most > -least, most, least)


def peak_scales(groups: Tensor) -> Tensor:
    """Plain rounding of groups [n, 32]: the weight largest in size comes to lie on -8; scales [n, 1]."""
    return _peaks(groups) / -8


def inverse_of(scale: Tensor) -> Tensor:
    """1 / scale, and 0 where it is 0."""
    return torch.where(scale == 0, scale, 1 / scale)


def fitted_scales(groups: Tensor, weights: Tensor | None = None) -> Tensor:
    """Scales [n, 1] of groups [n, 32] by least squares, of squares that may have weights [32].

    For each candidate the weights are rounded, and the scale that fits these numbers best is sum(w q) / sum(q q), which
    leaves sum(w w) - sum(w q)^2 / sum(q q): the least of the candidates, `peak_scales` among them, is kept.
    """
    inverse = -1 / _peaks(groups)
    weighted = groups if weights is None else groups * weights
    best, found = torch.zeros_like(inverse), torch.zeros_like(inverse)
    for lies in _CANDIDATES:
        q = _rounded(groups, lies * inverse)
        fit, squares = (q * weighted).sum(1, keepdim=True), q.square_()
        size = (squares if weights is None else squares.mul_(weights)).sum(1, keepdim=True)
        gain = fit * fit / size
        better = gain > best
        best, found = torch.where(better, gain, best), torch.where(better, fit / size, found)
    return found


def quantise_int4(weight: Tensor, scales: Callable[[Tensor], Tensor] = fitted_scales) -> tuple[Tensor, Tensor]:
    """A float matrix [out, in] as (uint8 [out, in / 2], scale float16 [out, in / 32]).

    `scales` gives those of groups float32 [n, 32] as float32 [n, 1]. A group whose scale is too small for float16
    becomes zeros, one whose scale is too large gets the largest there is.
    """
    out, inputs = weight.shape
    packed = torch.empty(out, inputs // 2, dtype=torch.uint8, device=weight.device)
    kept = torch.empty(out, inputs // GROUP, dtype=torch.float16, device=weight.device)
    step = max(1, _ROUNDED // inputs)
    for i in range(0, out, step):
        groups = weight[i : i + step].float().reshape(-1, GROUP)
        scale = scales(groups).clamp_(-65504, 65504).half().float()
        inverse = inverse_of(scale)
        packed[i : i + step] = pack_int4(_rounded(groups, inverse).view(-1, inputs))
        kept[i : i + step] = scale.view(-1, inputs // GROUP)
    return packed, kept


QUANTISERS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {"int8": quantise_int8, "int4": quantise_int4}
"""How a float matrix [out, in] becomes weight and scale, by format."""

_PARTS = {
    "blocks": re.compile(r"llm\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)\.weight$"),
    "projector": re.compile(r"projector\.layers\.(\d+\.)?weight$"),
    "depth": re.compile(
        r"depth\.(in_mlp_[12]|classifier_mlp\.linear|head_transformer\.blocks\.\d+\.(attn\.\w+|mlp\.\d+))\.weight$"
        r"|lm_head\.weight$"
    ),
}


_PIXELS = ("rqvae.post_quant_conv.", "rqvae.decoder.", "tokenizer.")
"""What draws and reads pixels stays in float32: without instructions for it a frame in bfloat16 takes minutes."""


@dataclass(frozen=True)
class WeightFormat:
    """What each part of a network is stored as: int8, int4, or None for `floats`.

    `name` is what people call the whole; `floats` the dtype of everything else and of activations and caches.
    """

    name: str
    floats: torch.dtype
    blocks: str | None = None
    projector: str | None = None
    depth: str | None = None

    def of(self, name: str) -> str | None:
        """The format of the parameter of this name; None for floats."""
        return next((getattr(self, part) for part, pattern in _PARTS.items() if pattern.match(name)), None)

    def float_of(self, name: str) -> torch.dtype:
        """The dtype of the parameter of this name where it stays in floats."""
        return torch.float32 if name.startswith(_PIXELS) else self.floats

    def stored(self, name: str, tensor: Tensor) -> Mapping[str, Tensor]:
        """What a parameter becomes: itself in floats, or its numbers and scales under their names."""
        kind = self.of(name)
        if kind is None:
            return {name: tensor.to(self.float_of(name))}
        numbers, scale = QUANTISERS[kind](tensor)
        return {name: numbers, name.removesuffix("weight") + "scale": scale}

    def use(self, network: nn.Module) -> None:
        """Put maps of this format in the place of the matrices of a network that has no weights yet.

        Raises ValueError for a matrix whose inputs int4 can't divide into groups.
        """
        for name, parameter in list(network.named_parameters()):
            if (kind := self.of(name)) is None:
                continue
            path = name.removesuffix(".weight")
            parent, _, last = path.rpartition(".")
            old = cast(nn.Linear, network.get_submodule(path))
            with torch.device(parameter.device):
                new = KINDS[kind](old.in_features, old.out_features, old.bias is not None)
            setattr(network.get_submodule(parent), last, new)

    def bytes_of(self, name: str, shape: torch.Size) -> int:
        """Bytes of a parameter of this name and shape."""
        kind = self.of(name)
        if kind == "int8":
            return shape.numel() + 4 * shape[0]
        if kind == "int4":
            return shape.numel() // 2 + 2 * (shape.numel() // GROUP)
        return shape.numel() * self.float_of(name).itemsize
