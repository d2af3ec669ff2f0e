"""Training of `mini-actions`' transformer on codes of videos that are drawn as it goes.

Teacher forcing on later frames; given frames are read, not learned. Every other step sees first predicted frames alone,
each behind a given frame of its own: finding the object there is the hardest part. Muon, more weight where something
happens, and in the replay stage the replay rule in the pass, with a term that makes TAS follow redundancy: as for
`mini` (world/train_decoder.py).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.decoding.replay.replay import replays, temporal_attention_score
from fastcar_cli.models.decoder import Branch, rotate
from fastcar_cli.models.ivideogpt.network import IVideoGPT, IVideoGPTSpec
from fastcar_lab.dummy.ivideogpt import write_checkpoint
from fastcar_lab.training.decoder import TrainSettings, align, draw_taus, replay_known, run_stage
from fastcar_lab.training.loop import Watch
from fastcar_lab.worlds.mini_actions.codes import GRID, dictionary
from fastcar_lab.worlds.mini_actions.hyperparameters import MINI_ACTIONS, TOKENIZER, initialise
from fastcar_lab.worlds.mini_actions.scene import FRAMES, Look, Story, draw_story, looks
from fastcar_lab.worlds.mini_actions.train_tokenizer import ActionsTokenizer

N = TOKENIZER.stride
SHARPER = 4.0
"""Factor on logits: the released code draws at temperature 1, where a small model would often take an unlikely code."""


@dataclass(frozen=True)
class ActionSettings(TrainSettings):
    """How to train, see `TrainSettings`, of which captions' part is not used; `futures` videos have one first frame."""

    batch: int = 16
    futures: int = 4


@dataclass(frozen=True)
class Batch:
    """Ids [B, L] of whole videos, actions [B, frames, 2] in pixels; every `futures` videos have one given frame."""

    ids: Tensor
    actions: Tensor
    futures: int = 1

    @property
    def codes(self) -> Tensor:
        """Codes of later frames [B, frames - 1, 16], as ids."""
        return self.ids[:, TOKENIZER.prompt_tokens :].unflatten(1, (-1, N))[..., 1:]


def draw(
    videos: int, choice: list[Look], rng: random.Random, device: str = "cpu", futures: int = 1, frames: int = FRAMES
) -> Batch:
    """A batch of random videos of these looks, every `futures` in a row from the same first frame on."""
    stories: list[Story] = []
    for i in range(videos):
        story = draw_story(choice, rng, frames)
        stories.append(replace(story, look=stories[-1].look, start=stories[-1].start) if i % futures else story)
    ids, actions = [], []
    for story in stories:
        given, later = dictionary().of(story)
        later = np.pad(later + TOKENIZER.codes, ((0, 0), (1, 0)), constant_values=TOKENIZER.delimiter)
        ids.append(np.concatenate([given, later.ravel()]))
        actions.append([*story.actions, (0.0, 0.0)])
    return Batch(torch.tensor(np.stack(ids)).long().to(device), torch.tensor(actions).to(device), futures)


def _attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention of the last tokens, [B, heads, S, d]; written out, as the fused backward is slow on CPUs."""
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    mask = torch.full(scores.shape[-2:], float("-inf"), device=q.device, dtype=scores.dtype)
    mask = mask.triu(1 + k.shape[-2] - q.shape[-2])
    return torch.softmax(scores + mask, -1).to(v.dtype) @ v


def hidden_states(
    model: IVideoGPT, batch: Batch, taus: Tensor | None = None
) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Hidden states [B, L - lead - 1, width] behind the given frames; with taus [B] also TAS and replay share.

    A given frame of several videos is computed once. A block's TAS is [B, L - lead - 1 - N], of tokens from the second
    later frame on; delimiters are computed whatever theirs is.
    """
    lead = TOKENIZER.prompt_tokens
    given = model.llm.embed_tokens(batch.ids[:: batch.futures, :lead])
    x = model.llm.embed_tokens(batch.ids[:, lead:-1])
    added = model.added(x.shape[1], batch.ids, batch.actions)
    assert added is not None
    x = x + added.transpose(0, 1)
    cos, sin = model.llm.rotary(torch.arange(lead + x.shape[1], device=x.device), torch.float32)
    free = torch.arange(max(0, x.shape[1] - N), device=x.device) % N != 0
    scores: list[Tensor] = []
    shares: list[Tensor] = []
    for block in model.llm.blocks:
        context: list[Tensor] = []

        def attend_given(q: Tensor, k: Tensor, v: Tensor, context: list[Tensor] = context) -> Tensor:
            q, k = (rotate(a, cos[:lead], sin[:lead]).to(v.dtype) for a in (q, k))
            context += [k, v]
            return _attend(q, k, v)

        def attend(q: Tensor, k: Tensor, v: Tensor, context: list[Tensor] = context) -> Tensor:
            q, k = (rotate(a, cos[lead:], sin[lead:]).to(v.dtype) for a in (q, k))
            if taus is not None:
                scores.append(temporal_attention_score(q[:, :, N:].float(), k[:, :, :-N].float()))
            before = (a.repeat_interleave(batch.futures, 0)[: len(q)] for a in context)
            return _attend(q, *(torch.cat(pair, 2) for pair in zip(before, (k, v), strict=True)))

        def mlp(x: Tensor, branch: Branch = block.mlp_branch) -> Tensor:
            output = branch(x)
            if taus is None:
                return output
            hit = replays(scores[-1].detach(), taus[:, None]) & free
            shares.append(hit[:, free].float().mean())
            return replay_known(output, hit, N)

        given = block(given, attend_given)
        x = block(x, attend, mlp)
    return model.llm.norm(x), scores, shares


