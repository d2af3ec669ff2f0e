"""Training of the decoder and depth transformer of `table` on codes of clips that are rendered as it goes.

Most steps see a few frames of a video, from its beginning or from further on; the last ones see whole
videos. The rest is as for `mini`: teacher forcing, Muon, more weight where something happens, and in
the replay stage the replay rule in the pass.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.models.bundled.placement_map import Near, PlacementMap
from fastcar_cli.models.vila_u.network import ModelSpec, VideoModel
from fastcar_lab.training.ahead import Ahead
from fastcar_lab.training.captured import Graphs
from fastcar_lab.training.decoder import (
    TrainSettings,
    align,
    draw_tau,
    hidden_states,
    optimizers,
    run_stage,
    tas_target,
)
from fastcar_lab.training.loop import Watch, rng_of
from fastcar_lab.training.start import new_model
from fastcar_lab.worlds.table import train_map
from fastcar_lab.worlds.table.hyperparameters import TABLE
from fastcar_lab.worlds.table.lexicon import PROMPT_LENGTH, SPECIALS, VOCABULARY
from fastcar_lab.worlds.table.samples import Batch, Clips, swapped
from fastcar_lab.worlds.table.scene import COLORS, FRAMES, SHAPES
from fastcar_lab.worlds.table.start import heed_words, look_up_nearest, predict_aligned
from fastcar_lab.worlds.table.tokenizer import TABLE_RQVAE, TableTokenizer

_WORDS = {"color": tuple(COLORS), "shape": SHAPES, "way": ("left", "right"), "place": ("in_front_of", "behind")}
"""Words of a caption that are swapped to see whether the model heeds them."""


_DEPTHS = (0.36, 0.25, 0.18, 0.12, 0.09)
"""Weight of each code of a token: the first holds 90 % of what is seen, the last 1 %."""


@dataclass(frozen=True)
class TableSettings(TrainSettings):
    """How to train: steps of `batch` clips of `clip` frames, of which `places` places are drawn.

    Every other step sees first frames alone, all places. Of the others the last `whole` see whole videos, the second
    half of them with all places. A share `late` of the clips does not begin with its video. Of the tokens of the ground
    a share `sampled` goes through the depth transformer, weighted up. One with an object in it weighs `changed_weight`
    more. Code vectors that are fed back have noise of up to `noise` a number, as drawn ones are not quite right. Before
    a base stage that begins with nothing the placement map alone has `map_steps` steps, see `train_map.py`. In a share
    `drop_words` of the clips no words are seen, only placements, so that those are heeded.
    """

    batch: int = 16
    clip: int = 5
    places: int = 24
    whole: float = 0.2
    late: float = 0.6
    sampled: float = 0.15
    noise: float = 0.3
    map_steps: int = 1200
    drop_words: float = 0.4
    drop_placement: float = 0.02
    drop_caption: float = 0.02
    evaluate_every: int = 250

    def replay_stage(self) -> TableSettings:
        """The same for the replay stage: gentler, longer clips, with the replay rule, other random numbers. Few videos
        replay everything, unlike those of `mini`: what moves here cannot be drawn without an MLP. That TAS says what
        changes counts for more, as it is all that keeps moving tokens from being replayed.
        """
        gentler = replace(self, replay=True, muon_lr=1e-2, lr=2e-3, seed=self.seed + 1)
        # Longer clips, fewer of them.
        gentler = replace(gentler, clip=8, batch=max(1, 2 * self.batch // 3))
        return replace(gentler, dense_share=0.25, all_share=0.05, align=0.15)

    def shape_of(self, step: int) -> tuple[int, int, int | None]:
        """(videos, frames of each, places of each frame or None for all) of a step; about as many tokens in each."""
        left = 1 - step / self.steps
        tokens = self.batch * (PROMPT_LENGTH + self.clip * self.places)
        frames = 1 if step % 2 else FRAMES if left <= self.whole else self.clip
        places = None if frames == 1 or left <= self.whole / 2 or self.replay else self.places
        one = PROMPT_LENGTH + frames * (places or math.prod(TABLE_RQVAE.grid))
        return max(1, round(tokens / one)), frames, places


def token_losses(model: VideoModel, codes: Tensor, hidden: Tensor) -> Tensor:
    """Cross-entropy [tokens, depth] in nats of codes [tokens, depth], given hidden states [tokens, width]."""
    partial = model.rqvae.quantizer.vectors(codes).cumsum(-2)[..., :-1, :]
    logits = model.depth(hidden, partial)
    return F.cross_entropy(logits.float().flatten(0, 1), codes.flatten(), reduction="none").view(codes.shape)


def token_weights(batch: Batch, settings: TableSettings, n: int) -> Tensor:
    """Weight [B, T*N] of each token in the loss; none in first frames of clips that begin later."""
    weights = 1.0 + settings.changed_weight * batch.busy.float()
    weights[:, :n] *= (batch.begins == 0)[:, None]
    return weights


@dataclass(frozen=True)
class Material:
    """What a step learns from."""

    batch: Batch
    near: Near | None  # what the placement map knows of the drawn tokens, where there is one
    noise: Tensor  # [B, K - 1, code_width], added to the code vectors that are fed back, of another size in each video
    chosen: Tensor  # [m], the drawn tokens, counted over the batch, that go through the depth transformer
    codes: Tensor  # [m, depth]
    weights: Tensor  # [m], in the loss
    busy: Tensor  # bool [m]
    taus: Tensor | None  # [B], thresholds of the replay stage

    def to(self, device: str) -> Material:
        """The same on a device."""
        near = None if self.near is None else self.near.to(device)
        own = {x: getattr(self, x).to(device) for x in ("noise", "chosen", "codes", "weights", "busy")}
        taus = None if self.taus is None else self.taus.to(device)
        return replace(self, batch=self.batch.to(device), near=near, taus=taus, **own)

    def tensors(self) -> list[Tensor]:
        """All its tensors."""
        rest = [self.noise, self.chosen, self.codes, self.weights, self.busy]
        return [*vars(self.batch).values(), *(self.near or ()), *rest, *([] if self.taus is None else [self.taus])]

    def padded(self) -> Material:
        """The same with as many tokens and neighbours as a batch of this shape can have; those added count nothing."""
        tokens, drawn = self.batch.kept.numel(), self.noise.shape[0] * self.noise.shape[1]

        def longer(x: Tensor, size: int, value: float = 0) -> Tensor:
            # Neighbours are 2 a token at most here, but for one batch in thousands, which loses some.
            return torch.cat([x, x.new_full((max(size - len(x), 0), *x.shape[1:]), value)])[:size]

        near = self.near
        if near is not None:
            owners = (longer(near.tokens, drawn, drawn), longer(near.grounds, drawn))
            rows = (longer(x, 2 * drawn) for x in (near.places, near.poses, near.looks))
            near = Near(*owners, longer(near.seen_by, 2 * drawn, drawn), *rows)
        chosen, codes, weights, busy = (longer(x, tokens) for x in (self.chosen, self.codes, self.weights, self.busy))
        return replace(self, near=near, chosen=chosen, codes=codes, weights=weights, busy=busy)


def material(
    batch: Batch,
    settings: TableSettings,
    spec: ModelSpec,
    places: PlacementMap | None,
    taus: Sequence[float] | None = None,
) -> Material:
    """Choose at random what a step learns from a batch."""
    n, kept = spec.tokens_per_frame, batch.kept
    sizes = torch.rand(len(batch.text), 1, 1) * settings.noise
    noise = torch.randn(*kept[:, 1:].shape, spec.rqvae.code_width) * sizes
    weights, busy = token_weights(batch, settings, n).gather(1, kept), batch.busy.gather(1, kept)
    chosen = (busy | (torch.rand(busy.shape) < settings.sampled)) & (weights > 0)
    scaled = torch.where(busy, weights, weights / settings.sampled)
    codes = batch.codes.gather(1, kept[..., None].expand(-1, -1, batch.codes.shape[-1]))
    near = None if places is None else places.near(batch.placed, kept[:, 1:] + n * batch.begins[:, None])
    which = chosen.flatten().nonzero()[:, 0]
    thresholds = None if taus is None else torch.tensor(taus)
    return Material(batch, near, noise, which, codes[chosen], scaled[chosen], busy[chosen], thresholds)


def loss_of(
    model: VideoModel,
    step: Material,
    settings: TableSettings,
    run: Callable[..., tuple[Tensor, list[Tensor], list[Tensor]]] = hidden_states,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The training loss of a step, and numbers for the log; `run` is `hidden_states`, perhaps compiled."""
    batch = step.batch
    hidden, scores, shares = run(
        model, batch.text, batch.codes, step.taus, batch.begins, batch.kept, step.noise, step.near
    )
    each = token_losses(model, step.codes, hidden.flatten(0, 1)[step.chosen])
    # Of scalars, since a captured step copies nothing from the host.
    loss = sum(share * each[:, d] for d, share in enumerate(_DEPTHS))
    loss = (loss * step.weights).sum() / step.weights.sum()
    of_busy = each.detach().where(step.busy[:, None], each.new_zeros(())).sum(0) / step.busy.sum().clamp(min=1)
    values = {"train": loss.detach(), "busy": of_busy.mean(), "busy_code_0": of_busy[0]}
    if scores:
        loss = align(loss, values, scores, shares, tas_target(batch.codes, model.spec.rqvae.grid), settings.align)
    return loss, values


