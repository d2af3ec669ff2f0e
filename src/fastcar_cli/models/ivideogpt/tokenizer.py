"""iVideoGPT's tokenizer: frames to ids and ids to frames (CompressiveVQModel of thuml/iVideoGPT).

A context frame has 256 codes, a later one 16, coded relative to the context frames. Ids: context codes, then dynamics
codes, then the delimiter before a context frame (scf) and the one before a later frame (sdf).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fastcar_cli.models.decoder import KV, table
from fastcar_cli.models.fsq import FiniteScalars
from fastcar_cli.models.ivideogpt.blocks import CONTEXT_CODES, ConditionalSpec, ConvHalf, TokenizerSpec

CrossKV = Mapping[int, KV]  # keys and values of context frames, by the level whose cross-attention reads them


class Codebook(nn.Module):
    """Code vectors under the name of the released checkpoints."""

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.embedding = table(codes, width)

    def nearest(self, x: Tensor) -> Tensor:
        """Codes int64 [...] of the vectors nearest to x [..., width]; distances in float64."""
        book, flat = self.embedding.weight.double(), x.flatten(0, -2).double()
        return (book.square().sum(1) - 2 * flat @ book.T).argmin(1).view(x.shape[:-1])

    def forward(self, codes: Tensor) -> Tensor:
        """[...] -> [..., width]."""
        return self.embedding(codes)


class ConditionalTokenizer(nn.Module):
    """Context frames to codes, later frames to codes relative to them, and back. `quantize` has the code vectors of
    context frames, `dynamics_quantize` those of later ones, whose widths are `widths`.
    """

    spec: ConditionalSpec
    quantize: Codebook | FiniteScalars
    dynamics_quantize: Codebook | FiniteScalars

    def __init__(self, spec: ConditionalSpec, widths: tuple[int, int]) -> None:
        super().__init__()
        self.encoder, self.decoder = (ConvHalf(spec, up=up) for up in (False, True))
        self.cond_encoder, self.cond_decoder = (ConvHalf(spec, up=up, attends=True) for up in (False, True))
        piece = spec.latent * spec.patch**2
        self.quant_conv = nn.Conv2d(spec.latent, widths[0], 1)
        self.post_quant_conv = nn.Conv2d(widths[0], spec.latent, 1)
        self.quant_linear, self.post_quant_linear = nn.Linear(piece, widths[1]), nn.Linear(widths[1], piece)
        self.spec = spec

    def read_context(self, frames: Tensor) -> tuple[Tensor, CrossKV]:
        """Codes int64 [B, t, R S] of context frames float32 [B, t, 3, H, W] in 0..1, and the cross-attention KV."""
        videos = (len(frames), -1)
        z, features = self.encoder(frames.flatten(0, 1))
        codes = self.quantize.nearest(self.quant_conv(z).permute(0, 2, 3, 1)).flatten(1)
        by_video = {level: x.unflatten(0, videos) for level, x in features.items()}
        return codes.unflatten(0, videos), self.cond_encoder.cross_kv(by_video)

    def patches(self, frames: Tensor, cross: CrossKV) -> Tensor:
        """Vectors to be quantised, [B, n, codes of a frame, width], of later frames float32 [B, n, 3, H, W]."""
        z, _ = self.cond_encoder(frames.flatten(0, 1), cross)
        (rows, columns), p = self.spec.grid, self.spec.patch
        pieces = z.view(len(z), -1, rows, p, columns, p).permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)
        return self.quant_linear(pieces).unflatten(0, (len(frames), -1))

    def draw_context(self, codes: Tensor) -> tuple[Tensor, CrossKV]:
        """Context frames float32 [B, t, 3, H, W], not clamped, of codes [B, t, R S], and the cross-attention KV."""
        videos = (len(codes), -1)
        vectors = self.quantize(codes.flatten(0, 1)).to(self.post_quant_conv.weight)
        z = self.post_quant_conv(vectors.unflatten(1, self.spec.latents).permute(0, 3, 1, 2))
        pixels, features = self.decoder(z)
        by_video = {level: x.unflatten(0, videos) for level, x in features.items()}
        return pixels.unflatten(0, videos), self.cond_decoder.cross_kv(by_video)

    def draw_later(self, codes: Tensor, cross: CrossKV) -> Tensor:
        """Later frames float32 [B, n, 3, H, W], not clamped, of codes [B, n, codes of a frame]."""
        vectors = self.dynamics_quantize(codes.flatten(0, 1)).to(self.post_quant_linear.weight)
        (rows, columns), p = self.spec.grid, self.spec.patch
        pieces = self.post_quant_linear(vectors).view(-1, rows, columns, p, p, self.spec.latent)
        z = pieces.permute(0, 5, 1, 3, 2, 4).flatten(4).flatten(2, 3)
        return self.cond_decoder(z, cross)[0].unflatten(0, (len(codes), -1))


class Tokenizer(ConditionalTokenizer):
    """Frames to ids and back. All computation is in float32."""

    spec: TokenizerSpec
    quantize: Codebook
    dynamics_quantize: Codebook

    def __init__(self, spec: TokenizerSpec) -> None:
        super().__init__(spec, (spec.code_width, spec.code_width))
        self.quantize, self.dynamics_quantize = (Codebook(n, spec.code_width) for n in (spec.codes, spec.dynamics))

    def tokenize(self, frames: Tensor) -> Tensor:
        """Ids int64 [B, L] of frames float32 [B, S, 3, H, W] in 0..1, context frames first.
        Without later frames the ids are a prompt, up to the first delimiter of a later frame but without it.
        """
        spec, t = self.spec, self.spec.context
        codes, cross = self.read_context(frames[:, :t])
        ids = F.pad(codes, (1, 0), value=spec.context_delimiter).flatten(1)[:, 1:]
        if frames.shape[1] == t:
            return ids
        later = self.dynamics_quantize.nearest(self.patches(frames[:, t:], cross)) + spec.codes
        return torch.cat([ids, F.pad(later, (1, 0), value=spec.delimiter).flatten(1)], 1)

    def decode_context(self, ids: Tensor) -> tuple[Tensor, CrossKV]:
        """Context frames float32 [B, t, 3, H, W], not clamped, of prompts [B, 257 t - 1], and the cross-attention KV.
        Ids of delimiters are ignored.
        """
        codes = F.pad(ids, (1, 0)).unflatten(1, (-1, 1 + CONTEXT_CODES))[:, :, 1:]
        return self.draw_context(codes.clamp(0, self.spec.codes - 1))

    def decode_later(self, ids: Tensor, cross: CrossKV) -> Tensor:
        """Decode ids [B, 17 n] (a delimiter, then 16 codes per frame) to float32 [B, n, 3, H, W], not clamped.
        Ids of delimiters are ignored; other ids are clamped to dynamics codes.
        """
        codes = ids.unflatten(1, (-1, self.spec.stride))[:, :, 1:] - self.spec.codes
        return self.draw_later(codes.clamp(0, self.spec.dynamics - 1), cross)
