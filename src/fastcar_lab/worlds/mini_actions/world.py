"""`mini-actions`: one object on a background of `mini`'s, which pushes move, 64 x 64 pixels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fastcar_cli.inputs.prompt import Prompt
from fastcar_cli.media.metrics import psnr_of
from fastcar_lab.training.stages import Training, one_file
from fastcar_lab.worlds.mini_actions import samples
from fastcar_lab.worlds.mini_actions.hyperparameters import MINI_ACTIONS
from fastcar_lab.worlds.mini_actions.scene import Story
from fastcar_lab.worlds.mini_actions.train_tokenizer import ActionsTokenizer
from fastcar_lab.worlds.protocol import Video


class MiniActions:
    """See `World`; a scene is a story of pushes, its prompt the first frame with the pushes."""

    name = "mini-actions"
    spec = MINI_ACTIONS

    @property
    def training(self) -> Training:
        """See `World`."""
        from fastcar_lab.worlds.mini_actions import train_tokenizer, train_transformer

        return Training(
            steps=(1400, 1100, 1000),
            codes="tokenizer.safetensors",
            tokenizer=one_file(train_tokenizer.train),
            kind=ActionsTokenizer,
            settings=train_transformer.ActionSettings,
            stage=train_transformer.train,
            export=train_transformer.export,
            sharper=train_transformer.SHARPER,
        )

    def held_out(self, count: int, seed: int) -> list[tuple[Story, Prompt]]:
        """See `World`: looks that were never trained on."""
        return [(story, samples.clip_of(story)) for story in samples.held_out(count, seed)]

    def render(self, scene: Story) -> Video:
        """See `World`."""
        return samples.frames_of(scene)

    def score(self, scenes: Sequence[Story], videos: Sequence[Video]) -> dict[str, Any]:
        """See `World`: whether objects are where the pushes lead, and the PSNR of predicted frames to the true ones."""
        pairs = zip(videos, scenes, strict=True)
        errors = [np.square(v[1:].astype(np.float64) - self.render(s)[1:]).mean() for v, s in pairs]
        return {**samples.obedience(np.stack(videos), scenes), "psnr_truth": psnr_of(float(np.mean(errors)))}

    def tokenizer_quality(self, tokenizer: str, count: int, seed: int) -> dict[str, Any]:
        """See `World`: of videos whose later frames are drawn from the codes that are right."""
        file = Path(tokenizer)
        made = ActionsTokenizer.load(file) if file.is_file() else ActionsTokenizer.of_model(tokenizer)
        stories = samples.held_out(count, seed)
        return self.score(stories, list(samples.drawn_from_true_codes(made, stories)))


WORLD = MiniActions()
