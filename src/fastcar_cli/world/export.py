"""From a training checkpoint to the model folder that ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from fastcar_cli.models.checkpoint import GenerationDefaults, save
from fastcar_cli.models.video_model import VideoModel
from fastcar_cli.world.lexicon import FILLERS, PHRASES, VOCABULARY
from fastcar_cli.world.recipe import MINI, MINI_DEFAULTS, PROMPT_LENGTH
from fastcar_cli.world.scene import ATTRIBUTES
from fastcar_cli.world.train_tokenizer import Tokenizer

ENCODER_FILE = "encoder.safetensors"


def text_section() -> dict[str, Any]:
    """The text tokenizer of the bundled model as plain data, for config.json."""
    return {
        "vocabulary": list(VOCABULARY),
        "phrases": {k: list(v) for k, v in PHRASES.items()},
        "fillers": sorted(FILLERS),
        "length": PROMPT_LENGTH,
        "groups": {k: list(v) for k, v in ATTRIBUTES.items()},
    }


def export(
    folder: Path, checkpoint: Path, tokenizer_file: Path, defaults: GenerationDefaults = MINI_DEFAULTS
) -> VideoModel:
    """Write config.json, model.safetensors and the patch encoder, as float16; returns the network."""
    tokenizer = Tokenizer.load(tokenizer_file)
    network = VideoModel(MINI)
    network.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
    # The checkpoint of the decoder model holds the pixels decoder as it was when that training began.
    network.rqvae.load_state_dict(tokenizer.rqvae.state_dict())
    save(folder, network, text_section(), defaults, torch.float16)
    encoder = {k: v.half().contiguous() for k, v in tokenizer.encoder.state_dict().items()}
    save_file(encoder, str(folder / ENCODER_FILE))
    (folder / ENCODER_FILE).chmod(0o644)
    return network
