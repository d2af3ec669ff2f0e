"""What the bundled model is made of, and how its weights start."""

from __future__ import annotations

from fastcar_cli.inputs.worlds.phrases import PhraseTokenizer
from fastcar_cli.models.checkpoint import GenerationDefaults
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.vila_u.network import ModelSpec
from fastcar_lab.worlds.mini.captions import FILLERS, PHRASES, VOCABULARY
from fastcar_lab.worlds.mini.scene import ATTRIBUTES, FRAMES
from fastcar_lab.worlds.mini.train_tokenizer import TOKENIZER_SPEC

PROMPT_LENGTH = 12  # tokens of every prompt, padding included

MINI = ModelSpec(
    name="mini",
    frames=FRAMES,
    fps=8,
    decoder=DecoderSpec(
        width=256,
        layers=6,
        heads=8,
        kv_heads=8,
        mlp_width=704,
        vocab=len(VOCABULARY),
        rope_theta=100.0,
        max_positions=PROMPT_LENGTH + 64 * FRAMES,
    ),
    depth=DepthSpec(width=192, blocks=1, heads=4, depth=2, codes=640, code_width=64, hidden=256),
    rqvae=TOKENIZER_SPEC,
    place_tables=True,
)

MINI_DEFAULTS = GenerationDefaults(
    cfg=1.0, temperature=1.0, top_k=0, top_p=0.4, first_frame_top_p=0.8, tas="attention", gate="row"
)
"""How the bundled model is used where the user says nothing (chosen on held-out captions)."""


def mini_tokenizer() -> PhraseTokenizer:
    """The text tokenizer of the bundled model."""
    return PhraseTokenizer(VOCABULARY, PHRASES, sorted(FILLERS), PROMPT_LENGTH, ATTRIBUTES)
