"""The int8 weight format: the seven matrices of each decoder block with one scale an output.

w[o, :] is stored as round(w / s[o]) with s[o] = max |w[o, :]| / 127, symmetric and without a zero
point. Activations, norms, embeddings, the depth transformer and the RQ-VAE keep their float dtype.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_MATRIX = re.compile(r"llm\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj)\.weight$")


class Int8Linear(nn.Module):
    """A linear map without bias, weight int8 [out, in] and scale float32 [out].

    `forward` widens the weight for each call and is the plain reference (and the prefill); decoding reads
    the int8 numbers through the compiled kernels.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(outputs, inputs, dtype=torch.int8))
        self.register_buffer("scale", torch.empty(outputs, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out] in the dtype of x."""
        return F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)


def is_matrix(name: str) -> bool:
    """Whether a parameter of this name is stored as int8."""
    return bool(_MATRIX.match(name))


def quantize(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A float matrix [out, in] as (int8 [out, in], scale float32 [out]); a row of zeros has scale 1."""
    scale = weight.abs().amax(1).float() / 127
    scale = torch.where(scale == 0, torch.ones_like(scale), scale)
    return (weight.float() / scale[:, None]).round_().to(torch.int8), scale


def quantized(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
    """What a parameter becomes in the int8 format: itself, or its numbers and scales under their names."""
    if not is_matrix(name):
        return {name: tensor}
    numbers, scale = quantize(tensor)
    return {name: numbers, name.removesuffix("weight") + "scale": scale}


def use_int8(network: nn.Module) -> None:
    """Put int8 maps in the place of the block matrices of a network that has no weights yet."""
    for name in [n for n, _ in network.named_parameters() if is_matrix(n)]:
        path = name.removesuffix(".weight")
        parent, _, last = path.rpartition(".")
        old = cast(nn.Linear, network.get_submodule(path))
        with torch.device(old.weight.device):
            setattr(network.get_submodule(parent), last, Int8Linear(old.in_features, old.out_features))
