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


def orthogonal(matrices: Tensor, dtype: torch.dtype, rounds: int = 5) -> Tensor:
    """About the nearest matrices [k, m, n] with singular values 1, by Newton-Schulz iteration in `dtype`."""
    a, b, c = _COEFFICIENTS
    x = matrices.to(dtype)
    x = x.mT if x.shape[1] > x.shape[2] else x
    x = x / x.flatten(1).norm(dim=1).clamp(min=1e-7)[:, None, None]
    for _ in range(rounds):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if matrices.shape[1] > matrices.shape[2] else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, scaled by sqrt(max(1, rows / columns)). For matrices, and convolutions as the
    matrices that they are on a patch of their input; those of one shape together.
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
            alike: dict[torch.Size, list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault(p.shape, []).append(p)
                    self.state[p].setdefault("momentum", torch.zeros_like(p))
            for shape, some in alike.items():
                gradients = [p.grad for p in some if p.grad is not None]
                moving = [self.state[p]["momentum"] for p in some]
                torch._foreach_lerp_(moving, gradients, 1 - group["momentum"])
                ahead = torch._foreach_lerp(gradients, moving, group["momentum"])
                directions = orthogonal(torch.stack(ahead).flatten(2), self.dtype)
                scale = max(1.0, directions.shape[1] / directions.shape[2]) ** 0.5
                steps = directions.view(len(some), *shape).to(some[0].dtype) * (-scale * group["lr"])
                torch._foreach_add_(some, list(steps.unbind()))
