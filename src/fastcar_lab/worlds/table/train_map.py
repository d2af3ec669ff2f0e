"""How the placement map of `table` begins: by what single things look like, before the decoder puts them together.

Frames of a few things on their way are drawn and encoded; the map learns a patch's latent, in the directions in
which the depth transformer reads it. What covers what, and how frames belong together, is left to the decoder.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fastcar_cli.models.vila_u.network import VideoModel
from fastcar_lab.training.decoder import TrainSettings, run_stage
from fastcar_lab.training.loop import Watch
from fastcar_lab.training.tokenizer import to_patches
from fastcar_lab.worlds.table.lexicon import table_tokenizer
from fastcar_lab.worlds.table.placement import looks_of, of_scene
from fastcar_lab.worlds.table.render import draw, empty
from fastcar_lab.worlds.table.scene import FRAMES, LIGHTS, Scene
from fastcar_lab.worlds.table.stories import any_scene
from fastcar_lab.worlds.table.tokenizer import PATCH, TableTokenizer

_SCENES, _FRAMES = 10, 6  # of a step: scenes, and frames of each
_LOUD = 3.0  # a latent's numbers, about 1, are output so many times as large


class Looks:
    """Draws what the map learns from: frames of scenes that `scene` gives."""

    def __init__(self, tokenizer: TableTokenizer, scene: Callable[[random.Random], Scene] = any_scene) -> None:
        self.encoder, self.words, self._draw_scene = tokenizer.eval().encoder, table_tokenizer(), scene

    def _scene(self, rng: random.Random) -> tuple[Scene, tuple[int, ...]]:
        """A scene, and a prompt that is not too long for it."""
        while True:
            scene = self._draw_scene(rng)
            words = [w for thing in scene.things for w in (*looks_of(thing).values(), thing.shape)]
            around = {"ground": scene.ground, "light": scene.light}
            said = self.words.completed(words, [looks_of(x) for x in scene.things], around, of_scene(scene))
            if len(said) <= self.words.length - 2:
                return scene, self.words.ids_of(said)

    @torch.no_grad()
    def draw(self, scenes: int, rng: random.Random) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Prompts [B, P]; tokens of some frames [B, K]; latents [B, K, code_width]; where is more than ground [B, K].
        Latents of the ground are drawn for one patch in eight, the others are NaN.
        """
        ids, tokens, images, grounds = [], [], [], []
        for _ in range(scenes):
            scene, said = self._scene(rng)
            ids.append(said)
            frames = sorted(rng.sample(range(FRAMES), _FRAMES))
            tokens.append((torch.arange(64) + 64 * torch.tensor(frames)[:, None]).flatten())
            paths, _ = scene.paths()
            light = np.asarray(LIGHTS[scene.light], np.float32) * 255
            for t in frames:
                view = empty(scene, t)
                images.append(draw(scene.things, [path[t] for path in paths], view) * light)
                grounds.append(view * light)
        pixels, bare = (to_patches(torch.from_numpy(np.stack(part)), PATCH) for part in (images, grounds))
        busy = (pixels != bare).any(-1)
        seen = busy | (torch.rand(busy.shape) < 1 / 8)
        latents = torch.full((*busy.shape, self.encoder.linear.out_features), torch.nan)
        latents[seen] = self.encoder((pixels[seen] + 0.5).clamp(0, 255).floor() / 255)
        latents = latents.view(scenes, -1, latents.shape[-1])
        return torch.tensor(ids), torch.stack(tokens), latents, busy.view(scenes, -1)


def train(
    out: Path, model: VideoModel, tokenizer: TableTokenizer, settings: TrainSettings, *, steps: int, watch: Watch
) -> None:
    """Train `model.map` in place, in folder `out`, see `run_stage`; nothing else of the model changes."""
    assert model.map is not None
    placement_map, looks = model.map, Looks(tokenizer)
    c = model.spec.depth.code_width
    left = slice(model.spec.depth.depth, model.spec.depth.depth + c)
    read = torch.linalg.qr(model.depth.in_mlp_2.weight.detach()[left].T)[0]

    # Mean squared errors of latents' numbers, where things are and where they are not.
    def error(batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        ids, tokens, latents, busy = (x.to(settings.device) for x in batch)
        embedding, known = placement_map(ids, tokens), ~latents.isnan().any(-1)
        off = (embedding[known] @ read / _LOUD - latents[known]).square().mean(-1)
        return off[busy[known]].mean(), off[~busy[known]].mean()

    def loss_at(step: int, rng: random.Random) -> tuple[Tensor, dict[str, float], int]:
        things, bare = error(looks.draw(_SCENES, rng))
        return things + 0.2 * bare, {"things": float(things.detach()), "ground": float(bare.detach())}, _SCENES

    @torch.no_grad()
    def judge() -> dict[str, float]:
        things, bare = error(looks.draw(24, random.Random(5)))
        return {"held_out_things": float(things), "held_out_ground": float(bare)}

    run_stage(
        out,
        placement_map,
        replace(settings, steps=steps),
        loss_at,
        judge,
        every=max(1, steps // 10),
        start=None,
        watch=watch,
    )
