"""Convolutional parts of iVideoGPT's tokenizer: diffusers' autoencoder blocks, and cross attention to context frames.
Modules and parameter names follow the released checkpoints (thuml/iVideoGPT, ivideogpt/vq_model).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.models.convolutions import ResnetBlock, Stack, Upsample, conv, norm
from fastcar_cli.models.decoder import KV
from fastcar_cli.system.plain_data import WHOLE, Flag, Layers, Size

SIDE = 16
"""Side of a frame's latents."""

CONTEXT_CODES = SIDE * SIDE

HEADS = 4
"""Heads of the cross attention."""


@dataclass(frozen=True, config=WHOLE)
class TokenizerSpec:
    """Sizes of the tokenizer: `context` frames, entries of the codebooks `codes` and `dynamics`, and the side `patch`
    of
    the piece of latents that a dynamics code stands for. Cross attention follows feature maps of at most `attended` a
    side.
    """

    channels: tuple[Size, ...]
    blocks: Layers
    latent: Size
    code_width: Size
    groups: Size
    context: Size
    codes: Size
    dynamics: Size
    patch: Size = 4
    attended: Size = 32
    mid_attention: Flag = True

    @property
    def resolution(self) -> int:
        """Side of a frame in pixels."""
        return SIDE * 2 ** (len(self.channels) - 1)

    @property
    def seen(self) -> dict[int, int]:
        """Levels of the encoder with cross attention, and the sides of their feature maps."""
        last = len(self.channels) - 1
        sizes = {level: self.resolution >> min(level + 1, last) for level in range(last + 1)}
        return {level: size for level, size in sizes.items() if size <= self.attended}

    @property
    def drawn(self) -> dict[int, int]:
        """The same of the decoder; -1 is its middle, which always has one."""
        last = len(self.channels) - 1
        sizes = {level: SIDE << min(level + 1, last) for level in range(last + 1)}
        return {-1: SIDE} | {level: size for level, size in sizes.items() if size <= self.attended}

    @property
    def attended_widths(self) -> list[int]:
        """Channels of the feature maps with cross attention."""
        return [self.channels[level] for level in self.seen] + [self.channels[-1 - max(i, 0)] for i in self.drawn]

    @property
    def grid(self) -> int:
        """Side of the grid of a later frame's codes."""
        return SIDE // self.patch

    @property
    def stride(self) -> int:
        """Tokens of a later frame: its delimiter and its codes."""
        return 1 + self.grid**2

    @property
    def vocabulary(self) -> int:
        """Ids: both codebooks and two delimiters."""
        return self.codes + self.dynamics + 2

    @property
    def context_delimiter(self) -> int:
        """The id before a context frame, scf."""
        return self.codes + self.dynamics

    @property
    def delimiter(self) -> int:
        """The id before a later frame, sdf."""
        return self.codes + self.dynamics + 1

    @property
    def prompt_tokens(self) -> int:
        """Ids before the first delimiter of a later frame; that of the first context frame is left out."""
        return (1 + CONTEXT_CODES) * self.context - 1


class Downsample(nn.Module):
    """Conv 3x3 with stride 2 on a feature map with one more column of zeros on the right and one more row below."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, 2R, 2R] -> [B, C, R, R]."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class MapAttention(nn.Module):
    """Self-attention over all positions of a feature map in one head, scale C^-0.5, added to its input."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.group_norm = norm(channels, groups)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, R, R] -> the same shape."""
        h = self.group_norm(x).flatten(2).transpose(1, 2)
        out = F.scaled_dot_product_attention(self.to_q(h), self.to_k(h), self.to_v(h))
        return x + self.to_out[0](out).transpose(1, 2).reshape(x.shape)


