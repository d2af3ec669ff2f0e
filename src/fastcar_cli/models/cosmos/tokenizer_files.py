"""Files of the causal video tokenizer, `encoder.jit` and `decoder.jit`: their shapes to a specification, keys to names.

Parameters have the names of their keys. Which blocks, shortcuts and samplers there are follows from the keys.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from fastcar_cli.errors import RequestError
from fastcar_cli.models.cosmos.tokenizer import COLOURS, CausalVideoSpec, CausalVideoTokenizer
from fastcar_cli.models.cosmos.tokenizer_blocks import LevelSpec
from fastcar_cli.weights.tensors import Component
from fastcar_cli.weights.torchscript import TorchScriptFile

HALVES = {"encoder": ("encoder.", "quant_conv."), "decoder": ("decoder.", "post_quant_conv.")}
"""Files without their suffix, and how the keys of parameters in each begin."""

PUBLISHED = CausalVideoSpec(
    patch=4,
    levels=(8, 8, 8, 5, 5, 5),
    latent=16,
    width=128,
    down=(LevelSpec((256, 256), space=True, time=True), LevelSpec((512, 512), space=True), LevelSpec((512, 512))),
    up=(LevelSpec((256,) * 3), LevelSpec((512,) * 3, space=True, time=True), LevelSpec((512,) * 3, space=True)),
)
"""Of Cosmos-Tokenize1-DV8x16x16-720p."""

_IGNORED = ("quantizer.", "inv_quant.", "encoder.patcher3d.", "decoder.unpatcher3d.")


class _Half:
    """One of the two files."""

    def __init__(self, folder: Path, half: str) -> None:
        self.path = folder / f"{half}.jit"
        if not self.path.is_file():
            raise RequestError(
                f"weights file {self.path} is missing", hint="a tokenizer folder holds encoder.jit and decoder.jit"
            )
        self.file = TorchScriptFile(self.path)

    def width(self, key: str) -> int:
        """Outputs of a convolution. Raises RequestError where there is none."""
        return self.shape(f"{key}.conv3d.weight")[0]

    def shape(self, key: str) -> tuple[int, ...]:
        """Raises RequestError where there is no such tensor, or one of a single number."""
        if not (shape := self.file.shapes.get(key)):
            raise RequestError(f"weights file {self.path} lacks key {key!r}")
        return shape

    def has(self, key: str) -> bool:
        """Whether there is a convolution."""
        return f"{key}.conv3d.weight" in self.file.shapes

    def numbers(self, key: str) -> tuple[int, ...]:
        """Whole numbers of a small tensor. Raises RequestError where it is none."""
        if len(shape := self.shape(key)) != 1 or shape[0] > 64:
            raise RequestError(f"weights file {self.path}, key {key!r}: shape {list(shape)}, needed a few numbers")
        return tuple(int(n) for n in self.file.rows(key, 0, shape[0]))

    def levels(self, path: str, space: str, time: str) -> tuple[LevelSpec, ...]:
        """The levels below `path`; `space` and `time` are the convolutions of their samplers."""
        levels: list[LevelSpec] = []
        for i in itertools.count():
            widths: list[int] = []
            while self.has(block := f"{path}.{i}.block.{len(widths)}.conv1.0"):
                widths.append(self.width(block))
            if not widths:
                return tuple(levels)
            levels.append(LevelSpec(tuple(widths), self.has(f"{path}.{i}.{space}"), self.has(f"{path}.{i}.{time}")))
        raise AssertionError


def read_tokenizer_spec(folder: Path) -> CausalVideoSpec:
    """The specification of a tokenizer. Raises RequestError naming file and key."""
    encoder, decoder = (_Half(folder, half) for half in HALVES)
    down = encoder.levels("encoder.down", "downsample.conv1", "downsample.conv2")
    up = decoder.levels("decoder.up", "upsample.conv2", "upsample.conv1")
    if any(sum(getattr(a, by) for a in down) != sum(getattr(a, by) for a in up) for by in ("space", "time")):
        raise RequestError(f"{folder}: encoder.jit and decoder.jit are of two tokenizers, what one halves stays halved")
    cube = encoder.shape("encoder.conv_in.0.conv3d.weight")[1] / COLOURS
    try:
        return CausalVideoSpec(
            patch=round(cube ** (1 / 3)),
            levels=encoder.numbers("quantizer._levels"),
            latent=encoder.width("encoder.conv_out.1"),
            width=encoder.width("encoder.conv_in.1"),
            down=down,
            up=up,
            encoder_attention=encoder.has("encoder.mid.attn_1.0.q"),
            decoder_attention=decoder.has("decoder.mid.attn_1.0.q"),
        )
    except ValueError as e:
        raise RequestError(f"{folder}: no tokenizer has these sizes: {e}") from None


def tokenizer_components(folder: Path, prefix: str, tokenizer: CausalVideoTokenizer) -> list[Component]:
    """Which keys of the two files are which parameters; their names in the network begin with `prefix`."""
    return [
        Component(
            folder,
            {key: prefix + key for key in tokenizer.state_dict() if key.startswith(beginnings)},
            lambda key: key.startswith(_IGNORED),
            (folder / f"{half}.jit",),
        )
        for half, beginnings in HALVES.items()
    ]
