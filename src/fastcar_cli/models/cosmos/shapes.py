"""Shapes of the released Cosmos-Predict1 models, for what is computed or timed without their files."""

from __future__ import annotations

from fastcar_cli.models.cosmos.network import CosmosSpec
from fastcar_cli.models.cosmos.tokenizer_files import PUBLISHED
from fastcar_cli.models.decoder import Axes, DecoderSpec

FRAMES, FPS = 33, 25

_COSMOS = {
    # Width, layers, width of a text's vectors, whether YaRN stretches frequencies.
    "cosmos-predict1-4b": (4096, 16, 0, False),
    "cosmos-predict1-12b": (5120, 40, 0, True),
    "cosmos-predict1-5b-video2world": (4096, 16, 1024, False),
    "cosmos-predict1-13b-video2world": (5120, 40, 1024, True),
}


def published(name: str) -> CosmosSpec | None:
    """The shapes of a released model by its short name; None for any other name."""
    if name not in _COSMOS:
        return None
    width, layers, source, grown = _COSMOS[name]
    decoder = cosmos_decoder(width, layers, 32, 8, 128, 14336, PUBLISHED.codes, source, grown)
    return CosmosSpec(name, FRAMES, FPS, decoder, PUBLISHED)


def cosmos_decoder(
    width: int, layers: int, heads: int, kv_heads: int, head: int, mlp_width: int, codes: int, source: int, grown: bool
) -> DecoderSpec:
    """The decoder of a Cosmos model; `source` is the width of text embeddings, 0 without; `grown`: with YaRN.
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
