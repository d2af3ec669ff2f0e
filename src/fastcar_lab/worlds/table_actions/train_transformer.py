"""Training of `table-actions`'s transformer on codes that are drawn as needed, each step its own clips."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastcar_cli.models.bundled.steered import SteeredSpec
from fastcar_lab.training.decoder import TrainSettings, align, draw_taus, run_stage, tas_target
from fastcar_lab.training.loop import Watch
from fastcar_lab.worlds.table.scene import MATERIALS
from fastcar_lab.worlds.table_actions.codes import GRID, GROUND_CODES, PLACES
from fastcar_lab.worlds.table_actions.hyperparameters import FRAMES, LONGEST, TABLE_ACTIONS
from fastcar_lab.worlds.table_actions.learner import Learner, Logits, initialise, split
from fastcar_lab.worlds.table_actions.mistakes import clips
from fastcar_lab.worlds.table_actions.samples import Clip, kept_places

AT_REST = 0.3  # what an object that stays in its place counts of what one that moves does
FEW_MISTAKES, MISTAKES = 0.04, 0.2  # share of frames with a mistake in the first stage, and in the second


@dataclass(frozen=True)
class ActionSettings(TrainSettings):
    """How to train, see `TrainSettings`, of which captions' part is not used; so many `places` of each frame are drawn.

    `busy_weight` is how much more a code counts that is an object's, or differs from the frame before.
    """

    batch: int = 32
    places: int = 20
    frames: int = FRAMES
    busy_weight: float = 6.0


@dataclass(frozen=True)
class Batch:
    """Codes fed [B, S] at `index` [B, S], codes to draw, weights of their losses, and actions [B, T - 1, 2]."""

    codes: Tensor
    index: Tensor
    right: Tensor
    weights: Tensor
    actions: Tensor


def _arranged(clip: Clip, places: list[int], busy_weight: float) -> tuple[NDArray[Any], ...]:
    frames = len(clip.seen)
    drawn = (np.arange(frames)[:, None] * PLACES + np.array(places)).ravel()
    drawn = drawn[drawn > 0]
    seen, right = clip.seen.ravel(), clip.right.ravel()
    before = np.concatenate([seen[:PLACES], seen])[: len(right)]
    busy = np.where((right != before) | (right != seen), 1.0, AT_REST * (right >= GROUND_CODES))
    weights = (1 + busy_weight * busy) * np.repeat(clip.counts, PLACES)
    return seen[drawn - 1], drawn - 1, right[drawn], weights[drawn].astype(np.float32)


def draw(source: Iterator[Clip], count: int, places: int, rng: random.Random, busy_weight: float) -> Batch:
    """A batch of so many clips."""
    rows, actions = [], []
    for clip in islice(source, count):
        # Without the first place all clips have as many tokens.
        chosen = list(range(PLACES)) if places >= PLACES else kept_places(clip, places, rng)
        if places < PLACES and chosen[0] == 0:
            chosen = [*chosen[1:], next(p for p in range(1, PLACES) if p not in chosen)]
            chosen.sort()
        rows.append(_arranged(clip, chosen, busy_weight))
        actions.append(clip.actions)
    codes, index, right, weights = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
    return Batch(codes, index, right, weights, torch.from_numpy(np.stack(actions)))


Hidden = Callable[..., tuple[Tensor, list[Tensor], list[Tensor]]]  # `Learner.hidden`, or what a compiler made of it


def loss_of(
    model: Learner,
    batch: Batch,
    settings: ActionSettings,
    hidden_of: Hidden | None = None,
    taus: Tensor | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """The training loss of a batch, and numbers for the log; with `taus` of clips of which all places are drawn."""
    with settings.precision():
        hidden, scores, shares = (hidden_of or model.hidden)(batch.codes, batch.actions, batch.index, taus)
    each = Logits(hidden.float(), model.outputs).losses(batch.right)
    loss = (each * batch.weights).sum() / batch.weights.sum()
    counts, busy = batch.weights > 0, batch.weights > 1
    name = "" if taus is None else "long_"
    pairs = (("train", counts), ("busy", busy))
    values: dict[str, Any] = {name + key: float(each.detach()[which].mean()) for key, which in pairs}
    if scores:
        codes = torch.cat([batch.codes, batch.right[:, -1:]], 1)
        wanted = tas_target(codes[..., None], (GRID, GRID))
        loss = align(loss, values, [score.float() for score in scores], shares, wanted, settings.align)
    return loss, values


@torch.no_grad()
def validate(model: Learner, videos: int = 64, seed: int = 5, frames: int = FRAMES) -> dict[str, float]:
    """On held-out clips, all places: losses, and shares of frames with all codes right, of all and with pushes."""
    rng = random.Random(seed)
    found: dict[str, list[Tensor]] = {"loss": [], "busy": [], "right": [], "pushed": []}
    source = clips(rng, frames, 0.0, kept_out=True)
    for _ in range(-(-videos // 16)):
        batch = draw(source, 16, PLACES, rng, 1.0)
        logits = Logits(model.hidden(batch.codes, batch.actions, batch.index)[0], model.outputs)
        each = logits.losses(batch.right)
        found["loss"].append(each[batch.weights > 0])
        found["busy"].append(each[batch.weights > 1])

        def by_frame(x: Tensor) -> Tensor:
            return x[:, PLACES - 1 :].unflatten(1, (-1, PLACES))

        right, counts = by_frame(batch.right), by_frame(batch.weights)[..., 0] > 0
        hits = (by_frame(logits.best()) == right).all(-1)
        # What is there of other objects than the ball, and did not a frame before.
        made, values = split(right)
        others = torch.where(made & (values[0] >= len(MATERIALS)), right, 0)
        pushed = torch.cat([torch.zeros_like(counts[:, :1]), (others[:, 1:] != others[:, :-1]).any(-1)], 1)
        found["right"].append(hits[counts])
        found["pushed"].append(hits[counts & pushed])
    return {key: float(torch.cat(values).float().mean()) for key, values in found.items()}


LONG, LONG_EVERY = 6, 4
"""Clips of a step of the second stage in which all places are drawn and the replay rule applies, and one such step in
so many."""


def train(
    out: Path,
    tokenizer: Path,
    settings: ActionSettings,
    *,
    spec: SteeredSpec = TABLE_ACTIONS,
    start: Path | None = None,
    watch: Watch = Watch(),
) -> Learner:
    """Train one stage in folder `out`, see `run_stage`; codes are known without the tokenizer.

    The second, whose settings have `replay`, sees `LONGEST` frames with many mistakes.
    """
    del tokenizer
    torch.manual_seed(settings.seed)
    model = Learner(spec)
    initialise(model, settings.seed)

    hidden_of = torch.compile(model.hidden, dynamic=False) if settings.compile else model.hidden

    def loss_at(step: int, rng: random.Random) -> tuple[Tensor, dict[str, float], int]:
        source = clips(rng, LONGEST, MISTAKES) if settings.replay else clips(rng, settings.frames, FEW_MISTAKES)
        long = settings.replay and step % LONG_EVERY == 0
        count, places = (LONG, PLACES) if long else (settings.batch, settings.places)
        batch = draw(source, count, places, rng, settings.busy_weight)
        taus = draw_taus(settings, rng, count) if long else None
        return *loss_of(model, batch, settings, hidden_of, taus), count

    run_stage(out, model, settings, loss_at, lambda: validate(model), start=start, watch=watch)
    return model
