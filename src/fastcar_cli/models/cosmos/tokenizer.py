"""Causal video tokenizer: frames to ids and ids to frames (Cosmos-Tokenize1-DV8x16x16).

The first latent stands for one frame, every later one for `CausalVideoSpec.time` frames. No layer looks ahead, so a
video is encoded and decoded latent by latent, and its first frames have the same ids as in a longer video.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.models.cosmos.tokenizer_blocks import (
    Level,
    LevelSpec,
    Norm,
    Pair,
    Past,
    Pointwise,
    middle,
    patched,
    unpatched,
)
from fastcar_cli.models.fsq import codes_of, ids_of
from fastcar_cli.system.limits import give_back_memory
from fastcar_cli.system.plain_data import WHOLE, Flag, Size

COLOURS = 3

Progress = Callable[[int, int], None]  # receives the multiply-adds done and the total


@dataclass(frozen=True, config=WHOLE)
class CausalVideoSpec:
    """Sizes of the tokenizer. Raises ValueError for a patch that is not a power of two."""

    patch: Size  # side in pixels of the cube that wavelets map to one position
    levels: tuple[Size, ...]  # the quantiser's, one per dimension of a code
    latent: Size  # width before the quantiser
    width: Size  # channels of the encoder's first maps
    down: tuple[LevelSpec, ...]  # of the encoder
    up: tuple[LevelSpec, ...]  # of the decoder, the last one used first
    encoder_attention: Flag = True
    decoder_attention: Flag = True

    def __post_init__(self) -> None:
        if 2**self.steps != self.patch:
            raise ValueError(f"patch size {self.patch} is not a power of two")
        if not (self.levels and self.down and self.up and all(level.widths for level in (*self.down, *self.up))):
            raise ValueError("levels, down and up must not be empty, and each entry of down and up must have widths")
        if min(self.levels) < 2:
            raise ValueError(f"levels are {list(self.levels)}, expected numbers of at least 2")

    @property
    def steps(self) -> int:
        """Number of wavelet steps."""
        return self.patch.bit_length() - 1

    @property
    def codes(self) -> int:
        """The number of ids."""
        return math.prod(self.levels)

    @property
    def time(self) -> int:
        """Frames per latent frame, except the first."""
        return self.patch << sum(level.time for level in self.down)

    @property
    def space(self) -> int:
        """Side in pixels of the square that a position of a latent covers."""
        return self.patch << sum(level.space for level in self.down)

    @property
    def channels(self) -> int:
        """Maximum channels of the decoder's largest maps, and of the wavelets of pixels."""
        return max(*self.up[0].widths, COLOURS * self.patch**3)

    def frames(self, latents: int) -> int:
        """Frames of this many latents."""
        return 1 + self.time * (latents - 1)


class VideoEncoder(nn.Module):
    """Patches of pixels to latents."""

    def __init__(self, spec: CausalVideoSpec) -> None:
        super().__init__()
        *inputs, last = [spec.width, *(level.widths[-1] for level in spec.down)]
        self.conv_in = Pair(COLOURS * spec.patch**3, spec.width)
        self.down = nn.ModuleList(Level(width, level, up=False) for width, level in zip(inputs, spec.down, strict=True))
        self.mid = middle(last, attention=spec.encoder_attention)
        self.norm_out, self.conv_out = Norm(last), Pair(last, spec.latent)

    def forward(self, x: Tensor, past: Past) -> Tensor:
        """[P, T, H, W, 3 patch^3] -> [P, t, h, w, latent]."""
        x = self.conv_in(x, past)
        for level in self.down:
            x = level(x, past)
        return self.conv_out(F.silu(self.norm_out(self.mid(x, past)), inplace=True), past)


class VideoDecoder(nn.Module):
    """Latents to patches of pixels."""

    def __init__(self, spec: CausalVideoSpec) -> None:
        super().__init__()
        inputs = [*(level.widths[-1] for level in spec.up[1:]), spec.up[-1].widths[0]]
        self.conv_in = Pair(spec.latent, inputs[-1])
        self.mid = middle(inputs[-1], attention=spec.decoder_attention)
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
    """Encoder, quantiser and decoder; each computes in the dtype of its weights."""

    def __init__(self, spec: CausalVideoSpec) -> None:
        super().__init__()
        self.spec = spec
        width = len(spec.levels)
        self.encoder, self.quant_conv = VideoEncoder(spec), Pointwise(spec.latent, width)
        self.post_quant_conv, self.decoder = Pointwise(width, spec.latent), VideoDecoder(spec)

    def decode_pixels_in(self, dtype: torch.dtype) -> None:
        """Decode in this dtype from now on; encoding stays in float32."""
        self.post_quant_conv.to(dtype)
        self.decoder.to(dtype)

    def latents(self, frames: Tensor, past: Past) -> Tensor:
        """Latents to be quantised, float32 [P, t, h, w, D], of the next frames [P, T, H, W, 3], uint8 or 0 .. 1."""
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
        """Ids int64 [P, t, h, w] of frames [P, T, H, W, 3], uint8 or float32 in 0 .. 1; T = 1 + time (t - 1)."""
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

    @torch.inference_mode()
    def decode(self, ids: Tensor, past: Past) -> Tensor:
        """Frames float32 [P, 1 or time, H, W, 3] in 0 .. 255, not rounded, of the next ids int64 [P, h, w]."""
        frames = self.pixels(ids[:, None], past).div_(2).add_(0.5).clamp_(0, 1).mul_(255)
        give_back_memory()
        return frames


class Work(NamedTuple):
    """The cost of a video's latents: multiply-adds of convolutions for the first latent and for each later one, and how
    many numbers are in memory between two latents.
    """

    first: int
    later: int
    held: int


@cache
def work_of(spec: CausalVideoSpec, rows: int, columns: int, *, encode: bool) -> Work:
    """The cost of encoding or decoding latents of rows x columns positions; `held` after two of them.
    It is proportional to the positions, so two latents of one position are counted, with weights that are not set.
    """
    with torch.device("meta"):
        tokenizer = CausalVideoTokenizer(spec)
    tokenizer.to_empty(device="cpu")
    past, done = Past(), list[int]()
    with torch.inference_mode():
        for frames in (1, spec.time):
            if encode:
                tokenizer.latents(torch.zeros(1, frames, spec.space, spec.space, COLOURS), past)
            else:
                tokenizer.pixels(torch.zeros(1, 1, 1, 1, dtype=torch.int64), past)
            done.append(past.work)
    places = rows * columns
    return Work(done[0] * places, (done[1] - done[0]) * places, past.held * places)
