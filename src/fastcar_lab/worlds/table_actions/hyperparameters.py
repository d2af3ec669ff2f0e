"""What `table-actions` is made of."""

from __future__ import annotations

from fastcar_cli.models.bundled.patch_tokenizer import PatchTokenizerSpec
from fastcar_cli.models.bundled.steered import SteeredSpec
from fastcar_cli.models.decoder import DecoderSpec
from fastcar_lab.worlds.table.hyperparameters import PERIODS
from fastcar_lab.worlds.table_actions.codes import CODES, GRID, GROUND_CODES, PLACES, SIZES, TILES

TOKENIZER = PatchTokenizerSpec(
    grid=GRID, patch=16, plain=GROUND_CODES, period=TILES, parts=SIZES, code_width=96, widths=(160, 256)
)

FRAMES = 6  # frames of a clip in the first stage of training
LONGEST = 8  # frames that the model looks back to at most, which are those of a clip in the last stage

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
        rope_periods=(*PERIODS[:-1], 4096.0),  # the frames of `table` have as many tokens
    ),
    tokenizer=TOKENIZER,
    context=3,
    actions=2,
)
