"""A small decoder from code vectors to pixels, without any statistics over the frame.

What it draws at a place depends on the code vectors near it only, so what stands still keeps its
pixels whatever happens elsewhere in the frame.
"""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn


class Residual(nn.Module):
    """x += conv3x3(silu(conv3x3(silu x)))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[B, width, H, W] -> the same shape."""
        return x + self.conv2(F.silu(self.conv1(F.silu(x))))


class ShuffleDecoder(nn.Module):
    """Latents [B, z_channels, h, w] to an image [B, out_ch, H, W] in about -1..1.

    Each position draws its own patch, and convolutions add what its neighbours tell: a level of residual
    blocks for each of `widths`, from coarse to fine; between two levels the side doubles, and what
    is left to the full resolution is one shuffle at the end.
    """

    def __init__(
        self, *, widths: tuple[int, ...], scale: int, z_channels: int, ch: int, out_ch: int, num_res_blocks: int
    ) -> None:
        super().__init__()
        self.scale = scale
        self.last = scale // 2 ** (len(widths) - 1)
        self.patch_linear = nn.Conv2d(z_channels, out_ch * scale**2, 1)
        self.patch_in = nn.Conv2d(z_channels, ch, 1)
        self.patch_mid = nn.Conv2d(ch, ch, 1)
        self.patch_out = nn.Conv2d(ch, out_ch * scale**2, 1)
        self.conv_in = nn.Conv2d(z_channels, widths[0], 3, padding=1)
        self.levels = nn.ModuleList(
            nn.Sequential(*(Residual(width) for _ in range(num_res_blocks))) for width in widths
        )
        self.widen = nn.ModuleList(nn.Conv2d(coarse, 4 * fine, 1) for coarse, fine in itertools.pairwise(widths))
        self.conv_out = nn.Conv2d(widths[-1], out_ch * self.last**2, 3, padding=1)

    def own(self, z: Tensor) -> Tensor:
        """What each position draws by itself: [B, z_channels, h, w] -> [B, out_ch, H, W]."""
        hidden = F.silu(self.patch_mid(F.silu(self.patch_in(z))))
        return F.pixel_shuffle(self.patch_linear(z) + self.patch_out(hidden), self.scale)

    def forward(self, z: Tensor) -> Tensor:
        """[B, z_channels, h, w] -> [B, out_ch, H, W]."""
        x = self.levels[0](self.conv_in(z))
        for widen, level in zip(self.widen, list(self.levels)[1:], strict=True):
            x = level(F.pixel_shuffle(widen(x), 2))
        return self.own(z) + F.pixel_shuffle(self.conv_out(F.silu(x)), self.last)
