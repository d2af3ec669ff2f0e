"""Residual-quantised autoencoder: codes of a frame to pixels (VILA-U's `rqvaesiglip`).

Only what generation needs: the codebooks and the convolutional decoder. Modules and parameter
names follow the released checkpoints, so a VILA-U vision tower loads by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.models.bundled.patch_decoder import PatchDecoder
from fastcar_cli.models.decoder import summed, table
from fastcar_cli.system.plain_data import WHOLE, Count, Flag, Layers, MaybeLayers, Size


@dataclass(frozen=True, config=WHOLE)
class RQVAESpec:
    """Sizes of the quantiser and of the decoder.

    `grid` is (rows, columns) of code positions a frame; `code_width` the width of a code vector;
    `latent_size`, where given, is what the latents are resized to before decoding; `norm_groups` the
    groups of every GroupNorm (32 in VILA-U; with few channels more than one must share a group, or
    the absolute colour is normalised away). Where `widths` are given, the decoder is the small one of
    `patch_decoder.py` with hidden layers of these widths, and of `ch_mult` only its length counts. Raises ValueError
    where that is empty, or where groups do not divide channels.
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
            raise ValueError(f"norm_groups {self.norm_groups} does not divide ch {self.ch} times {self.ch_mult}")

    @property
    def scale(self) -> int:
        """Side in pixels that one position of the latents is drawn at."""
        return int(2 ** (len(self.ch_mult) - 1))

    @property
    def tokens_per_frame(self) -> int:
        """N, positions a frame."""
        return self.grid[0] * self.grid[1]

    @property
    def frame_size(self) -> tuple[int, int]:
        """(height, width) of a decoded frame in pixels."""
        h, w = self.latent_size or self.grid
        return h * self.scale, w * self.scale


def norm(channels: int, groups: int) -> nn.GroupNorm:
    """As autoencoders of this family have it."""
    return nn.GroupNorm(groups, channels, eps=1e-6)


class ResnetBlock(nn.Module):
    """norm, SiLU, conv 3x3, twice, plus the input, which goes through 1x1 where widths differ.

    `shortcut` is the name of that convolution in checkpoints.
    """

    def __init__(self, width_in: int, width_out: int, groups: int, shortcut: str = "nin_shortcut") -> None:
        super().__init__()
        self.norm1 = norm(width_in, groups)
        self.conv1 = nn.Conv2d(width_in, width_out, 3, padding=1)
        self.norm2 = norm(width_out, groups)
        self.conv2 = nn.Conv2d(width_out, width_out, 3, padding=1)
        self._shortcut = shortcut
        self.add_module(shortcut, nn.Conv2d(width_in, width_out, 1) if width_in != width_out else nn.Identity())

    def forward(self, x: Tensor) -> Tensor:
        """[B, width_in, H, W] -> [B, width_out, H, W]."""
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return self.get_submodule(self._shortcut)(x) + h


class AttnBlock(nn.Module):
    """Single-head self-attention over all positions of a feature map, plus the input."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.norm = norm(channels, groups)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same shape; scale C^-0.5."""
        b, c, h, w = x.shape
        n = self.norm(x)
        q, k, v = (f(n).reshape(b, c, h * w).transpose(1, 2) for f in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v)
        return x + self.proj_out(out.transpose(1, 2).reshape(b, c, h, w))


class Upsample(nn.Module):
    """Nearest x2, then conv 3x3."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, 2H, 2W]."""
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Level(nn.Module):
    """One resolution of the decoder: residual blocks, each with attention if asked, then upsampling."""

    def __init__(
        self, width_in: int, width_out: int, blocks: int, attention: bool, upsample: bool, groups: int
    ) -> None:
        super().__init__()
        self.block = nn.ModuleList(
            ResnetBlock(width_in if i == 0 else width_out, width_out, groups) for i in range(blocks)
        )
        self.attn = nn.ModuleList(AttnBlock(width_out, groups) for _ in range(blocks if attention else 0))
        self.upsample = Upsample(width_out) if upsample else None

    def forward(self, x: Tensor) -> Tensor:
        """[B, width_in, H, W] -> [B, width_out, H or 2H, W or 2W]."""
        for i, block in enumerate(self.block):
            x = block(x)
            if len(self.attn):
                x = self.attn[i](x)
        return x if self.upsample is None else self.upsample(x)


class Middle(nn.Module):
    """Residual block, attention, residual block at the lowest resolution."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.block_1 = ResnetBlock(channels, channels, groups)
        self.attn_1 = AttnBlock(channels, groups)
        self.block_2 = ResnetBlock(channels, channels, groups)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, H, W] -> the same shape."""
        return self.block_2(self.attn_1(self.block_1(x)))


class ConvDecoder(nn.Module):
    """Latents [B, z_channels, h, w] to an image [B, out_ch, H, W] in about -1..1."""

    def __init__(self, spec: RQVAESpec) -> None:
        super().__init__()
        levels = len(spec.ch_mult)
        width = spec.ch * spec.ch_mult[-1]
        self.conv_in = nn.Conv2d(spec.z_channels, width, 3, padding=1)
        self.mid = Middle(width, spec.norm_groups)
        resolution = spec.resolution // 2 ** (levels - 1)
        up: list[Level] = []
        for level in reversed(range(levels)):
            out = spec.ch * spec.ch_mult[level]
            attention = resolution in spec.attn_resolutions
            up.insert(0, Level(width, out, spec.num_res_blocks + 1, attention, level > 0, spec.norm_groups))
            width = out
            resolution *= 2
        self.up = nn.ModuleList(up)
        self.norm_out = norm(width, spec.norm_groups)
        self.conv_out = nn.Conv2d(width, spec.out_ch, 3, padding=1)

    def forward(self, z: Tensor) -> Tensor:
        """[B, z_channels, h, w] -> [B, out_ch, H, W]."""
        x = self.mid(self.conv_in(z))
        for level in reversed(self.up):
            x = level(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Quantizer(nn.Module):
    """The codebooks. Each has one row more than codes, a padding entry that is never an output."""

    def __init__(self, spec: RQVAESpec) -> None:
        super().__init__()
        tables = [table(spec.codes + 1, spec.code_width) for _ in range(1 if spec.shared_codebook else spec.depth)]
        modules = nn.ModuleList(tables * spec.depth if spec.shared_codebook else tables)
        # One a depth.
        self.codebooks = cast(Sequence[nn.Embedding], modules)

    def vectors(self, codes: Tensor) -> Tensor:
        """Code vectors of codes [..., depth], [..., depth, code_width]."""
        return torch.stack([book(codes[..., d]) for d, book in enumerate(self.codebooks)], dim=-2)


class RQVAE(nn.Module):
    """Codebooks and decoder of one vision tower."""

    def __init__(self, spec: RQVAESpec) -> None:
        super().__init__()
        self.spec = spec
        self.quantizer = Quantizer(spec)
        self.post_quant_conv = nn.Conv2d(spec.code_width, spec.z_channels, 1)
        self.decoder: PatchDecoder | ConvDecoder = (
            PatchDecoder(widths=spec.widths, scale=spec.scale, z_channels=spec.z_channels, out_ch=spec.out_ch)
            if spec.widths
            else ConvDecoder(spec)
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

    def decode(self, codes: Tensor) -> Tensor:
        """Frames of codes [B, N, depth] as float32 [B, H, W, 3] in 0..255, not rounded."""
        x = self.decode_latents(self.embed(codes))
        return ((x.float() + 1.0) * 127.5).clamp(0.0, 255.0).permute(0, 2, 3, 1)
