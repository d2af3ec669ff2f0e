"""From a training checkpoint to the model folder that ships."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from fastcar_cli.models.checkpoint import GenerationDefaults, save
from fastcar_cli.models.rqvae import RQVAE
from fastcar_cli.models.text import PhraseTokenizer
from fastcar_cli.models.video_model import ModelSpec, VideoModel

ENCODER_FILE = "encoder.safetensors"


def export(
    folder: Path,
    spec: ModelSpec,
    words: PhraseTokenizer,
    defaults: GenerationDefaults,
    checkpoint: Path,
    encoder: nn.Module,
    rqvae: RQVAE,
) -> None:
    """Write config.json, model.safetensors and encoder.safetensors, as float16."""
    network = VideoModel(spec)
    network.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
    # What draws the codes may have been trained further than when the checkpoint began.
    network.rqvae.load_state_dict(rqvae.state_dict())
    save(folder, network, words.to_dict(), defaults, torch.float16)
    halved = {k: v.half().contiguous() for k, v in encoder.state_dict().items()}
    save_file(halved, str(folder / ENCODER_FILE))
    (folder / ENCODER_FILE).chmod(0o644)
