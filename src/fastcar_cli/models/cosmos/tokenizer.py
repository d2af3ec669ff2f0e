"""Causal video tokenizer: frames to ids and ids to frames (Cosmos-Tokenize1-DV8x16x16).

The first latent stands for one frame, every later one for `CausalVideoSpec.time` frames. Nothing looks ahead, so a
video is encoded and decoded a latent at a time, and the first frames have the ids that they have in a longer video.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.models.cosmos.fsq import codes_of, ids_of
from fastcar_cli.models.cosmos.tokenizer_blocks import (
    Level,
    LevelSpec,
    Middle,
    Norm,
    Pair,
    Past,
    Pointwise,
    patched,
    unpatched,
)
from fastcar_cli.system.limits import give_back_memory
from fastcar_cli.system.plain_data import WHOLE, Flag, Size

COLOURS = 3

Progress = Callable[[int, int], None]
"""Receives multiply-adds done and to be done."""


@dataclass(frozen=True, config=WHOLE)
class CausalVideoSpec:
    """Sizes of the tokenizer.

    `patch` is the side of the cube of pixels that wavelets make one place of, `levels` of the quantiser, a number a
    dimension of a code, `latent` the width before it. `down` are the levels of the encoder, of which the first has
    maps of `width` channels to begin with; `up` those of the decoder, the last one first used. Raises ValueError for a
    patch that is not a power of two.
    """

    patch: Size
    levels: tuple[Size, ...]
    latent: Size
    width: Size
    down: tuple[LevelSpec, ...]
    up: tuple[LevelSpec, ...]
    encoder_attention: Flag = True
    decoder_attention: Flag = True

    def __post_init__(self) -> None:
        if 2**self.steps != self.patch:
            raise ValueError(f"patch {self.patch} is not a power of two")
        if not (self.levels and self.down and self.up and all(level.widths for level in (*self.down, *self.up))):
            raise ValueError("a level without blocks, or no level")
        if min(self.levels) < 2:
            raise ValueError(f"levels {list(self.levels)}: a dimension of one value")

    @property
    def steps(self) -> int:
        """Steps of the wavelets."""
        return self.patch.bit_length() - 1

    @property
    def codes(self) -> int:
        """How many ids there are."""
        return math.prod(self.levels)

    @property
    def time(self) -> int:
        """Frames that a latent but the first stands for."""
        return self.patch << sum(level.time for level in self.down)

    @property
    def space(self) -> int:
        """Side in pixels of what a place of a latent stands for."""
        return self.patch << sum(level.space for level in self.down)

    @property
    def channels(self) -> int:
        """Of a map at the decoder's most places, and of what wavelets make of pixels."""
        return max(*self.up[0].widths, COLOURS * self.patch**3)

    def frames(self, latents: int) -> int:
        """Frames of so many latents."""
        return 1 + self.time * (latents - 1)


class Encoder(nn.Module):
    """Patches of pixels to latents."""

    def __init__(self, spec: CausalVideoSpec) -> None:
        super().__init__()
        *inputs, last = [spec.width, *(level.widths[-1] for level in spec.down)]
        self.conv_in = Pair(COLOURS * spec.patch**3, spec.width)
        self.down = nn.ModuleList(Level(width, level, up=False) for width, level in zip(inputs, spec.down, strict=True))
        self.mid = Middle(last, attention=spec.encoder_attention)
        self.norm_out, self.conv_out = Norm(last), Pair(last, spec.latent)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[P, T, H, W, 3 patch^3] -> [P, t, h, w, latent]."""
        x = self.conv_in(x, past)
        for level in self.down:
            x = level(x, past)
        return self.conv_out(F.silu(self.norm_out(self.mid(x, past)), inplace=True), past)


class Decoder(nn.Module):
    """Latents to patches of pixels."""

    def __init__(self, spec: CausalVideoSpec) -> None:
        super().__init__()
        inputs = [*(level.widths[-1] for level in spec.up[1:]), spec.up[-1].widths[0]]
        self.conv_in = Pair(spec.latent, inputs[-1])
        self.mid = Middle(inputs[-1], attention=spec.decoder_attention)
        self.up = nn.ModuleList(Level(width, level, up=True) for width, level in zip(inputs, spec.up, strict=True))
        last = spec.up[0].widths[-1]
        self.norm_out, self.conv_out = Norm(last), Pair(last, COLOURS * spec.patch**3)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[P, t, h, w, latent] -> [P, T, H, W, 3 patch^3]."""
        frames: Iterable[Tensor] = self.mid(self.conv_in(x, past), past).split(1, 1)
        for level in reversed(self.up):
            assert isinstance(level, Level)
            frames = level.frames(frames, past)
        return torch.cat([self.conv_out(F.silu(self.norm_out(x), inplace=True), past) for x in frames], 1)


