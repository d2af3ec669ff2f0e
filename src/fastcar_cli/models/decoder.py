"""LLaMA decoder blocks as plain modules, the backbone of every model here.

Parameter names follow `transformers`' LlamaModel, so checkpoints load by name and the blocks can be compared with it.
The caller of a block provides its attention over a cache and, for replay, a replacement of its MLP.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from fastcar_cli.system.plain_data import WHOLE, Count, Factor, Flag, Layers, Size

MOST_RECENT = 256


def recent(frame: int) -> int:
    """Number of previous tokens whose keys and values stay floats in an int8 cache: a frame, or the maximum."""
    return min(frame, MOST_RECENT)


@dataclass(frozen=True, config=WHOLE)
class Axes:
    """Positions of tokens as frame, row, column: a prefix of `lead` tokens at the first one, then rasters of `grid`.
    `grown_from`: extents of the first training, for which YaRN stretches the frequencies; empty: no stretching.
    """

    grid: tuple[Size, Size]
    lead: Count = 0
    grown_from: tuple[Size, ...] = ()

    def of(self, index: Tensor) -> Tensor:
        """Frame, row and column of tokens [...]: [..., 3]."""
        rows, columns = self.grid
        i = (index - self.lead).clamp(min=0)
        return torch.stack([i // (rows * columns), i // columns % rows, i % columns], -1)

    @staticmethod
    def pairs(head_dim: int) -> tuple[int, int, int]:
        """Numbers of a head's rotated pairs for frame, row and column."""
        side = head_dim // 6
        return head_dim // 2 - 2 * side, side, side

    def frequencies(self, head_dim: int, theta: float) -> Tensor:
        """Frequency of each pair, float32 [head_dim / 2]: powers of theta by axis, stretched with `grown_from`."""
        parts = []
        for axis, pairs in enumerate(self.pairs(head_dim)):
            frequencies = theta ** -(torch.arange(pairs, dtype=torch.float32, device="cpu") / pairs)
            if self.grown_from:
                # YaRN (arXiv 2309.00071): at most one turn over the old extent: halved; 4 or more: unchanged.
                low, high = (2 * math.pi * turns / self.grown_from[axis] for turns in (1, 4))
                share = ((frequencies - low) / (high - low)).clamp(0, 1)
                frequencies = frequencies * ((1 - share) / 2 + share)
            parts.append(frequencies)
        return torch.cat(parts)


@dataclass(frozen=True, config=WHOLE)
class DecoderSpec:
    """Sizes of the decoder. Raises ValueError if heads do not divide the width, or KV heads the heads."""

    width: Size
    layers: Layers
    heads: Size
    kv_heads: Size
    mlp_width: Size
    vocab: Size
    rms_eps: Factor = 1e-6
    rope_theta: Factor = 10000.0
    rope_factor: Factor = 1.0  # divides positions (linear rope scaling)
    max_positions: Size = 4096
    attention_bias: Flag = False
    rope_periods: tuple[Factor, ...] = ()  # of each rotated pair of a head, instead of powers of `rope_theta`
    head_width: Count = 0  # 0: width / heads
    head_norms: Flag = False  # of queries and keys, before rotation
    axes: Axes | None = None  # rotate pairs by frame, row and column
    source: Count = 0  # width of what cross-attention reads, 0 without

    def __post_init__(self) -> None:
        uneven = not self.head_width and self.width % self.heads
        if uneven or self.head_dim % 2 or self.heads % self.kv_heads:
            raise ValueError(f"width {self.width}, heads {self.heads} and kv_heads {self.kv_heads} do not fit")
        if self.rope_periods and len(self.rope_periods) != self.head_dim // 2:
            raise ValueError(f"rope_periods has {len(self.rope_periods)} values, but a head needs {self.head_dim // 2}")

    @property
    def head_dim(self) -> int:
        """d, width of one head."""
        return self.head_width or self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Width of the keys of a token, and of its values."""
        return self.kv_heads * self.head_dim

    @property
    def projection_weights(self) -> int:
        """Weights of the four projections of a layer's attention."""
        return 2 * self.width * (self.heads * self.head_dim + self.kv_width)

    @property
    def mlp_weights(self) -> int:
        """Weights of a layer's MLP."""
        return 3 * self.width * self.mlp_width


