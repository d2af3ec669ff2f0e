"""The replay rule where all MLP outputs are computed at once, as in training."""

from __future__ import annotations

import torch
from torch import Tensor


def replay_known(outputs: Tensor, hits: Tensor, n: int) -> Tensor:
    """MLP outputs used where all are computed at once and some replay (a teacher-forced run, as in training).

    outputs [B, S, width] of S visual tokens in frames of n; hits bool [B, S - n] says which of the tokens
    from n on replay. What a frame used is what the next one may replay, so chains are right.
    """
    frames = [outputs[:, :n]]
    for begin in range(n, outputs.shape[1], n):
        now = outputs[:, begin : begin + n]
        hit = hits[:, begin - n : begin - n + now.shape[1], None]
        frames.append(torch.where(hit, frames[-1][:, : now.shape[1]], now))
    return torch.cat(frames, 1)
