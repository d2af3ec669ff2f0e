"""Files of the causal video tokenizer, `encoder.jit` and `decoder.jit`: their shapes to a specification, keys to names.
Which blocks, shortcuts and samplers there are follows from the keys, which are also the names of parameters.
"""

from __future__ import annotations

from pathlib import Path

from fastcar_cli.errors import RequestError
from fastcar_cli.models.cosmos.tokenizer import COLOURS, CausalVideoSpec, CausalVideoTokenizer
from fastcar_cli.models.cosmos.tokenizer_blocks import LevelSpec
from fastcar_cli.weights.tensors import Component, StoredShapes
from fastcar_cli.weights.torchscript import TorchScriptFile

HALVES = {"encoder": ("encoder.", "quant_conv."), "decoder": ("decoder.", "post_quant_conv.")}
"""Files without their suffix, and the prefixes of their parameters' keys."""

PUBLISHED = CausalVideoSpec(
    patch=4,
    levels=(8, 8, 8, 5, 5, 5),
    latent=16,
    width=128,
    down=(LevelSpec((256, 256), space=True, time=True), LevelSpec((512, 512), space=True), LevelSpec((512, 512))),
    up=(LevelSpec((256,) * 3), LevelSpec((512,) * 3, space=True, time=True), LevelSpec((512,) * 3, space=True)),
)
"""Of Cosmos-Tokenize1-DV8x16x16-720p."""

_LEVELS = "quantizer._levels"
_IGNORED = ("quantizer.", "inv_quant.", "encoder.patcher3d.", "decoder.unpatcher3d.")


def _has(shapes: StoredShapes, key: str) -> bool:
    """Whether the file has this convolution."""
    return f"{key}.conv3d.weight" in shapes


def _shape(shapes: StoredShapes, key: str) -> tuple[int, ...]:
    """The shape of a convolution, outputs first. Raises RequestError if it is missing."""
    return shapes.of(f"{key}.conv3d.weight", 5)


def _levels(shapes: StoredShapes, path: str, space: str, time: str) -> tuple[LevelSpec, ...]:
    """The levels below `path`; `space` and `time` are the convolutions of their samplers."""
    levels: list[LevelSpec] = []
    while True:
        level, widths = f"{path}.{len(levels)}", list[int]()
        while _has(shapes, block := f"{level}.block.{len(widths)}.conv1.0"):
            widths.append(_shape(shapes, block)[0])
        if not widths:
            return tuple(levels)
        levels.append(LevelSpec(tuple(widths), _has(shapes, f"{level}.{space}"), _has(shapes, f"{level}.{time}")))


def read_tokenizer_spec(folder: Path) -> CausalVideoSpec:
    """The specification of a tokenizer. Raises RequestError with file and key."""
    encoder, decoder = (StoredShapes(folder / f"{half}.jit") for half in HALVES)
    down = _levels(encoder, "encoder.down", "downsample.conv1", "downsample.conv2")
    up = _levels(decoder, "decoder.up", "upsample.conv2", "upsample.conv1")
    if any(sum(getattr(a, by) for a in down) != sum(getattr(a, by) for a in up) for by in ("space", "time")):
        raise RequestError(f"{folder}: encoder.jit and decoder.jit are of different tokenizers")
    cube = _shape(encoder, "encoder.conv_in.0")[1] / COLOURS
    if (dimensions := encoder.of(_LEVELS, 1)[0]) > 64:
        raise RequestError(f"weights file {encoder.path}, key {_LEVELS!r}: {dimensions} numbers, needed: a few")
    try:
        return CausalVideoSpec(
            patch=round(cube ** (1 / 3)),
            levels=tuple(int(n) for n in TorchScriptFile(encoder.path).rows(_LEVELS, 0, dimensions)),
            latent=_shape(encoder, "encoder.conv_out.1")[0],
            width=_shape(encoder, "encoder.conv_in.1")[0],
            down=down,
            up=up,
            encoder_attention=_has(encoder, "encoder.mid.attn_1.0.q"),
            decoder_attention=_has(decoder, "decoder.mid.attn_1.0.q"),
        )
    except ValueError as e:
        raise RequestError(f"{folder}: no tokenizer has these sizes: {e}") from None


def tokenizer_components(folder: Path, prefix: str, tokenizer: CausalVideoTokenizer) -> list[Component]:
    """Which keys of the two files are which parameters; their names in the network begin with `prefix`."""
    return [
        Component(
            folder,
            {key: prefix + key for key in tokenizer.state_dict() if key.startswith(prefixes)},
            lambda key: key.startswith(_IGNORED),
            (folder / f"{half}.jit",),
        )
        for half, prefixes in HALVES.items()
    ]
