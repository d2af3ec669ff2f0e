"""Training of `mini-actions`' tokenizer: the networks around codes and code vectors that are fixed beforehand.

Every third step trains the encoders to find the vectors of the true codes from pixels, the others the decoders to draw
frames from true codes: the given frame by its own, later ones by theirs and by what they look up in the given one.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fastcar_cli.checkpoints.open import load
from fastcar_cli.errors import RequestError
from fastcar_cli.media.metrics import psnr_of
from fastcar_cli.models.ivideogpt.blocks import CrossAttention, TokenizerSpec
from fastcar_cli.models.ivideogpt.network import IVideoGPT
from fastcar_cli.models.ivideogpt.tokenizer import Codebook, Tokenizer
from fastcar_lab.training.decoder import factor
from fastcar_lab.training.loop import Watch, descend, rng_of
from fastcar_lab.training.muon import Muon
from fastcar_lab.training.tokenizer import TrainedTokenizer
from fastcar_lab.worlds.mini.scene import BACKGROUNDS
from fastcar_lab.worlds.mini_actions.codes import CELLS, GRID, WIDE, dictionary
from fastcar_lab.worlds.mini_actions.hyperparameters import TOKENIZER
from fastcar_lab.worlds.mini_actions.scene import Look, draw_story, image, looks

VIDEOS, LATER = 3, 2
"""Videos a step, and later frames of each."""
MUON_LR, LR = 1e-2, 2e-3
NOISE = 0.02
"""Of pixels that the encoders see, as coded videos and drawn ones are not exact."""
SCALE = 1.5
"""Length of each part of a code vector."""


def _vectors(spec: TokenizerSpec) -> tuple[Tensor, Tensor]:
    """Vectors of the given frame's codes and of later ones': a part for each thing that is known of a code."""
    d, draw = dictionary(), torch.Generator().manual_seed(0)
    context, later = torch.zeros(spec.codes, spec.code_width), torch.zeros(spec.dynamics, spec.code_width)
    own = 16
    pieces = F.normalize(torch.randn(256, own, generator=draw), dim=1)
    for i, (piece, color) in enumerate(d.context):
        ground = color < 0
        context[i, :own] = SCALE * pieces[128 + i if ground else piece]
        context[i, own + (piece if ground else len(BACKGROUNDS) + color)] = SCALE
    reach = WIDE - 1  # cells that an object may begin before a patch
    cells = CELLS // GRID
    for i, (patch, spot) in enumerate(d.dynamics):
        later[i, patch[0]] = later[i, GRID + patch[1]] = SCALE
        if spot is not None:
            down, right = spot[1] - cells * patch[0] + reach, spot[0] - cells * patch[1] + reach
            later[i, 2 * GRID + down] = later[i, 2 * GRID + cells + reach + right] = SCALE
    return context, later


class ActionsTokenizer(Tokenizer, TrainedTokenizer):
    """The tokenizer of `mini-actions`, in one file or a model's folder."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER)

    @classmethod
    def of_model(cls, model: str) -> ActionsTokenizer:
        """See `TrainedTokenizer`."""
        network = load(model).network
        if not isinstance(network, IVideoGPT) or network.tokenizer.spec != TOKENIZER:
            raise RequestError("not a model of this world", key="model", value=model)
        made = cls()
        made.load_state_dict(network.tokenizer.state_dict())
        return made


@torch.no_grad()
def new_tokenizer(seed: int = 0) -> ActionsTokenizer:
    """Untrained, with the code vectors of the world."""
    torch.manual_seed(seed)
    model = ActionsTokenizer()
    for part in model.modules():
        if isinstance(part, CrossAttention):
            nn.init.xavier_uniform_(part.att.in_proj_weight)
            nn.init.zeros_(part.att.in_proj_bias)
            nn.init.normal_(part.kv_pos_emb, std=0.3)
            nn.init.normal_(part.q_pos_emb, std=0.3)
    for book, vectors in zip((model.quantize, model.dynamics_quantize), _vectors(TOKENIZER), strict=True):
        book.embedding.weight.copy_(vectors)
        book.embedding.weight.requires_grad_(False)
    return model


@dataclass(frozen=True)
class Batch:
    """Frames float32 [B, 1 + n, 3, 64, 64] in 0..1, the first one given, and ids [B, 256] and [B, 17 n] of theirs.

    `busy` [B, 1 + n, 1, 64, 64] says where an object is, or was in the given frame.
    """

    frames: Tensor
    given: Tensor
    later: Tensor
    busy: Tensor


def draw(choice: list[Look], rng: random.Random, videos: int = VIDEOS, later: int = LATER) -> Batch:
    """Random frames of these looks."""
    d = dictionary()
    frames, given, ids, busy = [], [], [], []
    for _ in range(videos):
        ends = [draw_story(choice, rng, 1) for _ in range(1 + later)]
        look, spots = ends[0].look, [s.start for s in ends]
        frames.append([image(look, spot).transpose(2, 0, 1) for spot in spots])
        given.append(d.given(look, spots[0]))
        codes = np.stack([d.later(spot) for spot in spots[1:]]) + TOKENIZER.codes
        ids.append(np.pad(codes, ((0, 0), (1, 0)), constant_values=TOKENIZER.delimiter).ravel())
        where = np.zeros((1 + later, 1, CELLS, CELLS), np.float32)
        for i, (column, row) in enumerate(spots):
            for j in (i, *(range(1 + later) if i == 0 else ())):
                where[j, 0, row : row + WIDE, column : column + WIDE] = 1.0
        busy.append(where)
    where = F.interpolate(torch.tensor(np.stack(busy)).flatten(0, 1), scale_factor=4).unflatten(0, (videos, -1))
    own, others = (torch.tensor(np.stack(x)).long() for x in (given, ids))
    return Batch(torch.tensor(np.array(frames)), own, others, where)


