"""Codes of every scene of the world, encoded once and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fastcar_cli.world.patches import build_dictionary
from fastcar_cli.world.scene import Scene, poses, scenes_of, split_combinations
from fastcar_cli.world.train_tokenizer import TOKENIZER_SPEC


@dataclass(frozen=True)
class Codes:
    """Scenes and their codes, int16 [scenes, frames * 64, depth]."""

    scenes: list[Scene]
    codes: NDArray[np.int16]


def encode_world(cache: Path, log: Callable[[str], None] = print) -> tuple[Codes, Codes]:
    """(trained, held-out) codes of every scene; computed at the first call, then read from `cache`."""
    file = cache / "codes.npz"
    parts = [[s for c in part for s in scenes_of(c)] for part in split_combinations()]
    if not file.exists():
        log("encoding every scene of the world")
        dictionary = build_dictionary(TOKENIZER_SPEC.codes, TOKENIZER_SPEC.code_width)
        arrays = [
            np.stack([np.concatenate([dictionary.codes(s, p) for p in poses(s)]) for s in scenes]) for scenes in parts
        ]
        cache.mkdir(parents=True, exist_ok=True)
        temporary = file.with_suffix(".tmp.npz")
        np.savez(temporary, trained=arrays[0], held_out=arrays[1])
        temporary.replace(file)
    with np.load(file) as data:
        return Codes(parts[0], data["trained"]), Codes(parts[1], data["held_out"])
