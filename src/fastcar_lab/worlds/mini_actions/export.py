"""A trained model as a folder in the format of the released checkpoints."""

from __future__ import annotations

from pathlib import Path

import torch

from fastcar_cli.models.ivideogpt.network import IVideoGPT, IVideoGPTSpec
from fastcar_lab.dummy.ivideogpt import write_checkpoint
from fastcar_lab.worlds.mini_actions.train_tokenizer import ActionsTokenizer

SHARPER = 4.0
"""Factor on logits: the released code draws at temperature 1, where a small model would often take an unlikely code."""


def export(spec: IVideoGPTSpec, folder: Path, checkpoint: Path, tokenizer: Path) -> None:
    """Write `tokenizer/` and `transformer/` with their config.json, weights as float16, logits `SHARPER`."""
    network = IVideoGPT(spec)
    network.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
    network.tokenizer.load_state_dict(ActionsTokenizer.load(tokenizer).state_dict())
    network.lm_head.weight.data.mul_(SHARPER)
    write_checkpoint(folder, network, lambda _, tensor: tensor.half().contiguous())
