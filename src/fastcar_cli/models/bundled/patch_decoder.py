"""A small decoder from code vectors to pixels: each patch is rendered from its position's and its neighbours' codes.

No layer spans the whole frame, so still parts keep their pixels whatever happens elsewhere.
"""

from __future__ import annotations

import itertools

import torch.nn.functional as F
from torch import Tensor, nn


class PatchDecoder(nn.Module):
    """Latents [B, z_channels, h, w] to an image [B, out_ch, h * scale, w * scale] in about -1..1.
    A patch is a linear map of its latents plus the output of layers of these `widths` for its 3 x 3 neighbourhood.
    """

    def __init__(self, *, widths: tuple[int, ...], scale: int, z_channels: int, out_ch: int) -> None:
        super().__init__()
        self.scale, self.out_ch = scale, out_ch
        out = out_ch * scale**2
        self.linear = nn.Linear(z_channels, out)
        self.near = nn.Linear(9 * z_channels, widths[0])
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(widths))
        self.out = nn.Linear(widths[-1], out)

    def render(self, near: Tensor) -> Tensor:
        """Neighbourhoods [..., z_channels * 9], positions last, to patches [..., scale * scale * out_ch]."""
        return self._patch(near[..., 4::9], self.near(near))

    def render_alone(self, z: Tensor) -> Tensor:
        """Like `render`, for latents [..., z_channels] with zeros as neighbours."""
        return self._patch(z, F.linear(z, self.near.weight[:, 4::9], self.near.bias))

    def _patch(self, z: Tensor, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = layer(F.gelu(x))
        return self.linear(z) + self.out(F.gelu(x))

    def forward(self, z: Tensor) -> Tensor:
        """[B, z_channels, h, w] -> [B, out_ch, h * scale, w * scale]; beyond the border latents are zero."""
        b, _, h, w = z.shape
        s = self.scale
        patches = self.render(F.unfold(z, 3, padding=1).transpose(1, 2)).view(b, h, w, s, s, self.out_ch)
        return patches.permute(0, 5, 1, 3, 2, 4).reshape(b, self.out_ch, h * s, w * s)
