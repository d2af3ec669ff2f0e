"""Checkpoints in the format of RLVR-World with random weights: a model's folder, its tokenizer's beside it.

`fastcar lab dummy FOLDER --format rlvr` writes both kinds in full size: they draw noise and cost what the real ones do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fastcar_cli.models.checkpoint import empty_network
from fastcar_cli.models.ivideogpt.checkpoint import names_of
from fastcar_cli.models.rlvr.checkpoint import TOKENIZERS, RLVRCheckpoint
from fastcar_cli.models.rlvr.network import RLVRSpec
from fastcar_cli.models.rlvr.tokenizer import CompressiveSpec, FrameTokenizerSpec
from fastcar_cli.models.rlvr.tokenizer_files import LEVELS
from fastcar_cli.profile.profiler import random_tensor
from fastcar_lab.dummy.ivideogpt import save, tokenizer_config, transformer_config

KINDS = tuple(TOKENIZERS)


def shape_of(kind: str) -> RLVRSpec:
    """The shape of the released models of a kind, `single` or `multi`."""
    spec = RLVRCheckpoint.published_spec(f"rt1-world-model-{kind}-step-base")
    assert spec is not None
    return spec


def _tokenizer(spec: FrameTokenizerSpec | CompressiveSpec) -> dict[str, Any]:
    numbers = {levels: number for number, levels in LEVELS.items()}
    if isinstance(spec, CompressiveSpec):
        codes = {"vq_fsq_levels": numbers[spec.levels], "dyn_fsq_levels": numbers[spec.dynamics_levels]}
        return tokenizer_config("CompressiveVQModelFSQ", spec) | codes
    return tokenizer_config("CNNFSQModel256", spec) | {"fsq_levels": numbers.get(spec.levels, list(spec.levels))}


def write(folder: Path, spec: RLVRSpec, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    """Write the model and its tokenizer below `folder`; the model's folder, which has the specification's name."""
    network = empty_network(spec)
    state, ids = network.state_dict(), {"bos_token_id": spec.vocabulary - 2, "eos_token_id": spec.vocabulary - 1}
    configs = {"tokenizer": _tokenizer(spec.tokenizer), "transformer": transformer_config(spec.decoder) | ids}
    folders = {"tokenizer": TOKENIZERS["multi" if spec.multi else "single"], "transformer": spec.name}
    for part, names in names_of(network).items():
        tensors = {key: random_tensor(key, state[name].shape, dtype, seed) for key, name in names.items()}
        save(folder / folders[part], part, configs[part], tensors)
    return folder / spec.name
