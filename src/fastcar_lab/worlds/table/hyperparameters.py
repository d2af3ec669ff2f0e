"""What the model `table` is made of."""

from __future__ import annotations

from fastcar_cli.inputs.worlds.physics import MapSpec
from fastcar_cli.models.checkpoint import GenerationDefaults
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.depth import DepthSpec
from fastcar_cli.models.vila_u.network import ModelSpec
from fastcar_lab.worlds.table.ground import PERIOD
from fastcar_lab.worlds.table.lexicon import PROMPT_LENGTH, VOCABULARY
from fastcar_lab.worlds.table.placement import CELL, TOKENS
from fastcar_lab.worlds.table.scene import (
    COLORS,
    FRAMES,
    GROUNDS,
    LIGHTS,
    MASS,
    MATERIALS,
    SHAPES,
    SIZES,
    TURNED,
    Thing,
)
from fastcar_lab.worlds.table.sprites import SHADOW_SHIFT
from fastcar_lab.worlds.table.tokenizer import TABLE_RQVAE


def _meanings() -> tuple[str, ...]:
    """What each token of the vocabulary says to the map of a placement, see `MapSpec`."""
    kinds = {"shape": SHAPES, "color": tuple(COLORS), "material": MATERIALS, "size": SIZES}
    around = {"floor": GROUNDS, "light": tuple(LIGHTS)}
    named = {value: f"{kind} {i}" for kind, values in (kinds | around).items() for i, value in enumerate(values)}
    steps = {"right by": "right", "down by": "down", "ground": "shift"}
    said: dict[str, str] = {"turned": f"turned {TURNED}"}
    for token in TOKENS:
        kind, _, number = token.rpartition(" ")
        if kind:
            said[token] = f"{steps.get(kind, kind)} {number}"
    return tuple({**named, **said}.get(token, "") for token in VOCABULARY)


TABLE_MAP = MapSpec(
    meanings=_meanings(),
    reach=tuple(Thing(shape, "", "", size, 0, 0).reach for shape in SHAPES for size in SIZES),
    mass=tuple(MASS[size] for size in SIZES),
    shadow=SHADOW_SHIFT,
    cell=CELL,
    period=PERIOD,
    hidden=768,
)

LONGEST = 128  # frames a video may have

# The first five repeat with the frame and its rows, so "the same place, some frame ago" is one angle
# however long ago. The rest were drawn at random for the least similarity of two positions that differ
# by 1 to 1055 (0.48, against 0.93 for powers of 100), so heads can look at one distance from the start;
# the last one hardly turns, so that a head can look at the caption from anywhere.
PERIODS = (64.0, 32.0, 16.0, 8.0, 4.0, 2.34, 2.50, 2.81, 4.42, 5.84, 8.43, 29.6, 188.0, 355.0, 583.0, 32768.0)

TABLE = ModelSpec(
    name="table",
    frames=FRAMES,
    fps=8,
    decoder=DecoderSpec(
        width=256,
        layers=6,
        heads=8,
        kv_heads=8,
        mlp_width=640,
        vocab=len(VOCABULARY),
        max_positions=PROMPT_LENGTH + TABLE_RQVAE.tokens_per_frame * LONGEST,
        rope_periods=PERIODS,
    ),
    depth=DepthSpec(
        width=192,
        blocks=1,
        heads=4,
        depth=TABLE_RQVAE.depth,
        codes=TABLE_RQVAE.codes,
        code_width=TABLE_RQVAE.code_width,
        hidden=256,
    ),
    rqvae=TABLE_RQVAE,
    map=TABLE_MAP,
)

TABLE_DEFAULTS = GenerationDefaults(
    cfg=1.0, temperature=0.0, top_k=0, top_p=0.4, first_frame_top_p=0.5, tas="attention", gate="row"
)
"""How the model is used where the user says nothing: the likeliest codes, which drew more captions right than top-p 0.4
(docs/table-training.md); the seed decides what a prompt leaves open."""
