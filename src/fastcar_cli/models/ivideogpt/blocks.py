"""Convolutional parts of iVideoGPT's tokenizer: diffusers' autoencoder blocks, and cross-attention to context frames.
Modules and parameter names follow the released checkpoints (thuml/iVideoGPT, ivideogpt/vq_model).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.models.convolutions import WIDE, ResnetBlock, Stack, Upsample, conv, norm
from fastcar_cli.models.decoder import KV
from fastcar_cli.system.limits import give_back_memory
from fastcar_cli.system.plain_data import WHOLE, Flag, Layers, Size

SIDE = 16
"""Side of a frame's latents."""

CONTEXT_CODES = SIDE * SIDE

HEADS = 4
"""Heads of the cross-attention."""

Sides = tuple[int, int]
"""Rows and columns."""


@dataclass(frozen=True, kw_only=True, config=WHOLE)
class ConvSpec:
    """Sizes of an encoder and its decoder. `latents` are the sides of a frame's latents. If the decoder samples `late`,
    its first level has no upsampler and its last one has; it usually is the other way around.
    """

    latents: ClassVar[Sides] = (SIDE, SIDE)
    late: ClassVar[bool] = False

    channels: tuple[Size, ...]
    blocks: Layers
    latent: Size
    groups: Size
    mid_attention: Flag = True

    def sides(self, halvings: int) -> Sides:
        """Rows and columns of feature maps, `halvings` halvings before the latents."""
        return self.latents[0] << halvings, self.latents[1] << halvings

    @property
    def size(self) -> Sides:
        """Height and width of a frame in pixels."""
        return self.sides(len(self.channels) - 1)

    def widths(self, *, up: bool) -> list[tuple[list[int], bool]]:
        """For each level of encoder or decoder, widths before and after each block, and whether sides change then."""
        widths, last = self.channels[::-1] if up else self.channels, len(self.channels) - 1
        if up and self.late:
            return [([w] + [widths[min(i + 1, last)]] * self.blocks, i > 0) for i, w in enumerate(widths)]
        return [([widths[max(i - 1, 0)]] + [w] * (self.blocks + up), i < last) for i, w in enumerate(widths)]


@dataclass(frozen=True, kw_only=True, config=WHOLE)
class ConditionalSpec(ConvSpec):
    """Sizes of a tokenizer with `context` frames; `patch` is the side of the square of latents that a code of a later
    frame covers. Cross-attention follows feature maps of at most `attended` rows.
    """

    context: Size = 1
    patch: Size = 4
    attended: Size = 32

    @property
    def seen(self) -> dict[int, Sides]:
        """Levels of the encoder with cross-attention, and the sides of their feature maps."""
        last = len(self.channels) - 1
        return self._attended({level: self.sides(max(last - level - 1, 0)) for level in range(last + 1)})

    @property
    def drawn(self) -> dict[int, Sides]:
        """The same for the decoder; -1 is its middle, which always has one."""
        last = len(self.channels) - 1
        levels = {level: self.sides(min(level + 1, last)) for level in range(last + 1)}
        return {-1: self.latents} | self._attended(levels)

    def _attended(self, levels: Mapping[int, Sides]) -> dict[int, Sides]:
        return {level: sides for level, sides in levels.items() if sides[0] <= self.attended}

    @property
    def attended_widths(self) -> list[int]:
        """Channels of the feature maps with cross-attention."""
        return [self.channels[level] for level in self.seen] + [self.channels[-1 - max(i, 0)] for i in self.drawn]

    @property
    def grid(self) -> Sides:
        """Rows and columns of a later frame's codes."""
        return self.latents[0] // self.patch, self.latents[1] // self.patch


@dataclass(frozen=True, kw_only=True, config=WHOLE)
class TokenizerSpec(ConditionalSpec):
    """Sizes of the tokenizer, and entries of the codebooks `codes` of context frames and `dynamics` of later ones."""

    code_width: Size
    codes: Size
    dynamics: Size

    @property
    def stride(self) -> int:
        """Tokens of a later frame: its delimiter and its codes."""
        return 1 + math.prod(self.grid)

    @property
    def vocabulary(self) -> int:
        """Number of ids: both codebooks and two delimiters."""
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
        """Ids before the first delimiter of a later frame; without that of the first context frame."""
        return (1 + CONTEXT_CODES) * self.context - 1


class Downsample(nn.Module):
    """Conv 3x3 with stride 2 on a feature map with one more column of zeros on the right and one more row below."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, 2R, 2S] -> [B, C, R, S]."""
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class MapAttention(nn.Module):
    """Self-attention over all positions of a feature map in one head, scale C^-0.5, added to its input."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.group_norm = norm(channels, groups)
        self.to_q, self.to_k, self.to_v = (nn.Linear(channels, channels) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(channels, channels)])

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, R, S] -> the same shape."""
        h = self.group_norm(x).flatten(2).transpose(1, 2)
        out = F.scaled_dot_product_attention(self.to_q(h), self.to_k(h), self.to_v(h))
        return x + self.to_out[0](out).transpose(1, 2).reshape(x.shape)