@torch.no_grad()
def validate(
    model: VideoModel, clips: Clips, settings: TableSettings, videos: int = 16, seed: int = 5
) -> dict[str, float]:
    """Losses (nats a code) on held-out scenes, and how much they rise when one word of the caption is swapped. `first`
    is over tokens with objects in the first frame, `later` over those of frames 1 to 5, `ground` over the rest; gaps
    are of both together, over the captions that hold such a word.
    """
    batch, _ = clips.draw(videos, 6, random.Random(seed), kept_out=True, late=0.0)
    batch = batch.to(settings.device)
    n = model.spec.tokens_per_frame

    def losses(text: Tensor) -> Tensor:
        with settings.precision():
            hidden, _, _ = hidden_states(model, text, batch.codes)
            each = token_losses(model, batch.codes.flatten(0, 1), hidden.flatten(0, 1))
        return each.mean(-1).view(batch.busy.shape)

    each = losses(batch.placed)
    first = torch.arange(batch.busy.shape[1], device=each.device) < n
    result = {
        "held_out": float(each.mean()),
        "held_out_first": float(each[batch.busy & first].mean()),
        "held_out_later": float(each[batch.busy & ~first].mean()),
        "held_out_ground": float(each[~batch.busy].mean()),
    }
    rng = random.Random(seed)
    for name, values in _WORDS.items():
        text = swapped(batch.placed.cpu(), values, VOCABULARY, rng).to(settings.device)
        differs = (text != batch.placed).any(1)
        if bool(differs.any()):
            mask = batch.busy & differs[:, None]
            result[f"gap_{name}"] = float((losses(text) - each)[mask].mean())
    return result