def _found(book: Codebook, vectors: Tensor, codes: Tensor, usual: Tensor) -> Tensor:
    """How badly vectors [..., width] find their codes; those that are not `usual` weigh ten times as much."""
    weight = book.embedding.weight
    logits = 2 * vectors @ weight.T - weight.square().sum(1)
    each = F.cross_entropy(logits.flatten(0, -2), codes.flatten(), reduction="none")
    weights = torch.where(usual.flatten(), 1.0, 10.0)
    return (each * weights).sum() / weights.sum()


def encoder_loss(model: Tokenizer, batch: Batch) -> Tensor:
    """Of both encoders: how far the code vectors of true codes are from being the nearest."""
    frames = batch.frames + NOISE * torch.randn_like(batch.frames)
    z, maps = model.encoder(frames[:, 0])
    first = _found(model.quantize, model.quant_conv(z).permute(0, 2, 3, 1), batch.given, batch.given < CELLS)
    cross = model.cond_encoder.cross_kv({level: x[:, None] for level, x in maps.items()})
    codes = batch.later.unflatten(1, (-1, TOKENIZER.stride))[..., 1:] - TOKENIZER.codes
    later = _found(model.dynamics_quantize, model.patches(frames[:, 1:], cross), codes, codes < GRID * GRID)
    return first + later


def decoder_loss(model: Tokenizer, batch: Batch) -> Tensor:
    """Of both decoders: squared error of pixels, eight times as much where an object is or was."""
    given, cross = model.decode_context(batch.given)
    pixels = torch.cat([given, model.decode_later(batch.later, cross)], 1)
    return ((pixels - batch.frames).square() * (1.0 + 7.0 * batch.busy)).mean()


@torch.no_grad()
def evaluate(model: Tokenizer, videos: int = 16, seed: int = 1) -> dict[str, float]:
    """On held-out looks: shares of right codes (of parts with an object `found`), PSNR of frames drawn from true codes.

    `psnr_given` and `psnr_later` are over all pixels of both kinds of frames, `psnr_busy` where an object is or was.
    """
    batch = draw(looks()[1], random.Random(seed), videos)
    stored = (batch.frames * 255).round() / 255
    ids, later = model.tokenize(stored), batch.later
    codes = ids[:, model.spec.prompt_tokens :]
    busy = later.ge(TOKENIZER.codes + GRID * GRID) & later.ne(TOKENIZER.delimiter)
    given, cross = model.decode_context(batch.given)
    error = torch.cat([given, model.decode_later(later, cross)], 1).clamp(0, 1) - batch.frames
    parts = {"given": error[:, :1], "later": error[:, 1:], "busy": error[(batch.busy > 0).expand_as(error)]}
    return {
        "given": float((ids[:, : model.spec.prompt_tokens] == batch.given).float().mean()),
        "later": float((codes == later).float().mean()),
        "found": float((codes == later)[busy].float().mean()),
        **{f"psnr_{k}": psnr_of(float(v.square().mean()) * 255**2) or math.inf for k, v in parts.items()},
    }


def optimizers(model: Tokenizer) -> list[torch.optim.Optimizer]:
    """Muon for maps and convolutions between wide layers, AdamW for everything else."""
    free = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    inside = [p for name, p in free if p.dim() > 1 and "pos_emb" not in name and min(p.shape[:2]) > 3]
    rest = [p for _, p in free if not any(p is q for q in inside)]
    return [Muon(inside, lr=MUON_LR), torch.optim.AdamW(rest, lr=LR, betas=(0.9, 0.99), weight_decay=0.0)]


def train(out: Path, *, steps: int, seed: int = 0, watch: Watch = Watch()) -> ActionsTokenizer:
    """Train the tokenizer and write `out`; its checkpoint lies beside it. For the rest see `remaining_steps`."""
    model, trained = new_tokenizer(seed=seed), looks()[0]
    out.parent.mkdir(parents=True, exist_ok=True)

    def report(step: int, loss: Tensor) -> None:
        if (step + 1) % 200 == 0 or step + 1 == steps:
            watch.log(" ".join(f"{k} {v:.4g}" for k, v in {"tokenizer step": step + 1, **evaluate(model)}.items()))

    # The fused attention of CPUs is slow backwards.
    with sdpa_kernel(SDPBackend.MATH):
        descend(
            out.with_suffix(".pt"),
            steps,
            model,
            optimizers(model),
            lambda step: (decoder_loss if step % 3 else encoder_loss)(model, draw(trained, rng_of(seed, step))),
            rate=lambda full, step: full * factor(step / steps, fall=0.7),
            settings={"steps": steps, "seed": seed, "videos": VIDEOS, "later": LATER, "lr": LR, "muon_lr": MUON_LR},
            state={},
            watch=watch,
            after=report,
        )
    model.save(out)
    return model