class CrossAttention(nn.Module):
    """SiLU(z + attention of z to the feature maps of context frames), 4 heads (conditional_vae.py CrossAttentionBlock).
    Norms have 32 groups in any network; that of the context takes its statistics over all context frames together.
    """

    def __init__(self, channels: int, size: int, context: int) -> None:
        super().__init__()
        self.att = nn.MultiheadAttention(channels, HEADS)
        self.kv_norm, self.q_norm = nn.GroupNorm(32, channels), nn.GroupNorm(32, channels)
        self.kv_pos_emb = nn.Parameter(torch.empty(context * size * size, channels))
        self.q_pos_emb = nn.Parameter(torch.empty(size * size, channels))

    def _project(self, x: Tensor, first: int, last: int) -> list[Tensor]:
        """Projections `first` to `last` - 1 of q, k, v on [B, S, C], each [B, heads, S, C / heads]."""
        c = x.shape[-1]
        out = F.linear(x, self.att.in_proj_weight[first * c : last * c], self.att.in_proj_bias[first * c : last * c])
        return [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in out.split(c, -1)]

    def keys_values(self, features: Tensor) -> KV:
        """Keys and values, each [B, heads, t R R, C / heads], of feature maps of context frames [B, t, C, R, R]."""
        stacked = features.transpose(1, 2).flatten(2, 3)
        tokens = self.kv_norm(stacked).flatten(2).transpose(1, 2)
        k, v = self._project(tokens + self.kv_pos_emb, 1, 3)
        return k, v

    def forward(self, z: Tensor, cross: KV) -> Tensor:
        """[n B, C, R, R], n frames of a video in a row, and the KV of B videos -> the same shape as z."""
        (q,) = self._project(self.q_norm(z).flatten(2).transpose(1, 2) + self.q_pos_emb, 0, 1)
        k, v = (a.repeat_interleave(len(z) // len(a), 0) for a in cross)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return F.silu(z + self.att.out_proj(out).transpose(1, 2).reshape(z.shape))


def _resnets(widths: Sequence[int], groups: int) -> dict[str, nn.Module]:
    blocks = (ResnetBlock(a, b, groups, "conv_shortcut") for a, b in itertools.pairwise(widths))
    return {f"resnets.{i}": block for i, block in enumerate(blocks)}


class ConvHalf(nn.Module):
    """Pixels in 0..1 [B, 3, H, W] to latents [B, D, 16, 16]; with `up` latents to pixels in about 0..1.
    If it attends, cross attention to context frames follows the levels `spec.seen`, with `up` `spec.drawn`.
    """

    def __init__(self, spec: TokenizerSpec, *, up: bool, attends: bool = False) -> None:
        super().__init__()
        widths, groups = spec.channels[::-1] if up else spec.channels, spec.groups
        first, last = (spec.latent, 3) if up else (3, spec.latent)
        middle = [*_resnets([spec.channels[-1]] * 3, groups).items()]
        if spec.mid_attention or attends:
            middle.insert(1, ("attentions.0", MapAttention(spec.channels[-1], groups)))
        levels = nn.ModuleList()
        for i, width in enumerate(widths):
            parts = _resnets([widths[max(i - 1, 0)]] + [width] * (spec.blocks + up), groups)
            if i + 1 < len(widths):
                parts |= {"upsamplers.0": Upsample(width)} if up else {"downsamplers.0": Downsample(width)}
            levels.append(Stack(parts))
        self.up, self.levels = up, "up_blocks" if up else "down_blocks"
        self.conv_in, self.mid_block = conv(first, widths[0]), Stack(dict(middle))
        self.add_module(self.levels, levels)
        self.conv_norm_out, self.conv_out = norm(widths[-1], groups), conv(widths[-1], last)
        sides = (spec.drawn if up else spec.seen) if attends else {}
        self.at = {level: j for j, level in enumerate(sides)}
        self.cross_att_blocks = nn.ModuleList(
            CrossAttention(widths[max(level, 0)], side, spec.context) for level, side in sides.items()
        )

    def cross_kv(self, features: Mapping[int, Tensor]) -> dict[int, KV]:
        """The cross-attention KV by level, of the feature maps [B, t, C, R, R] of context frames by level."""
        return {
            level: cast(CrossAttention, self.cross_att_blocks[j]).keys_values(features[level])
            for level, j in self.at.items()
        }

    def forward(self, x: Tensor, cross: Mapping[int, KV] = MappingProxyType({})) -> tuple[Tensor, dict[int, Tensor]]:
        """Latents or pixels, and the feature maps after every level."""
        features: dict[int, Tensor] = {}

        def after(level: int, x: Tensor) -> Tensor:
            at = self.at.get(level)
            features[level] = x if at is None else self.cross_att_blocks[at](x, cross[level])
            return features[level]

        x = self.conv_in(x)
        if self.up:
            x = after(-1, self.mid_block(x))
        for level, block in enumerate(cast(nn.ModuleList, self.get_submodule(self.levels))):
            x = after(level, block(x))
        if not self.up:
            x = self.mid_block(x)
        return self.conv_out(F.silu(self.conv_norm_out(x))), features
