"""What `mini-actions` is made of, and how its weights start."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.models.ivideogpt.blocks import TokenizerSpec
from fastcar_cli.models.ivideogpt.network import IVideoGPT, IVideoGPTSpec
from fastcar_lab.worlds.mini_actions.codes import CELLS, GRID, dictionary
from fastcar_lab.worlds.mini_actions.scene import FRAMES

TOKENIZER = TokenizerSpec(
    channels=(24, 32, 64),
    blocks=1,
    latent=32,
    code_width=32,
    groups=8,
    context=1,
    codes=len(dictionary().context),
    dynamics=len(dictionary().dynamics),
    attended=16,
    mid_attention=False,
)

MINI_ACTIONS = IVideoGPTSpec(
    name="mini-actions",
    frames=FRAMES,
    fps=4,
    # With this base a pair of a head turns once in 16 positions, a row of a given frame's codes.
    decoder=DecoderSpec(
        width=192,
        layers=4,
        heads=6,
        kv_heads=6,
        mlp_width=576,
        vocab=TOKENIZER.vocabulary,
        rope_theta=1769.0,
        max_positions=1024,
    ),
    tokenizer=TOKENIZER,
    actions=2,
)

_KINDS = ("background", "object", "empty patch", "patch with object", "delimiter of a given frame", "delimiter")


def _waves(places: Tensor) -> Tensor:
    """Places [n, 2] along both sides as sines and cosines, [n, 12]; near places are near."""
    angles = places[..., None] * torch.tensor([0.5, 1.0, 2.0]) * (2 * math.pi / CELLS)
    return torch.cat([angles.cos(), angles.sin()], -1).flatten(1)


def _embeddings(spec: IVideoGPTSpec) -> tuple[Tensor, Tensor]:
    """Embeddings [ids, width], each a sum of what is known of its code, and the directions [6, width] of `_KINDS`."""
    d, width = dictionary(), spec.decoder.width
    kinds = torch.linalg.qr(torch.randn(width, len(_KINDS))).Q.T
    own = torch.randn(spec.codes, width)
    pieces, colors = torch.randn(len(d.context), width), torch.randn(16, width)
    for i, (piece, color) in enumerate(d.context):
        own[i] = pieces[piece] if color < 0 else (pieces[-1 - piece] + colors[color]) / math.sqrt(2)
    patches = torch.randn(GRID, GRID, width)
    waves = torch.randn(12, width) / math.sqrt(6)
    for i, (patch, spot) in enumerate(d.dynamics, len(d.context)):
        own[i] = patches[patch]
        if spot is not None:
            own[i] = (own[i] + _waves(torch.tensor([spot], dtype=torch.float32))[0] @ waves * 2) / math.sqrt(5)
    empty = len(d.context) + GRID * GRID
    kind = [int(color >= 0) for _, color in d.context] + [2] * GRID * GRID + [3] * (spec.codes - 2 - empty) + [4, 5]
    return own + math.sqrt(width) * kinds[kind], kinds


@torch.no_grad()
def initialise(model: IVideoGPT, seed: int, *, sharpness: float = 8.0) -> None:
    """Fresh weights of the transformer in place: scaled normal, and heads that begin by looking where it matters.

    Block 0, at the delimiter before a frame: five heads look at the object in the given frame, each most where its row
    or column has a certain phase; one looks at the object in the frame before. Block 1: two heads of every token look
    at the last delimiter, in which that has been gathered and which the action is added to. The rest is learned.
    """
    torch.manual_seed(seed)
    spec = model.spec.decoder
    for name, p in model.named_parameters():
        if p.dim() == 2 and not name.startswith("tokenizer."):
            last = "o_proj" in name or "down_proj" in name
            p.normal_(0.0, p.shape[-1] ** -0.5 / (math.sqrt(2 * spec.layers) if last else 1.0))
    embeddings, kinds = _embeddings(model.spec)
    model.llm.embed_tokens.weight.copy_(embeddings)
    model.lm_head.weight.copy_(embeddings / spec.width)
    assert model.action_linear is not None
    model.action_linear.weight.normal_(0.0, 0.15)
    model.action_linear.bias.zero_()
    turns = 2 * math.pi / model.llm.rotary.inv_freq
    of_column, of_row, recent = _nearest(turns, 16), _nearest(turns, 300), _nearest(turns, 50)
    at = CELLS * CELLS  # of the first delimiter
    looks: list[tuple[int, int, tuple[int, ...], int, int, float]]
    looks = [(0, phase, (5,), 1, of_column, CELLS * phase / 3) for phase in range(3)]
    looks += [(0, 3 + i, (5,), 1, of_row, at - CELLS * row) for i, row in enumerate((3, 12))]
    looks += [(0, 5, (5,), 3, recent, GRID * GRID / 2)]
    looks += [(1, head, (2, 3, 5), 5, recent, GRID * GRID / 2) for head in range(2)]
    half = spec.head_dim // 2
    # A token's part along its kind, once normed, is about sqrt(width / 2).
    gain = math.sqrt(sharpness * math.sqrt(spec.head_dim) / (spec.width / 2))
    for block, head, asks, answers, pair, offset in looks:
        attention = model.llm.blocks[block].self_attn
        rows = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
        key = torch.zeros(spec.head_dim)
        query = torch.zeros(spec.head_dim)
        key[pair] = 1.0
        angle = torch.tensor(offset * 2 * math.pi / float(turns[pair]))
        query[pair], query[pair + half] = angle.cos(), -angle.sin()
        attention.q_proj.weight[rows].mul_(0.3).add_(gain * torch.outer(query, kinds[list(asks)].sum(0)))
        attention.k_proj.weight[rows].mul_(0.3).add_(gain * torch.outer(key, kinds[answers]))


def _nearest(turns: Tensor, period: float) -> int:
    """The pair of a head with this period in positions, or about."""
    return int((turns.log() - math.log(period)).abs().argmin())
