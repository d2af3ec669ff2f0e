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
from fastcar_cli.models.ivideogpt.blocks import CONTEXT_CODES, SIDE, ConvHalf, TokenizerSpec

CrossKV = Mapping[int, KV]
"""Keys and values of context frames, by the level whose cross attention reads them."""


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


class Tokenizer(nn.Module):
    """Both pairs of networks and both codebooks. All computes in float32."""

    def __init__(self, spec: TokenizerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.encoder, self.decoder = (ConvHalf(spec, up=up) for up in (False, True))
        self.cond_encoder, self.cond_decoder = (ConvHalf(spec, up=up, attends=True) for up in (False, True))
        width, piece = spec.code_width, spec.latent * spec.patch**2
        self.quant_conv, self.post_quant_conv = nn.Conv2d(spec.latent, width, 1), nn.Conv2d(width, spec.latent, 1)
        self.quant_linear, self.post_quant_linear = nn.Linear(piece, width), nn.Linear(width, piece)
        self.quantize, self.dynamics_quantize = Codebook(spec.codes, width), Codebook(spec.dynamics, width)

    def _by_video(self, x: Tensor, videos: int) -> Tensor:
        return x.unflatten(0, (videos, -1))

    def encode_context(self, frames: Tensor) -> tuple[Tensor, CrossKV]:
        """Codes int64 [B, t, 256] of context frames float32 [B, t, 3, H, W] in 0..1, and the cross-attention KV."""
        videos = len(frames)
        z, features = self.encoder(frames.flatten(0, 1))
        codes = self.quantize.nearest(self.quant_conv(z).permute(0, 2, 3, 1)).flatten(1)
        by_video = {level: self._by_video(x, videos) for level, x in features.items()}
        return self._by_video(codes, videos), self.cond_encoder.cross_kv(by_video)

    def patches(self, frames: Tensor, cross: CrossKV) -> Tensor:
        """What the codes of later frames float32 [B, n, 3, H, W] are nearest to, [B, n, grid^2, code_width]."""
        z, _ = self.cond_encoder(frames.flatten(0, 1), cross)
        g, p, d = self.spec.grid, self.spec.patch, self.spec.latent
        pieces = z.view(-1, d, g, p, g, p).permute(0, 2, 4, 3, 5, 1).reshape(-1, g * g, p * p * d)
        return self._by_video(self.quant_linear(pieces), len(frames))

    def tokenize(self, frames: Tensor) -> Tensor:
        """Ids int64 [B, L] of frames float32 [B, S, 3, H, W] in 0..1, those of context first.
        Without later frames the ids are a prompt, up to the first delimiter of a later frame but without it.
        """
        spec, t = self.spec, self.spec.context
        codes, cross = self.encode_context(frames[:, :t])
        ids = F.pad(codes, (1, 0), value=spec.context_delimiter).flatten(1)[:, 1:]
        if frames.shape[1] == t:
            return ids
        later = self.dynamics_quantize.nearest(self.patches(frames[:, t:], cross)) + spec.codes
        return torch.cat([ids, F.pad(later, (1, 0), value=spec.delimiter).flatten(1)], 1)

    def decode_context(self, ids: Tensor) -> tuple[Tensor, CrossKV]:
        """Context frames float32 [B, t, 3, H, W], not clamped, of prompts [B, 257 t - 1], and the cross-attention KV.
        Ids at the places of delimiters are ignored.
        """
        codes = F.pad(ids, (1, 0)).unflatten(1, (-1, 1 + CONTEXT_CODES))[:, :, 1:]
        vectors = self.quantize(codes.clamp(0, self.spec.codes - 1)).flatten(0, 1)
        z = self.post_quant_conv(vectors.unflatten(1, (SIDE, SIDE)).permute(0, 3, 1, 2))
        pixels, features = self.decoder(z)
        by_video = {level: self._by_video(x, len(ids)) for level, x in features.items()}
        return self._by_video(pixels, len(ids)), self.cond_decoder.cross_kv(by_video)

    def decode_later(self, ids: Tensor, cross: CrossKV) -> Tensor:
        """Later frames float32 [B, n, 3, H, W], not clamped, of ids [B, 17 n] that begin with a delimiter.
        Ids at the places of delimiters are ignored, other ids become the nearest dynamics code.
        """
        spec = self.spec
        codes = (ids.unflatten(1, (-1, spec.stride))[:, :, 1:] - spec.codes).clamp(0, spec.dynamics - 1)
        pieces = self.post_quant_linear(self.dynamics_quantize(codes).flatten(0, 1))
        g, p, d = spec.grid, spec.patch, spec.latent
        z = pieces.view(-1, g, g, p, p, d).permute(0, 5, 1, 3, 2, 4).reshape(-1, d, SIDE, SIDE)
        return self._by_video(self.cond_decoder(z, cross)[0], len(ids))