class CrossAttention(nn.Module):
    """SiLU(z + attention of z to the feature maps of context frames), 4 heads (conditional_vae.py CrossAttentionBlock).
    Norms have 32 groups in any network; that of the context takes its statistics over all context frames together.
    """

    def __init__(self, channels: int, places: int, context: int) -> None:
        super().__init__()
        self.att = nn.MultiheadAttention(channels, HEADS)
        self.kv_norm, self.q_norm = nn.GroupNorm(32, channels), nn.GroupNorm(32, channels)
        self.kv_pos_emb = nn.Parameter(torch.empty(context * places, channels))
        self.q_pos_emb = nn.Parameter(torch.empty(places, channels))

    def _project(self, x: Tensor, first: int, last: int) -> list[Tensor]:
        """Projections `first` to `last` - 1 of q, k, v on [B, N, C], each [B, heads, N, C / heads]."""
        c = x.shape[-1]
        out = F.linear(x, self.att.in_proj_weight[first * c : last * c], self.att.in_proj_bias[first * c : last * c])
        return [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in out.split(c, -1)]

    def keys_values(self, features: Tensor) -> KV:
        """Keys and values, each [B, heads, t R S, C / heads], of feature maps of context frames [B, t, C, R, S]."""
        stacked = features.transpose(1, 2).flatten(2, 3)
        tokens = self.kv_norm(stacked).flatten(2).transpose(1, 2)
        k, v = self._project(tokens + self.kv_pos_emb, 1, 3)
        return k, v

    def forward(self, z: Tensor, cross: KV) -> Tensor:
        """[n B, C, R, S], n frames of a video in a row, and the KV of B videos -> the same shape as z."""
        (q,) = self._project(self.q_norm(z).flatten(2).transpose(1, 2) + self.q_pos_emb, 0, 1)
        k, v = (a.repeat_interleave(len(z) // len(a), 0) for a in cross)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return F.silu(z + self.att.out_proj(out).transpose(1, 2).reshape(z.shape))


def _resnets(widths: Sequence[int], groups: int) -> dict[str, nn.Module]:
    blocks = (ResnetBlock(a, b, groups, "conv_shortcut") for a, b in itertools.pairwise(widths))
    return {f"resnets.{i}": block for i, block in enumerate(blocks)}


class ConvHalf(nn.Module):
    """Pixels in 0..1 [B, 3, H, W] to latents [B, D, R, S]; with `up` latents to pixels in about 0..1.
    If it attends, cross-attention to context frames follows the levels `spec.seen`, with `up` `spec.drawn`.
    """

    def __init__(self, spec: ConvSpec, *, up: bool, attends: bool = False) -> None:
        super().__init__()
        sizes, groups = spec.widths(up=up), spec.groups
        first, last = (spec.latent, 3) if up else (3, spec.latent)
        middle = [*_resnets([spec.channels[-1]] * 3, groups).items()]
        if spec.mid_attention or attends:
            middle.insert(1, ("attentions.0", MapAttention(spec.channels[-1], groups)))
        levels = nn.ModuleList()
        for widths, sampled in sizes:
            parts = _resnets(widths, groups)
            if sampled:
                parts |= {"upsamplers.0": Upsample(widths[-1])} if up else {"downsamplers.0": Downsample(widths[-1])}
            levels.append(Stack(parts))
        # The memory format in which maps take less time and memory.
        self.form = torch.channels_last if min(spec.channels) >= WIDE else torch.preserve_format
        self.up, self.levels = up, "up_blocks" if up else "down_blocks"
        self.conv_in, self.mid_block = conv(first, sizes[0][0][0]), Stack(dict(middle))
        self.add_module(self.levels, levels)
        final = sizes[-1][0][-1]
        self.conv_norm_out, self.conv_out = norm(final, groups), conv(final, last)
        at: Mapping[int, Sides] = {}
        if isinstance(spec, ConditionalSpec):
            at, context = (spec.drawn if up else spec.seen), spec.context
        self.at = {level: j for j, level in enumerate(at)}
        self.cross_att_blocks = nn.ModuleList(
            CrossAttention(sizes[max(level, 0)][0][-1], math.prod(sides), context)
            for level, sides in at.items()
            if attends
        )

    def cross_kv(self, features: Mapping[int, Tensor]) -> dict[int, KV]:
        """The cross-attention KV by level, from the feature maps [B, t, C, R, S] of context frames by level."""
        return {
            level: cast(CrossAttention, self.cross_att_blocks[j]).keys_values(features[level])
            for level, j in self.at.items()
        }

    def forward(self, x: Tensor, cross: Mapping[int, KV] = MappingProxyType({})) -> tuple[Tensor, dict[int, Tensor]]:
        """Latents or pixels, and the feature maps after the levels with cross-attention."""
        features: dict[int, Tensor] = {}

        def after(level: int, x: Tensor) -> Tensor:
            if level in self.at:
                features[level] = x = self.cross_att_blocks[self.at[level]](x, cross[level]) if cross else x
            give_back_memory()
            return x

        x = self.conv_in(x.to(memory_format=self.form))
        if self.up:
            x = after(-1, self.mid_block(x))
        for level, block in enumerate(cast(nn.ModuleList, self.get_submodule(self.levels))):
            x = after(level, block(x))
        if not self.up:
            x = self.mid_block(x)
        return self.conv_out(F.silu(self.conv_norm_out(x), inplace=True)), features


def network_pixels(frames: Tensor) -> Tensor:
    """Frames [..., H, W, 3], uint8 or float32 in 0..1, as float32 [..., 3, H, W] in 0..1."""
    return (frames if frames.is_floating_point() else frames.float().div(255.0)).movedim(-1, -3)


def shown_pixels(x: Tensor) -> Tensor:
    """A decoder's output, [..., 3, H, W] in about 0..1, as float32 [..., H, W, 3] in 0..255, not rounded."""
    return x.float().clamp(0.0, 1.0).mul(255.0).movedim(-3, -1)
