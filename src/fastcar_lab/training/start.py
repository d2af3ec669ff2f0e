"""How weights of the decoders of `mini` and `table` start: heads that look at fixed distances from the beginning."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fastcar_cli.models.bundled.placement_map import GAIN, PlacementMap
from fastcar_cli.models.decoder import Decoder
from fastcar_cli.models.vila_u.network import ModelSpec, VideoModel
from fastcar_cli.models.vila_u.rqvae import RQVAE

# Where, counted back from the token that feeds a step, the frame before holds what the step is
# about to draw: the same position and its four neighbours; the position above in this frame; the
# same position two frames back. The heads of the first blocks begin by looking there.
_OFFSETS = (63, 62, 64, 55, 71, 7, 127)


@torch.no_grad()
def start_map(placements: PlacementMap) -> None:
    """Fresh weights of a placement map, in place."""
    # Eight numbers of about 1 in all join in a unit; the embedding is half as large as a visual token's own vector.
    for part in (placements.place, placements.pose, placements.color, placements.material, placements.light):
        part.weight.normal_(0.0, 8**-0.5)
    placements.ground.weight.normal_(0.0, 1.2 / GAIN)
    placements.thing.weight.normal_(0.0, 3.2 / GAIN / placements.spec.hidden**0.5)


def rotation(frequencies: Tensor, offset: int) -> Tensor:
    """Matrix [d, d] that rotates a head, whose pairs turn by `frequencies` a position, by `offset` positions."""
    half = len(frequencies)
    cos, sin = (offset * frequencies).cos(), (offset * frequencies).sin()
    matrix = torch.zeros(2 * half, 2 * half)
    i = torch.arange(half)
    matrix[i, i], matrix[i, i + half] = cos, -sin
    matrix[i + half, i], matrix[i + half, i + half] = sin, cos
    return matrix


@torch.no_grad()
def look_back(llm: Decoder, block: int, offsets: Sequence[int], common: Tensor, sharpness: float, size: float) -> None:
    """Let the first heads of a block look at these distances back, in place.

    All inputs have the direction `common` [width], about `size` long after the norm. Query and key maps send it to a
    fixed vector g, the query's rotated back by the offset, so that the score of the key there is about `sharpness`.
    """
    attention, dim = llm.blocks[block].self_attn, llm.spec.head_dim
    for head, offset in enumerate(offsets):
        rows = slice(head * dim, (head + 1) * dim)
        g = torch.randn(dim)
        g = g / g.norm()
        # |score| at the offset: (gain * |x.c|)^2 / sqrt(d).
        gain = math.sqrt(sharpness * math.sqrt(dim)) / size
        q = rotation(llm.rotary.inv_freq, -offset) @ g
        attention.q_proj.weight[rows].mul_(0.3).add_(gain * torch.outer(q, common))
        attention.k_proj.weight[rows].mul_(0.3).add_(gain * torch.outer(g, common))


@torch.no_grad()
def initialise(model: VideoModel, seed: int, *, offset_blocks: int = 2, sharpness: float = 14.0) -> None:
    """Fresh weights in place: scaled normal, and heads of the first blocks that look back by `_OFFSETS`.

    The projector's bias gives every visual token a common direction. The rest is learned.
    """
    torch.manual_seed(seed)
    spec = model.spec.decoder
    for name, p in model.named_parameters():
        if name.startswith(("rqvae.", "map.")) or p.dim() < 2:
            continue
        std = 0.02 if "embed_tokens" in name or "places" in name or "pos_emb" in name else p.shape[-1] ** -0.5
        if "o_proj" in name or "down_proj" in name or name.endswith(("attn.proj.weight", "mlp.2.weight")):
            std /= math.sqrt(2 * spec.layers)
        p.normal_(0.0, std)
    model.llm.embed_tokens.weight.normal_(0.0, 1.0)
    if model.map is not None:
        start_map(model.map)
    common = torch.randn(spec.width)
    common /= common.norm()
    scale = math.sqrt(spec.width)
    projector = model.projector.layers
    assert isinstance(projector, torch.nn.Linear)
    projector.weight.mul_(math.sqrt(spec.width) / 4)
    projector.bias.copy_(common * scale * 0.8)
    for b in range(offset_blocks):
        look_back(model.llm, b, _OFFSETS, common, sharpness, 0.6 * scale)


def new_model(spec: ModelSpec, rqvae: RQVAE, seed: int, *, sharpness: float = 14.0) -> VideoModel:
    """A model with fresh decoder weights and a trained RQ-VAE, which stays fixed; `sharpness` as in `initialise`."""
    torch.manual_seed(seed)  # for the biases, which `initialise` leaves as they are
    model = VideoModel(spec)
    initialise(model, seed, sharpness=sharpness)
    model.rqvae.load_state_dict(rqvae.state_dict())
    for p in model.rqvae.parameters():
        p.requires_grad_(False)
    return model
