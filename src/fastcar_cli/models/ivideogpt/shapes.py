"""Shapes of the released iVideoGPT models, for what is computed or timed without their files."""

from __future__ import annotations

from pathlib import Path

from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.ivideogpt.blocks import TokenizerSpec
from fastcar_cli.models.ivideogpt.network import IVideoGPTSpec

FPS = 4

_IVIDEOGPT = {
    # Pixels, context frames, frames, width of actions.
    "ivideogpt-oxe-64-act-free": (64, 2, 16, 0),
    "ivideogpt-oxe-64-act-free-medium": (64, 2, 16, 0),
    "ivideogpt-oxe-64-goal-cond": (64, 2, 16, 0),
    "ivideogpt-oxe-256-act-free": (256, 2, 16, 0),
    "ivideogpt-bair-64-act-free": (64, 1, 16, 0),
    "ivideogpt-bair-64-act-cond": (64, 1, 16, 4),
    "ivideogpt-robonet-64-act-cond": (64, 2, 12, 5),
    "ivideogpt-vp2-robosuite-64-act-cond": (64, 2, 12, 4),
    "ivideogpt-vp2-robodesk-64-act-cond": (64, 2, 12, 5),
}


def published(name: str) -> IVideoGPTSpec | None:
    """The shapes of a released model by its short name; None for any other name."""
    if name not in _IVIDEOGPT:
        return None
    pixels, context, frames, actions = _IVIDEOGPT[name]
    width, layers, heads, mlp = (1024, 24, 16, 4096) if name.endswith("-medium") else (768, 12, 12, 3072)
    tokenizer = TokenizerSpec(
        channels=(128, 256, 512) if pixels == 64 else (128, 256, 256, 512, 768),
        blocks=2,
        latent=64,
        code_width=64,
        groups=32,
        context=context,
        codes=8192,
        dynamics=8192,
        attended=16 if pixels == 64 else 32,
        mid_attention=False,
    )
    decoder = DecoderSpec(
        width=width, layers=layers, heads=heads, kv_heads=heads, mlp_width=mlp, vocab=tokenizer.vocabulary,
        max_positions=1024,
    )  # fmt: skip
    return IVideoGPTSpec(name, frames, FPS, decoder, tokenizer, actions)


def published_frames(folder: Path) -> int | None:
    """Frames of a released model's training, by a folder of its name in the hub's cache, as no file states them; else
    None.
    """
    for part in reversed(folder.resolve().parts):
        if (spec := published(part.removeprefix("models--thuml--"))) is not None:
            return spec.frames
    return None
