"""Both tokenizers of RLVR-World: frames to codes and codes to frames, quantised by levels.

The frame tokenizer codes each frame by itself (CNNFSQModel256 of thuml/RLVR-World, ivideogpt/tokenizer). The
compressive one is iVideoGPT's network: a context frame, and frames coded relative to it (CompressiveVQModelFSQ,
ivideogpt/ctx_tokenizer). Both take ids modulo the number of codes.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.models.fsq import FiniteScalars
from fastcar_cli.models.ivideogpt.blocks import ConditionalSpec, ConvHalf, ConvSpec, Sides
from fastcar_cli.models.ivideogpt.tokenizer import ConditionalTokenizer, CrossKV
from fastcar_cli.system.plain_data import WHOLE, Size


@dataclass(frozen=True, kw_only=True, config=WHOLE)
class FrameTokenizerSpec(ConvSpec):
    """Sizes of the frame tokenizer; `levels` are the quantiser's, one per dimension of a code."""

    latents: ClassVar[Sides] = (16, 20)
    late: ClassVar[bool] = True

    levels: tuple[Size, ...]

    @property
    def codes(self) -> int:
        """The number of codes."""
        return math.prod(self.levels)

    @property
    def grid(self) -> Sides:
        """Rows and columns of a frame's codes."""
        return self.latents


@dataclass(frozen=True, kw_only=True, config=WHOLE)
class CompressiveSpec(ConditionalSpec):
    """Sizes of the compressive tokenizer; `levels` are the quantiser's of the context frame, `dynamics_levels` those of
    later ones.
    """

    latents: ClassVar[Sides] = (32, 40)

    levels: tuple[Size, ...]
    dynamics_levels: tuple[Size, ...]

    @property
    def codes(self) -> int:
        """The number of codes of the context frame."""
        return math.prod(self.levels)

    @property
    def dynamics(self) -> int:
        """The number of codes of later frames."""
        return math.prod(self.dynamics_levels)

    @property
    def context_grid(self) -> Sides:
        """Rows and columns of the context frame's codes."""
        return self.latents


class FrameTokenizer(nn.Module):
    """Encoder, quantiser and decoder."""

    def __init__(self, spec: FrameTokenizerSpec) -> None:
        super().__init__()
        self.spec, width = spec, len(spec.levels)
        self.encoder, self.decoder = (ConvHalf(spec, up=up) for up in (False, True))
        self.quant_linear = nn.Conv2d(spec.latent, width, 1)
        self.post_quant_linear = nn.Conv2d(width, spec.latent, 1)
        self.quantize = FiniteScalars(spec.levels)

    def latents(self, frames: Tensor) -> Tensor:
        """Latents to be quantised, float32 [B, D, R, S], of frames float32 [B, 3, H, W] in 0..1."""
        return self.quant_linear(self.encoder(frames)[0])

    def encode(self, frames: Tensor) -> Tensor:
        """Codes int64 [B, R S] of frames float32 [B, 3, H, W] in 0..1."""
        return self.quantize.nearest(self.latents(frames).permute(0, 2, 3, 1)).flatten(1)

    def decode(self, codes: Tensor) -> Tensor:
        """Frames float32 [B, 3, H, W], not clamped, of codes [B, R S]."""
        vectors = self.quantize(codes).to(self.post_quant_linear.weight)
        z = self.post_quant_linear(vectors.unflatten(1, self.spec.grid).permute(0, 3, 1, 2))
        return self.decoder(z)[0].float()

    def decode_pixels_in(self, dtype: torch.dtype) -> None:
        """Decode in this dtype from now on; encoding stays in float32."""
        for part in (self.post_quant_linear, self.decoder):
            part.to(dtype)


class CompressiveTokenizer(ConditionalTokenizer):
    """iVideoGPT's networks with one context frame."""

    spec: CompressiveSpec

    def __init__(self, spec: CompressiveSpec) -> None:
        super().__init__(spec, (len(spec.levels), len(spec.dynamics_levels)))
        self.quantize, self.dynamics_quantize = FiniteScalars(spec.levels), FiniteScalars(spec.dynamics_levels)

    def encode_context(self, frames: Tensor) -> tuple[Tensor, CrossKV]:
        """Codes int64 [B, R S] of context frames float32 [B, 3, H, W] in 0..1, and what `encode_later` needs."""
        codes, cross = self.read_context(frames[:, None])
        return codes[:, 0], cross

    def encode_later(self, frames: Tensor, cross: CrossKV) -> Tensor:
        """Codes int64 [B, n, codes of a frame] of frames float32 [B, n, 3, H, W] in 0..1."""
        return self.dynamics_quantize.nearest(self.patches(frames, cross))

    def decode_context(self, codes: Tensor) -> tuple[Tensor, CrossKV]:
        """Context frames float32 [B, 3, H, W], not clamped, of codes [B, R S], and what `decode_later` needs."""
        pixels, cross = self.draw_context(codes[:, None])
        return pixels[:, 0].float(), cross

    def decode_later(self, codes: Tensor, cross: CrossKV) -> Tensor:
        """Later frames float32 [B, n, 3, H, W], not clamped, of codes [B, n, codes of a frame]."""
        return self.draw_later(codes, cross).float()

    def decode_pixels_in(self, dtype: torch.dtype) -> None:
        """Decode in this dtype from now on; encoding stays in float32."""
        for part in (self.post_quant_conv, self.decoder, self.post_quant_linear, self.cond_decoder):
            part.to(dtype)
