"""Residual-quantised autoencoder: codes of a frame to pixels (VILA-U's `rqvaesiglip`), without its encoder.
Modules and parameter names follow the released checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.models.bundled.patch_decoder import PatchDecoder
from fastcar_cli.models.convolutions import ResnetBlock, Stack, Upsample, conv, norm
from fastcar_cli.models.decoder import summed, table
from fastcar_cli.system.plain_data import WHOLE, Count, Flag, Layers, MaybeLayers, Size


@dataclass(frozen=True, config=WHOLE)
class RQVAESpec:
    """Sizes of the quantiser and of the decoder. Raises ValueError for sizes that do not fit.

    `grid`: (rows, columns) of code positions per frame; `latent_size`: latents are resized to it before decoding, if
    given; `norm_groups`: the groups of every GroupNorm (if there are few channels, several must share a group, or the
    absolute colour is normalised away). With `widths` the decoder is a `PatchDecoder` with these hidden layers, and
    only the length of `ch_mult` matters.
    """

    grid: tuple[Size, Size]
    depth: Layers
    codes: Size
    code_width: Size
    z_channels: Size
    ch: Count
    ch_mult: tuple[Size, ...]
    num_res_blocks: MaybeLayers
    resolution: Size
    attn_resolutions: tuple[Size, ...] = ()
    out_ch: Size = 3
    shared_codebook: Flag = False
    latent_size: tuple[Size, Size] | None = None
    norm_groups: Size = 32
    widths: tuple[Size, ...] = ()

    def __post_init__(self) -> None:
        if not self.ch_mult:
            raise ValueError("ch_mult is empty")
        if any(self.ch * times % self.norm_groups for times in self.ch_mult):
            raise ValueError(f"norm_groups {self.norm_groups} must divide ch {self.ch} x each ch_mult {self.ch_mult}")

    @property
    def scale(self) -> int:
        """Side in pixels of one latent position."""
        return int(2 ** (len(self.ch_mult) - 1))

    @property
    def tokens_per_frame(self) -> int:
        """N, positions per frame."""
        return self.grid[0] * self.grid[1]

    @property
    def frame_size(self) -> tuple[int, int]:
        """(height, width) of a decoded frame in pixels."""
        h, w = self.latent_size or self.grid
        return h * self.scale, w * self.scale


class AttnBlock(nn.Module):
    """Single-head self-attention over all positions of a feature map, plus the input."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = norm(channels, groups)
        self.q, self.k, self.v, self.proj_out = (nn.Conv2d(channels, channels, 1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same shape; scale C^-0.5."""
        n = self.norm(x)
        q, k, v = (f(n).flatten(2).transpose(1, 2) for f in (self.q, self.k, self.v))
        return x + self.proj_out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


def conv_decoder(spec: RQVAESpec) -> Stack:
    """Latents [B, z_channels, h, w] to an image [B, out_ch, H, W] in about -1..1."""
    groups, width, last = spec.norm_groups, spec.ch * spec.ch_mult[-1], len(spec.ch_mult) - 1
    middle = {"block_1": ResnetBlock(width, width, groups), "attn_1": AttnBlock(width, groups)}
    parts: dict[str, nn.Module] = {
        "conv_in": conv(spec.z_channels, width),
        "mid": Stack(middle | {"block_2": ResnetBlock(width, width, groups)}),
    }
    for level in range(last, -1, -1):
        out, blocks = spec.ch * spec.ch_mult[level], dict[str, nn.Module]()
        for i in range(spec.num_res_blocks + 1):
            blocks[f"block.{i}"] = ResnetBlock(width, out, groups)
            if spec.resolution >> last << (last - level) in spec.attn_resolutions:
                blocks[f"attn.{i}"] = AttnBlock(out, groups)
            width = out
        parts[f"up.{level}"] = Stack(blocks | ({"upsample": Upsample(out)} if level else {}))
    return Stack(parts | {"norm_out": norm(width, groups), "act": nn.SiLU(), "conv_out": conv(width, spec.out_ch)})


class Quantizer(nn.Module):
    """The codebooks. Each has one row more than codes, a padding entry that is never an output."""

    def __init__(self, spec: RQVAESpec) -> None:
        super().__init__()
        tables = [table(spec.codes + 1, spec.code_width) for _ in range(1 if spec.shared_codebook else spec.depth)]
        modules = nn.ModuleList(tables * spec.depth if spec.shared_codebook else tables)
        # One per depth.
        self.codebooks = cast(Sequence[nn.Embedding], modules)

    def vectors(self, codes: Tensor) -> Tensor:
        """Code vectors of codes [..., depth], [..., depth, code_width]."""
        return torch.stack([book(codes[..., d]) for d, book in enumerate(self.codebooks)], dim=-2)


class RQVAE(nn.Module):
    """Codebooks and decoder of one vision tower; a `FrameDecoder`."""

    def __init__(self, spec: RQVAESpec) -> None:
        super().__init__()
        self.spec = spec
        self.quantizer = Quantizer(spec)
        self.post_quant_conv = nn.Conv2d(spec.code_width, spec.z_channels, 1)
        self.decoder: PatchDecoder | Stack = (
            PatchDecoder(widths=spec.widths, scale=spec.scale, z_channels=spec.z_channels, out_ch=spec.out_ch)
            if spec.widths
            else conv_decoder(spec)
        )

    def embed(self, codes: Tensor) -> Tensor:
        """Sum of the code vectors of codes [..., depth]: [..., code_width]."""
        return summed(self.quantizer.codebooks, codes)

    def decode_latents(self, z: Tensor) -> Tensor:
        """Summed code vectors [B, N, code_width], row-major, to an image [B, out_ch, H, W] in about -1..1."""
        b, _, c = z.shape
        x = z.transpose(1, 2).reshape(b, c, *self.spec.grid).to(self.post_quant_conv.weight.dtype)
        if self.spec.latent_size is not None:
            x = F.interpolate(x.float(), size=self.spec.latent_size, mode="bilinear").to(x.dtype)
        return self.decoder(self.post_quant_conv(x))

    def context(self) -> None:
        """See `FrameDecoder`: prompts hold no frames."""

    def frame(self, codes: Tensor) -> Tensor:
        """See `FrameDecoder`; each frame depends on its own codes only."""
        x = self.decode_latents(self.embed(codes))
        return ((x.float() + 1.0) * 127.5).clamp(0.0, 255.0).permute(0, 2, 3, 1)
