"""Tiny checkpoints of the official layout of RLVR-World."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fastcar_cli.models.rlvr.tokenizer import CompressiveSpec
from fastcar_lab.dummy.rlvr import shape_of, write


def write_model(folder: Path, kind: str) -> str:
    """A model of frames of 64 x 80 pixels below `folder`, its tokenizer beside it; the model's folder."""
    spec = shape_of(kind)
    sizes: dict[str, Any] = {"blocks": 1, "latent": 4, "groups": 8, "levels": (8, 6, 5)}
    if isinstance(spec.tokenizer, CompressiveSpec):
        tokenizer = replace(spec.tokenizer, channels=(32, 32), dynamics_levels=(8, 6, 5), **sizes)
        spec = replace(spec, tokenizer=tokenizer)
    else:
        spec = replace(spec, tokenizer=replace(spec.tokenizer, channels=(16, 32, 32), **sizes))
    decoder = replace(spec.decoder, width=32, mlp_width=48, layers=2, heads=2, kv_heads=2, vocab=spec.vocabulary)
    return str(write(folder, replace(spec, decoder=decoder)))
