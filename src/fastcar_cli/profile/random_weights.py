"""Random weights of the right size, for what is timed without a checkpoint."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor


def random_tensor(
    key: str, shape: torch.Size, dtype: torch.dtype, seed: int, drawn: int = 2**22, device: str = "cpu"
) -> Tensor:
    """A tensor of a checkpoint: norms at 1, biases at 0, matrices so that what they give is of order one.

    About `drawn` numbers are drawn, and rows of them repeated.
    """
    if len(shape) == 1:
        start = 1.0 if key.endswith("weight") else 0.0
        return torch.full(shape, start, dtype=dtype, device=device)
    generator = torch.Generator().manual_seed(seed + zlib.crc32(key.encode()))
    scale = 1.0 if "embed_tokens" in key else shape[1:].numel() ** -0.5
    # Drawing a billion numbers takes longer than all the rest.
    rows = min(shape[0], max(1, drawn // shape[1:].numel()))
    block = (torch.randn(rows, *shape[1:], generator=generator) * scale).to(device, dtype)
    return block.repeat(-(-shape[0] // rows), *[1] * (len(shape) - 1))[: shape[0]].contiguous()
