"""How the decoder of `table` begins: by predicting latents, of which the depth transformer looks up the nearest codes.

A linear map reads a latent of 64 numbers from a hidden state. From depth 1 on the sum of the codes chosen so far is
taken from it, and a code's logit falls with its squared distance from what is left. So like looks are like answers
from the first step on. At first the predicted latent is the aligned token's of the frame before. All of it is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from fastcar_cli.models.depth import DepthTransformer
from fastcar_cli.models.vila_u.network import VideoModel
from fastcar_lab.training.decoder import hidden_states
from fastcar_lab.worlds.table.samples import Batch

_MARK = 48.0
"""Size of the number that marks the depth; it dwarfs the rest, so a LayerNorm divides by about the same everywhere."""
_GATE = 6.0  # how far a GELU is pushed to where it is the identity, or nothing
_REST = 0.01  # scale of the weights that have no part in this
_SHARPNESS = (0.1, 0.2, 0.25, 0.25, 0.25)
"""By how much the logit of a code falls with its squared distance, for each depth; predictions are poor at first."""


def components(book: Tensor) -> Tensor:
    """The principal components [code_width, code_width] of a codebook [codes, code_width], largest first, as rows."""
    return torch.linalg.eigh(book.T @ book)[1].flip(1).T.contiguous()


@torch.no_grad()
def look_up_nearest(depth: DepthTransformer, codebooks: Tensor) -> None:
    """Set the weights in place; codebooks [depth, codes, code_width], latents of about unit mean square.

    Of the width the first `depth` numbers mark the depth, the next `code_width` hold what is left of the latent, two
    thirds of the rest are divided among the depths. The first heads bring the latent from depth 0 to all; the first MLP
    moves the principal components of what is left to the part of its depth, where the classifier has its codes.
    """
    n, w, c = depth.spec.depth, depth.spec.width, depth.spec.code_width
    left, latent, mean, scale = slice(n, n + c), torch.arange(c), _MARK / w, _MARK / w**0.5
    # A third of the room stays free, for what is not near in latents. Most of a latent is its first code.
    room = (w - n - c) * 2 // 3
    kept = [room // (n + 1)] + [(room - room // (n + 1)) // (n - 1)] * (n - 1)
    free = slice(left.stop + sum(kept), w)
    attention, classifier = depth.blocks[0].attn, depth.classifier_mlp.linear
    grow, shrink = cast(nn.Linear, depth.blocks[0].mlp[0]), cast(nn.Linear, depth.blocks[0].mlp[2])
    for linear in (depth.in_mlp_1, depth.in_mlp_2, attention.proj, shrink):
        linear.weight[: free.start] *= _REST
        linear.weight[:n] = 0.0
        linear.bias.zero_()
    classifier.weight[:, : free.start] *= _REST
    classifier.bias.zero_()

    depth.pos_emb_d.zero_()
    depth.pos_emb_d[0, torch.arange(n), torch.arange(n)] = _MARK
    depth.in_mlp_2.weight[left] = torch.linalg.qr(torch.randn(depth.spec.hidden, c))[0].T
    depth.in_mlp_1.weight[left] = -torch.eye(c)

    size = w // depth.spec.heads
    heads = slice(0, -(-c // size) * size)
    for linear in (attention.query, attention.key, attention.value):
        linear.weight[heads] = 0.0
    attention.query.bias[heads] = 1.0
    attention.key.weight[heads, 0] = 12.0 / (size * w) ** 0.5
    attention.value.weight[latent, latent + n] = scale
    attention.value.bias[latent] = mean
    attention.proj.weight[latent + n, latent] = 1.0

    grow.weight[: 2 * sum(kept)] = 0.0
    unit, part = 0, left.stop
    for d, count in enumerate(kept):
        axes = components(codebooks[d])[:count]
        codes = codebooks[d] @ axes.T
        gain = 3.0 / float(codes.abs().max())
        # At depth 0 the latent is there twice: its own, and what attention brought.
        share = 0.5 if d == 0 else 1.0
        # gelu(x) - gelu(-x) = x, with both of them open at this depth and shut at the others.
        for sign in (1.0, -1.0):
            rows = slice(unit, unit + count)
            grow.weight[rows, left] = sign * share * gain * scale * axes
            grow.bias[rows] = sign * share * gain * mean * axes.sum(1) - _GATE
            grow.weight[rows, 0] = -10 * _GATE / w**0.5
            grow.weight[rows, d] = 2 * _GATE / w**0.5
            shrink.weight[part : part + count, rows] = sign * torch.eye(count) / (2 * gain)
            unit += count
        classifier.weight[:, part : part + count] = 2 * _SHARPNESS[d] * scale * codes
        classifier.weight[:, d] = -_SHARPNESS[d] * codes.square().sum(1) / w**0.5
        classifier.bias.add_(2 * _SHARPNESS[d] * mean * codes.sum(1))
        part += count


@torch.no_grad()
def predict_aligned(model: VideoModel, batch: Batch) -> None:
    """Set weights in place so that the latent read from a hidden state is about the aligned token's a frame earlier.

    Head 0 of the first two blocks looks there already (`training.start.initialise`); it also brings the code vectors,
    half of their principal components each, and nothing else writes to where latents are read. How much hidden states
    are scaled on the way is measured on a batch.
    """
    spec = model.spec
    c, size, n = spec.depth.code_width, spec.decoder.head_dim, spec.tokens_per_frame
    left = slice(spec.depth.depth, spec.depth.depth + c)
    projector = model.projector.layers
    assert isinstance(projector, nn.Linear)
    known = torch.cat([projector.weight, projector.bias[:, None] / projector.bias.norm()], 1)
    # Latents are read where neither the token itself nor what all tokens have in common is.
    inside = torch.linalg.qr(known)[0]
    drawn = torch.randn(spec.decoder.width, c)
    read = torch.linalg.qr(drawn - inside @ (inside.T @ drawn))[0].T
    model.depth.in_mlp_2.weight[left] = read
    writers = [p for b in model.llm.blocks for p in (b.self_attn.o_proj.weight, b.mlp.down_proj.weight)]
    tables = [model.llm.embed_tokens.weight]
    if model.map is not None:
        writers.append(model.map.thing.weight)
        tables.append(model.map.ground.weight)
    for weight in writers:
        weight -= read.T @ (read @ weight)
    for rows in tables:
        rows -= rows @ read.T @ read
    book = model.rqvae.quantizer.codebooks[0].weight[: spec.rqvae.codes]
    halves = components(book)[: 2 * size].view(2, size, c)
    bring = torch.linalg.pinv(known)[:c]
    outputs = [model.llm.blocks[b].self_attn.o_proj.weight for b in (0, 1)]
    for b, axes in enumerate(halves):
        model.llm.blocks[b].self_attn.v_proj.weight[:size] = axes @ bring
        outputs[b][:, :size] = read.T @ axes.T
    hidden = hidden_states(model, batch.text, batch.codes, None, batch.begins)[0][:, n:]
    wanted = model.rqvae.quantizer.vectors(batch.codes).sum(-2)[:, n:]
    for b, axes in enumerate(halves):
        got, want = hidden @ read.T @ axes.T, wanted @ axes.T
        outputs[b][:, :size] *= (got * want).sum() / got.square().sum()


@torch.no_grad()
def heed_words(model: VideoModel, words: Sequence[int], *, sharpness: float = 16.0) -> None:
    """Set weights in place so that the last head of the first two blocks looks at the caption's words, all alike.
    `words` are the ids that say something. They get a direction in common, which those heads' keys send to the pair of
    numbers that rotates slowest, and so do their queries with what all visual tokens have in common.
    """
    spec, llm, projector = model.spec.decoder, model.llm, model.projector.layers
    assert isinstance(projector, nn.Linear)
    embedded = llm.embed_tokens.weight
    length = float(embedded[list(words)].norm(dim=1).mean())
    said = torch.randn(spec.width)
    said /= said.norm()
    embedded[list(words)] += said * length / 2
    seen = projector.bias / projector.bias.norm()
    # Behind a norm a word has this much of the one direction; a visual token has 0.6 of the other (`initialise`).
    word, token = (0.5 / 1.25**0.5) * spec.width**0.5, 0.6 * spec.width**0.5
    gain = (sharpness * spec.head_dim**0.5 / (word * token)) ** 0.5
    pair = int(llm.rotary.inv_freq.argmin())
    last = slice((spec.heads - 1) * spec.head_dim, spec.heads * spec.head_dim)
    for block in llm.blocks[:2]:
        for linear, direction in ((block.self_attn.q_proj, seen), (block.self_attn.k_proj, said)):
            linear.weight[last] *= 0.3
            linear.weight[last][pair] += gain * direction