def train(
    out: Path,
    tokenizer_path: Path,
    settings: TableSettings,
    *,
    spec: ModelSpec = TABLE,
    start: Path | None = None,
    watch: Watch = Watch(),
) -> VideoModel:
    """Train one stage of `table` in folder `out`, see `run_stage`."""
    tokenizer = TableTokenizer.load(tokenizer_path)
    model = new_model(spec, tokenizer.rqvae, settings.seed, sharpness=50.0)
    drops = {"placement": settings.drop_placement, "caption": settings.drop_caption, "words": settings.drop_words}
    clips = Clips(tokenizer, **{f"drop_{name}": share for name, share in drops.items()})
    if start is None:
        look_up_nearest(model.depth, tokenizer.codebooks())
        heed_words(model, range(len(SPECIALS), len(VOCABULARY)))
        predict_aligned(model, clips.draw(8, settings.clip, rng_of(settings.seed, 0))[0])
    model.to(settings.device)
    if start is None:
        steps, place = settings.map_steps, out.parent / "map"
        train_map.train(place, model, tokenizer, settings, steps=steps, watch=watch)
    run = torch.compile(hidden_states) if settings.compile else hidden_states
    if settings.compile and model.map is not None:
        # How much is near is another number in each step. A decorator would import the compiler for every user.
        model.map.embed = torch.compiler.disable(model.map.embed)  # type: ignore[method-assign]

    def draw(step: int, rng: random.Random) -> Material:
        count, frames, places = settings.shape_of(step)
        late = settings.late if frames > 1 else 0.0
        batch = clips.draw(count, frames, rng, late=late, places=places)[0]
        # A first frame has nothing to replay.
        taus = [draw_tau(settings, rng) for _ in range(count)] if settings.replay and frames > 1 else None
        ready = material(batch, settings, spec, model.map, taus)
        return ready.padded() if captured else ready

    captured, opts = settings.device == "cuda", optimizers(model, settings)
    graphs = Graphs(opts, [p for p in model.parameters() if p.requires_grad]) if captured else None
    drawn = Ahead(draw, seed=settings.seed, steps=settings.steps, workers=settings.workers)

    def loss_at(step: int, rng: random.Random) -> tuple[Tensor, dict[str, Tensor], int]:
        shape = settings.shape_of(step)
        ready = drawn(step, rng)

        def loss(ready: Material) -> tuple[Tensor, dict[str, Tensor]]:
            with settings.precision():
                return loss_of(model, ready, settings, run)

        return *(loss(ready.to(settings.device)) if graphs is None else graphs(shape, ready, loss)), shape[0]

    run_stage(
        out,
        model,
        settings,
        loss_at,
        lambda: validate(model, clips, settings),
        every=settings.evaluate_every,
        start=start,
        watch=watch,
        updating=None if graphs is None else opts,
    )
    return model
