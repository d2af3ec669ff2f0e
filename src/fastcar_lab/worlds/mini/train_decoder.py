"""Training of the bundled model's decoder and depth transformer on the codes of the world.

Teacher forcing over whole videos, see `fastcar_lab.training.decoder`.
"""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fastcar_cli.models.vila_u.network import ModelSpec, VideoModel
from fastcar_lab.training.decoder import TrainSettings, align, draw_taus, forward, run_stage, tas_target
from fastcar_lab.training.loop import Watch
from fastcar_lab.training.start import new_model
from fastcar_lab.worlds.mini.captions import caption
from fastcar_lab.worlds.mini.hyperparameters import MINI, mini_tokenizer
from fastcar_lab.worlds.mini.scene import ATTRIBUTES, Scene
from fastcar_lab.worlds.mini.train_tokenizer import Codes, Tokenizer, encode_world


def _weights(codes: Tensor, n: int, extra: float) -> Tensor:
    """Loss weights [B, T*N]: more where a token is not its frame's commonest patch or has changed."""
    mask_code = codes[..., -1]
    common = mask_code.mode(dim=1, keepdim=True).values
    busy = mask_code != common
    changed = torch.zeros_like(busy)
    changed[:, n:] = (codes[:, n:] != codes[:, :-n]).any(-1)
    return 1.0 + extra * (busy | changed).float()


class Batches:
    """Random batches of (text ids [B, P], codes [B, T*N, depth])."""

    def __init__(self, data: Codes, settings: TrainSettings) -> None:
        self.data, self.settings = data, settings
        self.tokenizer = mini_tokenizer()
        # Each combination equally often, however many start positions it has.
        groups: dict[tuple[str, ...], list[int]] = {}
        for i, scene in enumerate(data.scenes):
            groups.setdefault(scene.combination, []).append(i)
        self.groups = list(groups.values())

    def _ids(self, scene: Scene, rng: random.Random) -> tuple[int, ...]:
        """Token ids of a caption drawn for the scene, at times blank."""
        if rng.random() < self.settings.drop_caption:
            return self.tokenizer.blank()
        return self.tokenizer.read(caption(scene, rng, drop=self.settings.drop_attribute)).ids

    def draw(self, rng: random.Random) -> tuple[Tensor, Tensor]:
        """One batch."""
        chosen = [rng.choice(rng.choice(self.groups)) for _ in range(self.settings.batch)]
        text = torch.tensor([self._ids(self.data.scenes[i], rng) for i in chosen])
        return text, torch.from_numpy(self.data.codes[chosen].astype(np.int64))


def _swapped(scene: Scene, attribute: str, rng: random.Random) -> Scene:
    values = [v for v in ATTRIBUTES[attribute] if v != getattr(scene, attribute)]
    return Scene(**{**asdict(scene), attribute: rng.choice(values), "start": scene.start})


@torch.no_grad()
def validate(
    model: VideoModel, data: Codes, settings: TrainSettings, videos: int = 24, seed: int = 5
) -> dict[str, float]:
    """Held-out loss (nats a code), and how much it rises when one word of the caption is swapped."""
    rng, device = random.Random(seed), settings.device
    tokenizer = mini_tokenizer()
    chosen = [rng.randrange(len(data.scenes)) for _ in range(videos)]
    codes = torch.from_numpy(data.codes[chosen].astype(np.int64)).to(device)

    def loss(scenes: list[Scene]) -> float:
        captions = random.Random(seed)
        text = torch.tensor([tokenizer.read(caption(s, captions)).ids for s in scenes], device=device)
        with settings.precision():
            logits, _, _ = forward(model, text, codes)
        return float(F.cross_entropy(logits.float().flatten(0, 2), codes.flatten()))

    scenes = [data.scenes[i] for i in chosen]
    result = {"loss": loss(scenes)}
    for attribute in ("color", "shape", "motion", "size"):
        result[f"gap_{attribute}"] = loss([_swapped(s, attribute, rng) for s in scenes]) - result["loss"]
    return result


def train(
    out: Path,
    tokenizer_path: Path,
    settings: TrainSettings,
    *,
    spec: ModelSpec = MINI,
    start: Path | None = None,
    watch: Watch = Watch(),
) -> VideoModel:
    """Train one stage of `mini` in folder `out`, see `run_stage`."""
    trained, held_out = encode_world(out.parent, watch.log)
    model = new_model(spec, Tokenizer.load(tokenizer_path).rqvae, settings.seed).to(settings.device)
    batches = Batches(trained, settings)
    n, run = model.spec.tokens_per_frame, torch.compile(forward) if settings.compile else forward

    def loss_at(step: int, rng: random.Random) -> tuple[Tensor, dict[str, float], int]:
        text, codes = (x.to(settings.device) for x in batches.draw(rng))
        taus = draw_taus(settings, rng, len(text))
        with settings.precision():
            logits, scores, shares = run(model, text, codes, taus)
        each = F.cross_entropy(logits.float().flatten(0, 2), codes.flatten(), reduction="none").view(codes.shape)
        weights = _weights(codes, n, settings.changed_weight)[..., None]
        loss = (each * weights).sum() / weights.sum() / codes.shape[-1]
        values = {"train": float(each.detach().mean())}
        if scores:
            loss = align(loss, values, scores, shares, tas_target(codes, model.spec.rqvae.grid), settings.align)
        return loss, values, len(text)

    run_stage(out, model, settings, loss_at, lambda: validate(model, held_out, settings), start=start, watch=watch)
    return model
