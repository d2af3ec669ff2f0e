"""The transformer of `table-actions` as it is trained: vectors of codes are sums of vectors of their parts.

So what is learned of one object holds for all looks and places, and a logit is a sum too. `network_of` writes them out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fastcar_cli.models.bundled.steered import Steered, SteeredSpec
from fastcar_cli.models.decoder import Decoder
from fastcar_lab.training.decoder import run_blocks
from fastcar_lab.training.start import look_back
from fastcar_lab.worlds.table_actions.codes import GROUND_CODES, PLACES, SIZES
from fastcar_lab.worlds.table_actions.hyperparameters import TABLE_ACTIONS

_LOOKING = (
    (64, 63, 65, 56, 72, 57, 71, 128),
    (63, 62, 64, 55, 71, 54, 72, 127),
)
"""Distances at which the heads of the first blocks begin to look: around an object a frame before, and around what is
about to be drawn."""


def split(codes: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Which codes [...] are an object's, and their parts, each [...]; of ground codes the parts are 0."""
    number = (codes - GROUND_CODES).clamp(min=0)
    values = []
    for size in reversed(SIZES):
        values.append(number % size)
        number = number // size
    return codes >= GROUND_CODES, values[::-1]


class Tables(nn.Module):
    """Vectors of ground codes, and of every value of every part of an object's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ground = nn.Parameter(torch.randn(GROUND_CODES, width))
        self.parts = nn.ParameterList(nn.Parameter(torch.randn(size, width)) for size in SIZES)
        self.object = nn.Parameter(torch.randn(width))

    def forward(self, codes: Tensor) -> Tensor:
        """Vectors [..., width] of codes [...]."""
        made, values = split(codes)
        sums = self.object + sum(part[value] for part, value in zip(self.parts, values, strict=True))
        return torch.where(made[..., None], sums, self.ground[codes.clamp(max=GROUND_CODES - 1)])

    def every(self) -> Tensor:
        """Vectors of all codes [codes, width]."""
        sums = self.object
        for part in self.parts:
            sums = (sums[..., None, :] + part) if sums.dim() > 1 else sums + part
        return torch.cat([self.ground, sums.reshape(-1, sums.shape[-1])])


class Logits:
    """Of hidden states [..., width], by part."""

    def __init__(self, hidden: Tensor, tables: Tables) -> None:
        self.ground = hidden @ tables.ground.T
        self.object = hidden @ tables.object
        self.parts = [hidden @ part.T for part in tables.parts]

    def losses(self, codes: Tensor) -> Tensor:
        """Cross entropy of codes [...] over all codes."""
        made, values = split(codes)
        whole = self.object + sum(part.logsumexp(-1) for part in self.parts)
        own = self.object + sum(p.gather(-1, v[..., None])[..., 0] for p, v in zip(self.parts, values, strict=True))
        ground = self.ground.gather(-1, codes.clamp(max=GROUND_CODES - 1)[..., None])[..., 0]
        everything = torch.logaddexp(whole, self.ground.logsumexp(-1))
        return everything - torch.where(made, own, ground)

    def best(self) -> Tensor:
        """The likeliest code [...]."""
        number, score = torch.zeros_like(self.object, dtype=torch.int64), self.object
        for part in self.parts:
            largest = part.max(-1)
            number, score = number * part.shape[-1] + largest.indices, score + largest.values
        ground = self.ground.max(-1)
        return torch.where(score > ground.values, GROUND_CODES + number, ground.indices)


class Learner(nn.Module):
    """Decoder blocks, what is added to their input, and the tables."""

    def __init__(self, spec: SteeredSpec = TABLE_ACTIONS) -> None:
        super().__init__()
        decoder = spec.decoder
        self.spec = spec
        self.llm = Decoder(decoder)
        self.llm.embed_tokens = nn.Embedding(1, 1)
        self.action_linear = nn.Linear(spec.actions, decoder.width, bias=False)
        self.places = nn.Parameter(torch.empty(PLACES, decoder.width))
        self.inputs, self.outputs = Tables(decoder.width), Tables(decoder.width)

    def hidden(
        self, codes: Tensor, actions: Tensor, index: Tensor, taus: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Hidden states [B, S, width] of codes [B, S] at places `index` [B, S] of a video with `actions` [B, T - 1, 2].

        A token is at the place of its code, and draws the next one. With `taus` [B], thresholds of the videos, S are
        all tokens but the last, those behind the first frame may replay, and with the hidden states come each block's
        TAS [B, S - 64] and its share of replays.
        """
        frame = (index + 1) // PLACES
        given = torch.cat([torch.zeros_like(actions[:, :1]), actions], 1)
        acted = given.gather(1, frame[..., None].expand(-1, -1, actions.shape[-1]))
        x = self.inputs(codes) + self.places[index % PLACES] + self.action_linear(acted)
        x, scores, shares = run_blocks(self.llm, x, index, taus, PLACES)
        return self.llm.norm(x), scores, shares


@torch.no_grad()
def initialise(model: Learner, seed: int, *, sharpness: float = 10.0) -> None:
    """Fresh weights in place: scaled normal, and heads of the first two blocks that look back by `_LOOKING`."""
    torch.manual_seed(seed)
    spec = model.spec.decoder
    for name, p in model.llm.layers.named_parameters():
        if p.dim() == 2:
            last = "o_proj" in name or "down_proj" in name
            p.normal_(0.0, p.shape[-1] ** -0.5 / (math.sqrt(2 * spec.layers) if last else 1))
    common = torch.randn(spec.width)
    common /= common.norm()
    scale = math.sqrt(spec.width)
    # All parts of a token's vector together have a length of about `scale`.
    model.places.normal_(0.0, 0.35).add_(common * scale * 0.8)
    model.action_linear.weight.normal_(0.0, 0.5)
    for part in (model.inputs.ground, *model.inputs.parts, model.inputs.object):
        part.normal_(0.0, 0.35)
    for part in (model.outputs.ground, *model.outputs.parts, model.outputs.object):
        part.normal_(0.0, 0.02)
    for block, offsets in enumerate(_LOOKING):
        look_back(model.llm, block, offsets, common, sharpness, 0.7 * scale)


@torch.no_grad()
def network_of(model: Learner) -> Steered:
    """The network with all code vectors written out; its tokenizer is not set."""
    network = Steered(model.spec)
    own = {k: v for k, v in model.state_dict().items() if not k.startswith(("inputs.", "outputs.", "llm.embed"))}
    network.load_state_dict(own, strict=False)
    network.llm.embed_tokens.weight.copy_(model.inputs.every())
    network.lm_head.weight.copy_(model.outputs.every())
    return network