def table(rows: int, width: int) -> nn.Embedding:
    """An embedding table [rows, width] without initialised values.
    `nn.Embedding`'s own on the meta device would import torch's compiler, which takes longer than loading `mini`.
    """
    return nn.Embedding(rows, width, _weight=torch.empty(rows, width))


def summed(codebooks: Sequence[nn.Embedding], codes: Tensor) -> Tensor:
    """Sum of the vectors of codes [..., depth] in each depth's codebook, accumulated in depth order: [..., width]."""
    first, *others = codebooks
    total = first(codes[..., 0])
    for d, book in enumerate(others, 1):
        total = total + book(codes[..., d])
    return total


class RMSNorm(nn.Module):
    """x / rms(x) in float32, cast back, times weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> the same shape and dtype."""
        if x.dtype == torch.float32:
            return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)
        return F.rms_norm(x.float(), (x.shape[-1],), None, self.eps).to(x.dtype) * self.weight


class Rotary(nn.Module):
    """Rotary position embedding in LLaMA's half-split form."""

    inv_freq: Tensor

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        # Never on the meta device, since no checkpoint contains it.
        exponent = torch.arange(0, spec.head_dim, 2, dtype=torch.float32, device="cpu") / spec.head_dim
        frequencies = spec.rope_theta**-exponent
        if spec.rope_periods:
            frequencies = 2 * math.pi / torch.tensor(spec.rope_periods, dtype=torch.float32, device="cpu")
        if spec.axes is not None:
            frequencies = spec.axes.frequencies(spec.head_dim, spec.rope_theta)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.factor, self.axes = spec.rope_factor, spec.axes

    def forward(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Positions [...] to (cos, sin), each [..., head_dim]."""
        places = positions[..., None]
        if self.axes is not None:
            pairs = torch.tensor(self.axes.pairs(2 * len(self.inv_freq)), device=positions.device)
            places = self.axes.of(positions).repeat_interleave(pairs, -1)
        angle = (places.float() / self.factor) * self.inv_freq
        angle = torch.cat([angle, angle], dim=-1)
        return angle.cos().to(dtype), angle.sin().to(dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, causal: bool = True) -> Tensor:
    """Attention of q [rows, heads, S, d] over k, v [rows, kv_heads, S, d]; without a mask `causal` or over all."""
    groups = q.shape[1] // k.shape[1]
    k, v = (a.repeat_interleave(groups, 1) for a in (k, v)) if groups > 1 else (k, v)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [..., head_dim] by angles whose cos and sin broadcast against it."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Absolute(nn.Module):
    """Sines and cosines of frame, row and column, side by side, added to the input of every block."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        assert spec.axes is not None
        self._axes, side = spec.axes, spec.width // 6 * 2
        self._widths = spec.width - 2 * side, side, side

    def forward(self, index: Tensor, dtype: torch.dtype) -> Tensor:
        """Tokens [...] to their added vectors [..., width], rounded to bfloat16; 0 for the prefix."""
        parts = []
        for place, width in zip(self._axes.of(index).double().unbind(-1), self._widths, strict=True):
            angle = place[..., None] * 10000.0 ** -(torch.arange(width // 2, device=index.device).double() * 2 / width)
            parts += [angle.sin(), angle.cos()]
        added = torch.cat(parts, -1).to(torch.bfloat16).to(dtype)
        return torch.where((index < self._axes.lead)[..., None], 0.0, added)


class Attention(nn.Module):
    """Projections of attention with grouped KV heads; keys and values come from vectors of width `source`."""

    def __init__(self, spec: DecoderSpec, source: int | None = None) -> None:
        super().__init__()
        source = spec.width if source is None else source
        self.heads, self.kv_heads, self.head_dim = spec.heads, spec.kv_heads, spec.head_dim
        self.q_proj = nn.Linear(spec.width, spec.heads * spec.head_dim, bias=spec.attention_bias)
        self.k_proj = nn.Linear(source, spec.kv_heads * spec.head_dim, bias=spec.attention_bias)
        self.v_proj = nn.Linear(source, spec.kv_heads * spec.head_dim, bias=spec.attention_bias)
        self.o_proj = nn.Linear(spec.heads * spec.head_dim, spec.width, bias=spec.attention_bias)
        self.q_norm = RMSNorm(spec.head_dim, spec.rms_eps) if spec.head_norms else None
        self.k_norm = RMSNorm(spec.head_dim, spec.rms_eps) if spec.head_norms else None

    def _split(self, x: Tensor, heads: int) -> Tensor:
        return x.unflatten(-1, (heads, self.head_dim)).transpose(1, 2)

    def query(self, x: Tensor) -> Tensor:
        """[rows, S, width] to q [rows, heads, S, d], normed if the model does so, before rotation."""
        q = self._split(self.q_proj(x), self.heads)
        return q if self.q_norm is None else self.q_norm(q)

    def keys_values(self, x: Tensor) -> KV:
        """[rows, S, source] to k and v, each [rows, kv_heads, S, d]; k normed if the model does so, before rotation."""
        k, v = (self._split(linear(x), self.kv_heads) for linear in (self.k_proj, self.v_proj))
        return k if self.k_norm is None else self.k_norm(k), v

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q, k and v of the same x."""
        return self.query(x), *self.keys_values(x)

    def merge(self, heads: Tensor) -> Tensor:
        """Head outputs [rows, heads, S, d] through the output projection: [rows, S, width]."""
        rows, _, s, _ = heads.shape
        return self.o_proj(heads.transpose(1, 2).reshape(rows, s, -1))


class MLP(nn.Module):
    """SwiGLU: down(silu(gate x) * up x)."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(spec.width, spec.mlp_width, bias=False)
        self.up_proj = nn.Linear(spec.width, spec.mlp_width, bias=False)
        self.down_proj = nn.Linear(spec.mlp_width, spec.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


KV = tuple[Tensor, Tensor]  # keys and values, each [rows, kv_heads, S, d]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps q [rows, heads, S, d] and k, v [rows, kv_heads, S, d] before rotation to head outputs [rows, heads, S, d]."""
Branch = Callable[[Tensor], Tensor]  # the MLP branch's addition to the residual stream, both [rows, S, width]


class Block(nn.Module):
    """Pre-norm attention and MLP with residuals. The caller provides keys and values."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(spec.width, spec.rms_eps)
        self.self_attn = Attention(spec)
        self.cross_attn: Attention | None = None
        if spec.source:
            self.cross_layernorm = RMSNorm(spec.width, spec.rms_eps)
            self.cross_attn = Attention(spec, spec.source)
        self.post_attention_layernorm = RMSNorm(spec.width, spec.rms_eps)
        self.mlp = MLP(spec)

    def forward(self, x: Tensor, attend: Attend, mlp: Branch | None = None, cross: KV | None = None) -> Tensor:
        """The residual stream [rows, S, width] after the block; `mlp` replaces `mlp_branch`, `cross` is the
        cross-attention KV.
        """
        x = x + self.self_attn.merge(attend(*self.self_attn.project(self.input_layernorm(x))))
        if self.cross_attn is not None and cross is not None:
            query = self.cross_attn.query(self.cross_layernorm(x))
            x = x + self.cross_attn.merge(attention(query, *cross, causal=False))
        return x + (mlp or self.mlp_branch)(x)

    def mlp_branch(self, x: Tensor) -> Tensor:
        """The MLP's addition to the residual x [..., width]: mlp(norm(x))."""
        return self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """Embedding table, blocks and final norm."""

    def __init__(self, spec: DecoderSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed_tokens = table(spec.vocab, spec.width)
        self.layers = nn.ModuleList(Block(spec) for _ in range(spec.layers))
        self.norm = RMSNorm(spec.width, spec.rms_eps)
        self.rotary = Rotary(spec)
        self.absolute = Absolute(spec) if spec.source else None

    def cross_kv(self, source: Tensor) -> list[KV]:
        """The cross-attention KV of each block, from vectors [rows, S, source]."""
        return [block.cross_attn.keys_values(source) for block in self.blocks if block.cross_attn is not None]

    @property
    def blocks(self) -> list[Block]:
        """The blocks, first to last."""
        return [cast(Block, b) for b in self.layers]