def drawn(hidden: Tensor) -> Tensor:
    """Of hidden states [B, N n - 1, width] those that codes are drawn from, [B, n, 16, width]."""
    return F.pad(hidden, (0, 0, 0, 1)).unflatten(1, (-1, N))[:, :, :-1]


CHANGED_TAS, NEAR_TAS, STILL_TAS = -6.0, -1.0, 1.5
"""Scores that training aims at: where a pass's input or output differs from the frame before, in a patch beside such
a one, and elsewhere. At tau 0 what is far from all change replays, at -2 all that stays, at -8 everything."""


def target(batch: Batch) -> Tensor:
    """TAS that training aims at, [B, (frames - 2) N - 1]; that of delimiters has no meaning."""
    codes = batch.codes
    changed = codes[:, 1:] != codes[:, :-1]
    maps = changed.flatten(0, 1).unflatten(-1, (1, GRID, GRID)).float()
    near = (F.max_pool2d(maps, 3, 1, 1) > 0).view(changed.shape)

    def passes(where: Tensor) -> Tensor:
        # Token t of a frame is fed code t - 1 and draws code t; the delimiter draws the first.
        return (F.pad(where, (1, 0)) | F.pad(where, (0, 1))).flatten(1)[:, :-1]

    targets = torch.where(passes(near), NEAR_TAS, STILL_TAS)
    return torch.where(passes(changed), CHANGED_TAS, targets)


def loss_of(
    model: IVideoGPT, batch: Batch, settings: ActionSettings, taus: Tensor | None
) -> tuple[Tensor, dict[str, float]]:
    """The training loss of a batch, and numbers for the log."""
    with settings.precision():
        hidden, scores, shares = hidden_states(model, batch, taus)
        logits = model.lm_head(drawn(hidden)).float()
    each = F.cross_entropy(logits.flatten(0, 2), batch.codes.flatten(), reduction="none").view(batch.codes.shape)
    busy = batch.codes >= TOKENIZER.codes + GRID * GRID
    busy[:, 1:] |= batch.codes[:, 1:] != batch.codes[:, :-1]
    weights = 1.0 + settings.changed_weight * busy.float()
    loss = (each * weights).sum() / weights.sum()
    values = {"train": float(each.detach().mean()), "busy": float(each.detach()[busy].mean())}
    if scores:
        free = torch.arange(scores[0].shape[1]) % N != 0
        loss = align(loss, values, [s[:, free] for s in scores], shares, target(batch)[:, free], settings.align)
    return loss, values


@torch.no_grad()
def validate(model: IVideoGPT, settings: ActionSettings, videos: int = 32, seed: int = 5) -> dict[str, float]:
    """Held-out loss (nats a code), how much it rises with other actions, and codes and frames drawn rightly."""
    batch = draw(videos, looks()[1], random.Random(seed), settings.device)

    def logits_of(actions: Tensor) -> Tensor:
        with settings.precision():
            return model.lm_head(drawn(hidden_states(model, replace(batch, actions=actions))[0])).float()

    def loss(logits: Tensor) -> float:
        return float(F.cross_entropy(logits.flatten(0, 2), batch.codes.flatten()))

    right = logits_of(batch.actions)
    hits = right.argmax(-1) == batch.codes
    return {
        "loss": loss(right),
        "gap_actions": loss(logits_of(batch.actions.roll(1, 0))) - loss(right),
        "right": float(hits.float().mean()),
        "frames": float(hits.all(-1).float().mean()),
        "first_frames": float(hits[:, 0].all(-1).float().mean()),
    }


def train(
    out: Path,
    tokenizer: Path,
    settings: ActionSettings,
    *,
    spec: IVideoGPTSpec = MINI_ACTIONS,
    start: Path | None = None,
    watch: Watch = Watch(),
) -> IVideoGPT:
    """Train one stage in folder `out`, see `run_stage`; codes are known without the tokenizer, which goes along."""
    torch.manual_seed(settings.seed)
    model = IVideoGPT(spec)
    initialise(model, settings.seed)
    model.tokenizer.load_state_dict(ActionsTokenizer.load(tokenizer).state_dict())
    model.to(settings.device)
    for p in model.tokenizer.parameters():
        p.requires_grad_(False)
    choice = looks()[0]

    def loss_at(step: int, rng: random.Random) -> tuple[Tensor, dict[str, float], int]:
        if step % 2:
            batch = draw(settings.batch, choice, rng, settings.device, frames=2)
            loss, _ = loss_of(model, batch, settings, None)
            return loss, {"first": float(loss.detach())}, settings.batch
        batch = draw(settings.batch, choice, rng, settings.device, settings.futures)
        return *loss_of(model, batch, settings, draw_taus(settings, rng, settings.batch)), settings.batch

    run_stage(out, model, settings, loss_at, lambda: validate(model, settings), start=start, watch=watch)
    return model


def export(spec: IVideoGPTSpec, folder: Path, checkpoint: Path, tokenizer: Path) -> None:
    """Write `tokenizer/` and `transformer/` with their config.json, weights as float16, logits `SHARPER`."""
    network = IVideoGPT(spec)
    network.load_state_dict(torch.load(checkpoint, map_location="cpu", weights_only=True)["model"])
    network.tokenizer.load_state_dict(ActionsTokenizer.load(tokenizer).state_dict())
    network.lm_head.weight.data.mul_(SHARPER)
    write_checkpoint(folder, network, lambda _, tensor: tensor.half().contiguous())
