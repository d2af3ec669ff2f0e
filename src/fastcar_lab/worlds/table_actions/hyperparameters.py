"""What `table-actions` is made of."""

from __future__ import annotations

from fastcar_cli.models.bundled.patch_tokenizer import PatchTokenizerSpec
from fastcar_cli.models.bundled.steered import SteeredSpec
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_lab.worlds.table_actions.codes import CODES, GRID, GROUND_CODES, PLACES, SIZES, TILES

TOKENIZER = PatchTokenizerSpec(
    grid=GRID, patch=16, plain=GROUND_CODES, period=TILES, parts=SIZES, code_width=96, widths=(160, 256)
)

FRAMES = 6  # frames of a clip in the first stage of training
LONGEST = 8  # frames that the model looks back to at most, which are those of a clip in the last stage

# As those of `table`, whose frames have as many tokens.
_PERIODS = (64.0, 32.0, 16.0, 8.0, 4.0, 2.34, 2.50, 2.81, 4.42, 5.84, 8.43, 29.6, 188.0, 355.0, 583.0, 4096.0)

TABLE_ACTIONS = SteeredSpec(
    name="table-actions",
    frames=LONGEST,
    fps=10,
    decoder=DecoderSpec(
        width=256,
        layers=4,
        heads=8,
        kv_heads=8,
        mlp_width=384,
        vocab=CODES,
        max_positions=PLACES * LONGEST,
        rope_periods=_PERIODS,
    ),
    tokenizer=TOKENIZER,
    context=3,
    actions=2,
)
