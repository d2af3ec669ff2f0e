"""Pixels to codes and back in the table world: 16 x 16 px a token, five codes each, learned from pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fastcar_cli.models.bundled.patch_decoder import PatchDecoder
from fastcar_cli.models.vila_u.rqvae import RQVAESpec
from fastcar_lab.training.tokenizer import WorldTokenizer, quantize, to_patches

PATCH = 16  # side of a patch in pixels

TABLE_RQVAE = RQVAESpec(
    grid=(8, 8),
    depth=5,
    codes=2048,
    code_width=64,
    z_channels=64,
    ch=0,
    ch_mult=(1, 1, 1, 1, 1),
    num_res_blocks=0,
    resolution=128,
    widths=(512, 768),
)


class PatchEncoder(nn.Module):
    """Patches [..., 768] to latents [..., code_width], each on its own, so one that stays the same keeps its codes."""

    def __init__(self, code_width: int, widths: tuple[int, ...] = (768, 512)) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        before = PATCH * PATCH * 3
        for width in widths:
            parts += [nn.Linear(before, width), nn.GELU()]
            before = width
        self.layers = nn.Sequential(*parts, nn.Linear(before, code_width))
        self.linear = nn.Linear(PATCH * PATCH * 3, code_width)

    def forward(self, patches: Tensor) -> Tensor:
        """Patches [..., 768] in 0..1 to latents [..., code_width]."""
        x = patches * 2 - 1
        return self.linear(x) + self.layers(x)


class TableTokenizer(WorldTokenizer):
    """Patch encoder and RQ-VAE together."""

    spec = TABLE_RQVAE
    encoder: PatchEncoder

    def __init__(self) -> None:
        super().__init__(PatchEncoder(TABLE_RQVAE.code_width))
        nn.init.dirac_(self.rqvae.post_quant_conv.weight)
        assert self.rqvae.post_quant_conv.bias is not None
        nn.init.zeros_(self.rqvae.post_quant_conv.bias)

    @property
    def decoder(self) -> PatchDecoder:
        """What draws patches from summed code vectors; `post_quant_conv` before it changes nothing here."""
        assert isinstance(self.rqvae.decoder, PatchDecoder)
        return self.rqvae.decoder

    @torch.no_grad()
    def encode(self, frames: Tensor) -> Tensor:
        """Frames uint8 [..., H, W, 3] to codes [..., positions, depth]."""
        return quantize(self.encoder(to_patches(frames.float() / 255, PATCH)), self.codebooks())

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, 64, depth] to frames uint8 [B, 128, 128, 3]."""
        return self.rqvae.frame(codes).round().to(torch.uint8)

    @torch.no_grad()
    def decode_alone(self, codes: Tensor) -> Tensor:
        """As `decode`, each position drawn without its neighbours."""
        h, w = self.spec.grid
        patches = self.decoder.render_alone(self.rqvae.embed(codes)).view(-1, h, w, PATCH, PATCH, 3)
        image = patches.transpose(2, 3).reshape(-1, h * PATCH, w * PATCH, 3)
        return ((image + 1) * 127.5).clamp(0, 255).round().to(torch.uint8)
