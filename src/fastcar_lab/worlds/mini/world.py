"""`mini`: one object on one of six backgrounds, at rest or on its way, 64 x 64 pixels."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fastcar_cli.inputs.prompt import Prompt, PromptReader
from fastcar_cli.inputs.worlds.phrases import PhraseTokenizer
from fastcar_cli.media.metrics import psnr_of
from fastcar_lab.training.stages import Training, one_file, text_model
from fastcar_lab.worlds import shares
from fastcar_lab.worlds.mini.analyser import analyse, judge, wanted_of
from fastcar_lab.worlds.mini.captions import caption
from fastcar_lab.worlds.mini.hyperparameters import MINI, MINI_DEFAULTS, mini_tokenizer
from fastcar_lab.worlds.mini.render import render
from fastcar_lab.worlds.mini.scene import ATTRIBUTES, SIDE, Scene, scenes_of, split_combinations
from fastcar_lab.worlds.mini.train_tokenizer import Tokenizer
from fastcar_lab.worlds.protocol import CaptionedWorld, Video


class Mini(CaptionedWorld):
    """See `World` and `CaptionedWorld`."""

    name = "mini"
    spec = MINI

    @property
    def training(self) -> Training:
        """See `World`."""
        from fastcar_lab.training.decoder import TrainSettings
        from fastcar_lab.worlds.mini import train_decoder, train_tokenizer

        return Training(
            steps=(12000, 6000, 8500),
            codes="tokenizer.safetensors",
            tokenizer=one_file(train_tokenizer.train),
            kind=Tokenizer,
            settings=TrainSettings,
            stage=train_decoder.train,
            export=text_model(Tokenizer, mini_tokenizer, MINI_DEFAULTS),
        )

    def held_out(self, count: int, seed: int) -> list[tuple[Scene, Prompt]]:
        """See `World`: combinations that were never trained on, each with a caption that names every attribute."""
        rng = random.Random(seed)
        combinations = split_combinations()[1]
        chosen = rng.sample(combinations, count) if count <= len(combinations) else rng.choices(combinations, k=count)
        scenes = [rng.choice(scenes_of(c)) for c in chosen]
        return [(s, caption(s, rng)) for s in scenes]

    def kind(self, tokens: Sequence[str]) -> str:
        """See `CaptionedWorld`; nothing meets here, and the camera does not move."""
        return "still" if "still" in tokens else "moving"

    def render(self, scene: Scene) -> Video:
        """See `World`."""
        return np.asarray((render(scene) * 255).round(), np.uint8)

    def score(self, scenes: Sequence[Scene], videos: Sequence[Video]) -> dict[str, Any]:
        """See `World`."""
        return shares(judge(analyse(v), wanted_of(s)) for v, s in zip(videos, scenes, strict=True))

    def tokenizer_quality(self, tokenizer: str, count: int, seed: int) -> dict[str, Any]:
        """See `World`: PSNR (dB) of videos encoded and decoded again, and the share that the analyser judges right."""
        file = Path(tokenizer)
        made = Tokenizer.load(file) if file.is_file() else Tokenizer.of_model(tokenizer)
        rng = random.Random(seed)
        combinations = split_combinations()[1]
        scenes = [rng.choice(scenes_of(rng.choice(combinations))) for _ in range(count)]
        rendered = [render(scene) for scene in scenes]
        with torch.inference_mode():
            codes = [made.encode(torch.from_numpy(video)) for video in rendered]
            drawn = [made.rqvae.frame(c).round().to(torch.uint8).numpy() for c in codes]
        errors = [255**2 * np.square(a / 255.0 - b).mean() for a, b in zip(drawn, rendered, strict=True)]
        right = self.score(scenes, drawn)["all"]
        return {"videos": count, "psnr_db": psnr_of(float(np.mean(errors))), "analyser_right": right}

    def recognises(self, reader: PromptReader, height: int, width: int) -> bool:
        """See `CaptionedWorld`."""
        if not isinstance(reader, PhraseTokenizer) or height % SIDE or width % SIDE:
            return False
        groups = {name: set(values) for name, values in reader.groups.items()}
        return groups == {name: set(values) for name, values in ATTRIBUTES.items()}

    def judge(self, video: Video, tokens: Sequence[str]) -> dict[str, bool | None]:
        """See `CaptionedWorld`; an attribute named twice is left open too."""
        wanted = {}
        for name, values in ATTRIBUTES.items():
            named = {t for t in tokens if t in values}
            if len(named) == 1:
                wanted[name] = named.pop()
        right: dict[str, Any] = judge(analyse(video), wanted)
        by_name = {name: right.get(name) for name in ATTRIBUTES}
        return {**by_name, "persists": right["persists"], "all_right": right["all"]}


WORLD = Mini()
