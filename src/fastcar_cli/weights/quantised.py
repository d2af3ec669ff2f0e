"""Linear layers whose weights have few bits, in one of `formats.PACKED`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastcar_cli.weights.formats import Format

_MULTIPLY: ContextVar[Callable[[QuantisedLinear, Tensor], Tensor] | None] = ContextVar("multiply", default=None)


@contextmanager
def multiplied_by(product: Callable[[QuantisedLinear, Tensor], Tensor]) -> Iterator[None]:
    """In this block quantised layers call `product(layer, x)`, which returns [..., out] in the dtype of x [..., in].
    Modules know no kernels, so whoever runs them chooses the product.
    """
    token = _MULTIPLY.set(product)
    try:
        yield
    finally:
        _MULTIPLY.reset(token)


class QuantisedLinear(nn.Module):
    """A linear layer whose weight is stored as numbers and scales of a format; `bias` stays in floats.

    `forward` widens the weight for each call, unless `multiplied_by` names another product. On a CPU bfloat16 is
    multiplied in float32, which is faster where there are no instructions for it. Raises ValueError where groups don't
    divide the inputs.
    """

    weight: Tensor
    scale: Tensor

    def __init__(self, form: Format, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__()
        self.form, self.in_features, self.out_features = form, inputs, outputs
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.register_buffer("weight", torch.empty(form.shape(outputs, inputs), dtype=form.dtype))
        self.register_buffer("scale", torch.empty(form.scale_shape(outputs, inputs), dtype=form.scale))

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The weight [out, in] in a float dtype."""
        return self.form.widen(self.weight, self.scale, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] -> [..., out] in the dtype of x."""
        if (product := _MULTIPLY.get()) is not None:
            return product(self, x)
        wide = torch.float32 if x.dtype is torch.bfloat16 and x.device.type == "cpu" else x.dtype
        bias = None if self.bias is None else self.bias.to(wide)
        return F.linear(x.to(wide), self.widened(wide), bias).to(x.dtype)

    @property
    def stored_bytes(self) -> int:
        """Bytes of weight and scale."""
        return self.weight.nbytes + self.scale.nbytes
