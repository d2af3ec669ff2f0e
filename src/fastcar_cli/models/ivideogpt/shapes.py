"""Shapes of the released iVideoGPT models, for what is computed or timed without their files."""

from __future__ import annotations

from pathlib import Path

from fastcar_cli.models.decoder_spec import DecoderSpec
from fastcar_cli.models.ivideogpt.blocks import TokenizerSpec
from fastcar_cli.models.ivideogpt.network import IVideoGPTSpec

_FPS = 4

_IVIDEOGPT = {
    # Name behind "ivideogpt-": pixels, context frames, frames, width of actions.
    "oxe-64-act-free": (64, 2, 16, 0),
    "oxe-64-act-free-medium": (64, 2, 16, 0),
    "oxe-64-goal-cond": (64, 2, 16, 0),
    "oxe-256-act-free": (256, 2, 16, 0),
    "bair-64-act-free": (64, 1, 16, 0),
    "bair-64-act-cond": (64, 1, 16, 4),
    "robonet-64-act-cond": (64, 2, 12, 5),
    "vp2-robosuite-64-act-cond": (64, 2, 12, 4),
    "vp2-robodesk-64-act-cond": (64, 2, 12, 5),
}


def published(name: str) -> IVideoGPTSpec:
    """The shapes of a released model by its short name."""
    pixels, context, frames, actions = _IVIDEOGPT[name.removeprefix("ivideogpt-")]
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
    return IVideoGPTSpec(name, frames, _FPS, decoder, tokenizer, actions)


def published_frames(folder: Path) -> int | None:
    """Frames that a released model was trained on, by a folder of its name, as the hub's cache has it; None for others.

    No file of a checkpoint states them.
    """
    for part in reversed(folder.resolve().parts):
        for name in (f"ivideogpt-{short}" for short in _IVIDEOGPT):
            if part == name or part == f"models--thuml--{name}":
                return published(name).frames
    return None
