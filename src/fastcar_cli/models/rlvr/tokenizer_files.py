"""Reads a specification from the config.json of RLVR-World's tokenizers, as diffusers writes it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from fastcar_cli.models.ivideogpt.checkpoint import ConditionalConfig, ConvConfig
from fastcar_cli.models.rlvr.tokenizer import CompressiveSpec, FrameTokenizerSpec
from fastcar_cli.system.plain_data import Layers, Size, checked, read_json, wrong

LEVELS = {8: (8, 6, 5), 10: (8, 5, 5, 5), 12: (7, 5, 5, 5, 5), 14: (8, 8, 8, 6, 5), 16: (8, 8, 8, 5, 5, 5)}
"""Levels of the quantiser by their key in the configs (finite_scalar_quantize.py get_fsq_levels)."""

_MOST_CODES = 2**24


class _Frame(ConvConfig):
    channels: tuple[Size, ...] = Field((128, 256, 256, 512, 768), min_length=1, validation_alias="block_out_channels")
    latent: Size = Field(64, validation_alias="latent_channels")
    fsq_levels: Any = 12


class _Compressive(ConditionalConfig):
    channels: tuple[Size, ...] = Field((64,), min_length=1, validation_alias="block_out_channels")
    blocks: Layers = Field(1, validation_alias="layers_per_block")
    latent: Size = Field(3, validation_alias="latent_channels")
    context: Literal[1] = Field(1, validation_alias="context_length")
    vq_fsq_levels: Any = 12
    dyn_fsq_levels: Any = 12


def _levels(file: Path, config: _Frame | _Compressive, key: str, *, lists: bool = False) -> tuple[int, ...]:
    given = getattr(config, key)
    if type(given) is int and given in LEVELS:
        return LEVELS[given]
    whole = isinstance(given, list) and given and all(type(n) is int and n > 1 for n in given)
    if lists and whole and math.prod(given) <= _MOST_CODES:
        return tuple(given)
    listed = ", or a list of whole numbers that are at least 2 and have a product of at most 2^24" * lists
    raise wrong(file, key, given, f"one of {', '.join(map(str, LEVELS))}".replace(", 16", " or 16") + listed)


def read_tokenizer(file: Path) -> FrameTokenizerSpec | CompressiveSpec:
    """The specification of a tokenizer by its config.json. Raises RequestError naming file and key."""
    data = read_json(file, hint="give a folder with an RLVR-World tokenizer")
    kind = data.get("_class_name") if isinstance(data, dict) else None
    if kind == "CNNFSQModel256":
        frame = checked(_Frame, data, file)
        levels = _levels(file, frame, "fsq_levels", lists=True)
        return FrameTokenizerSpec(**frame.fitting(file), levels=levels)
    if kind == "CompressiveVQModelFSQ":
        config = checked(_Compressive, data, file)
        levels, dynamics = (_levels(file, config, key) for key in ("vq_fsq_levels", "dyn_fsq_levels"))
        return config.specified(CompressiveSpec, file, levels=levels, dynamics_levels=dynamics)
    raise wrong(file, "_class_name", kind, "CNNFSQModel256 or CompressiveVQModelFSQ")