class CausalVideoTokenizer(nn.Module):
    """Both networks and the quantiser between them; each computes in the dtype of its weights."""

    def __init__(self, spec: CausalVideoSpec) -> None:
        super().__init__()
        self.spec = spec
        width = len(spec.levels)
        self.encoder, self.quant_conv = Encoder(spec), Pointwise(spec.latent, width)
        self.post_quant_conv, self.decoder = Pointwise(width, spec.latent), Decoder(spec)

    def draw_in(self, dtype: torch.dtype) -> None:
        """Decode in this dtype from now on; ids of frames stay those of float32."""
        self.post_quant_conv.to(dtype)
        self.decoder.to(dtype)

    def latents(self, frames: Tensor, past: Past) -> Tensor:
        """What ids are made of, float32 [P, t, h, w, D], of the next frames [P, T, H, W, 3] of a video.

        Frames are uint8, or float32 in 0 .. 1.
        """
        pixels = (frames if frames.is_floating_point() else frames.to(torch.float32).div_(255)).mul(2).sub_(1)
        if past.first(self.encoder.conv_in[1]):
            pixels = torch.cat([pixels[:, :1].expand(-1, self.spec.patch - 1, -1, -1, -1), pixels], 1)
        x = patched(pixels, self.spec.steps).to(self.quant_conv.conv3d.weight.dtype)
        return self.quant_conv(self.encoder(x, past), past).float()

    def pixels(self, ids: Tensor, past: Past) -> Tensor:
        """The next frames [P, T, H, W, 3] of a video, about -1 .. 1, of the next ids [P, t, h, w]."""
        first = past.first(self.decoder.conv_in[1])
        codes = codes_of(ids, self.spec.levels).to(self.post_quant_conv.conv3d.weight.dtype)
        patches = self.decoder(self.post_quant_conv(codes, past), past)
        return unpatched(patches.float(), self.spec.steps)[:, (self.spec.patch - 1) * first :]

    @torch.inference_mode()
    def encode(self, frames: Tensor, progress: Progress | None = None) -> Tensor:
        """Ids int64 [P, t, h, w] of frames [P, T, H, W, 3], uint8 or float32 in 0 .. 1.

        T = 1 + time (t - 1), sides are multiples of `space`.
        """
        spec, past = self.spec, Past()
        if progress is not None:
            work = work_of(spec, frames.shape[2] // spec.space, frames.shape[3] // spec.space, encode=True)
            total = len(frames) * (work.first + work.later * (frames.shape[1] // spec.time))
            past = Past(lambda done: progress(done, total))
        pieces = [frames[:, :1], *(frames[:, i : i + spec.time] for i in range(1, frames.shape[1], spec.time))]
        ids = torch.cat([ids_of(self.latents(piece, past), spec.levels) for piece in pieces], 1)
        del past
        give_back_memory()
        return ids

    def stream(self) -> LatentDecoder:
        """What decodes the latents of some videos one after another."""
        return LatentDecoder(self)


class LatentDecoder:
    """Decodes latents in their order."""

    def __init__(self, tokenizer: CausalVideoTokenizer) -> None:
        self._tokenizer, self._past = tokenizer, Past()

    @torch.inference_mode()
    def next(self, ids: Tensor) -> Tensor:
        """Frames float32 [P, 1 or time, H, W, 3] in 0 .. 255, not rounded, of the next ids int64 [P, h, w]."""
        frames = self._tokenizer.pixels(ids[:, None], self._past).div_(2).add_(0.5).clamp_(0, 1).mul_(255)
        give_back_memory()
        return frames


class Work(NamedTuple):
    """What latents of a video cost.

    `first` and `later` are multiply-adds of convolutions for the first latent and for each other one, `kept` the
    numbers that are kept from one to the next.
    """

    first: int
    later: int
    kept: int


class _Convolutions(NamedTuple):
    """Some convolutions: their weights, what they keep of a place, and how often sides and time of their output are
    doubled, counted from the latents.
    """

    weights: int
    kept: int
    sides: int
    time: int


def _pair(inputs: int, outputs: int, sides: int, time: int) -> _Convolutions:
    return _Convolutions(9 * inputs * outputs + 3 * outputs**2, 2 * outputs, sides, time)


def _blocks(widths: Sequence[int], sides: int, time: int) -> Iterator[_Convolutions]:
    for a, b in itertools.pairwise(widths):
        yield _pair(a, b, sides, time)
        yield _pair(b, b, sides, time)
        yield _Convolutions(a * b * (a != b), 0, sides, time)


def _middle(width: int, *, attention: bool) -> Iterator[_Convolutions]:
    yield from _blocks((width, width, width), 0, 0)
    # Keys and values of both latents.
    yield _Convolutions(8 * width**2 * attention, 4 * width * attention, 0, 0)


def _encoder(spec: CausalVideoSpec) -> Iterator[_Convolutions]:
    sides, time = (sum(getattr(level, axis) for level in spec.down) for axis in ("space", "time"))
    width = spec.width
    yield _pair(COLOURS * spec.patch**3, width, sides, time)
    for level in spec.down:
        yield from _blocks((width, *level.widths), sides, time)
        width, sides = level.widths[-1], sides - level.space
        yield _Convolutions(9 * width**2 * level.space, 0, sides, time)
        time -= level.time
        yield _Convolutions(3 * width**2 * level.time, width * level.time, sides, time)
        yield _Convolutions(width**2 * (level.space or level.time), 0, sides, time)
    yield from _middle(width, attention=spec.encoder_attention)
    yield _pair(width, spec.latent, 0, 0)
    yield _Convolutions(spec.latent * len(spec.levels), 0, 0, 0)


def _decoder(spec: CausalVideoSpec) -> Iterator[_Convolutions]:
    sides, time, width = 0, 0, spec.up[-1].widths[0]
    yield _Convolutions(spec.latent * len(spec.levels), 0, 0, 0)
    yield _pair(spec.latent, width, 0, 0)
    yield from _middle(width, attention=spec.decoder_attention)
    for level in reversed(spec.up):
        yield from _blocks((width, *level.widths), sides, time)
        width, time = level.widths[-1], time + level.time
        yield _Convolutions(3 * width**2 * level.time, 2 * width * level.time, sides, time)
        sides += level.space
        yield _Convolutions(9 * width**2 * level.space, 0, sides, time)
        yield _Convolutions(width**2 * (level.space or level.time), 0, sides, time)
    yield _pair(width, COLOURS * spec.patch**3, sides, time)


@cache
def work_of(spec: CausalVideoSpec, rows: int, columns: int, *, encode: bool) -> Work:
    """What encoding or decoding latents of rows x columns places costs; `kept` after two of them."""
    parts = [*(_encoder if encode else _decoder)(spec)]
    places = [rows * columns * 4**part.sides for part in parts]
    return Work(
        first=sum(part.weights * n for part, n in zip(parts, places, strict=True)),
        later=sum(part.weights * n * 2**part.time for part, n in zip(parts, places, strict=True)),
        kept=sum(part.kept * n for part, n in zip(parts, places, strict=True)),
    )
