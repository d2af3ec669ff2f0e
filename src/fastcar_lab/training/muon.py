"""Muon: momentum whose matrices are made orthogonal before they are applied (Jordan et al., 2024).

As `torch.optim.Muon`, which always works in bfloat16; here the precision can be chosen, because
processors without bfloat16 units take twenty times as long for it as for float32.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonal(matrix: Tensor, dtype: torch.dtype, rounds: int = 5) -> Tensor:
    """About the nearest matrix [m, n] with singular values 1, by Newton-Schulz iteration in `dtype`."""
    a, b, c = _COEFFICIENTS
    x = matrix.to(dtype)
    x = x.T if x.shape[0] > x.shape[1] else x
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(rounds):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if matrix.shape[0] > matrix.shape[1] else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled by sqrt(max(1, rows / columns)).

    For matrices, and convolutions as the matrices that they are on a patch of their input.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, momentum: float = 0.95, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Apply the gradients."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["momentum"] = torch.zeros_like(p)
                moving = state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                direction = orthogonal(p.grad.lerp(moving, group["momentum"]).flatten(1), self.dtype)
                scale = max(1.0, direction.shape[0] / direction.shape[1]) ** 0.5
                p.add_(direction.view_as(p).to(p.dtype), alpha=-group["lr"] * scale)
