"""What a step on a GPU reads and writes on the device besides its batch."""

from __future__ import annotations

import torch

from fastcar_cli.decoding.state import Batch


class DeviceState:
    """What a step reads and writes besides the batch: the input token t, int64 [1], the hidden states [rows, width],
    and of the replay rule thresholds, scores (float32) and flags (uint8), each [layers, rows].
    """

    def __init__(self, batch: Batch) -> None:
        device, spec = batch.codes.device, batch.model.spec.decoder
        self.t = torch.zeros(1, dtype=torch.int64, device=device)
        self.hidden = torch.zeros(batch.rows, spec.width, dtype=batch.model.dtype, device=device)
        self.thresholds = torch.full((spec.layers, batch.rows), torch.inf, device=device)
        self.scores = torch.zeros_like(self.thresholds)
        self.flags = torch.zeros(self.thresholds.shape, dtype=torch.uint8, device=device)
