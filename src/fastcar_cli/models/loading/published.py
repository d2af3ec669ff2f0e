"""Shapes of released models by name, for what is computed or timed without their files."""

from __future__ import annotations

from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from fastcar_cli.models.cosmos import CosmosSpec
from fastcar_cli.models.decoder_spec import Axes, DecoderSpec
from fastcar_cli.models.ivideogpt import IVideoGPTSpec
from fastcar_cli.models.ivideogpt_blocks import TokenizerSpec
from fastcar_cli.models.loading.causal_video import PUBLISHED
from fastcar_cli.models.loading.names import COSMOS, IVIDEOGPT
from fastcar_cli.models.network import Spec
from fastcar_cli.models.video_model import ModelSpec

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


def _ivideogpt(name: str) -> IVideoGPTSpec:
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


def full_configs() -> dict[str, Any]:
    """The config files of VILA-U 7B by part."""
    file = resources.files("fastcar_cli.models.loading") / "vila_u_7b.yaml"
    return yaml.safe_load(file.read_text(encoding="utf-8"))


@lru_cache(maxsize=1)
def full_spec() -> ModelSpec:
    """The specification of VILA-U 7B."""
    # `vila_u` reads the names that this module knows.
    from fastcar_cli.models.loading.vila_u import spec_of

    return spec_of("vila-u-7b", Path(), **full_configs())


_COSMOS = {
    # Name behind "cosmos-predict1-": width, layers, width of a text's vectors, whether YaRN stretches frequencies.
    "4b": (4096, 16, 0, False),
    "12b": (5120, 40, 0, True),
    "5b-video2world": (4096, 16, 1024, False),
    "13b-video2world": (5120, 40, 1024, True),
}


def _cosmos(name: str) -> CosmosSpec:
    width, layers, source, grown = _COSMOS[name.removeprefix("cosmos-predict1-")]
    return CosmosSpec(
        name, 33, 25, cosmos_decoder(width, layers, 32, 8, 128, 14336, PUBLISHED.codes, source, grown), PUBLISHED
    )


def cosmos_decoder(
    width: int, layers: int, heads: int, kv_heads: int, head: int, mlp_width: int, codes: int, source: int, grown: bool
) -> DecoderSpec:
    """The decoder of a Cosmos model; `source` is the width of a text's vectors, 0 without; `grown`: with YaRN.

    Raises ValueError for sizes that do not fit.
    """
    lead = int(source > 0)
    return DecoderSpec(
        width=width,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        mlp_width=mlp_width,
        # With text the table has a row for the token before the first, and is filled up to a multiple of 64.
        vocab=-(-(codes + 1) // 64) * 64 if source else codes,
        rms_eps=1e-5,
        rope_theta=500000.0,
        max_positions=lead + 5 * 40 * 64,
        head_width=head,
        head_norms=True,
        axes=Axes((40, 64), lead, (3, 40, 40) if grown else ()),
        source=source,
    )


def published_spec(name: str) -> Spec | None:
    """The shapes of a released model as they are published; None for any other name."""
    if name in COSMOS:
        return _cosmos(name)
    if name in IVIDEOGPT:
        return _ivideogpt(name)
    if name == "vila-u-7b":
        return full_spec()
    return None


def published_frames(folder: Path) -> int | None:
    """Frames that a released model was trained on, by a folder of its name, as the hub's cache has it; None for others.

    No file of a checkpoint states them.
    """
    for part in reversed(folder.resolve().parts):
        for name in IVIDEOGPT:
            if part == name or part == f"models--thuml--{name}":
                return _ivideogpt(name).frames
    return None
